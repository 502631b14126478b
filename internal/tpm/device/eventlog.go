package device

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/turnout-project/turnout/internal/tpm/eventlog"
)

// eventLogPath is where the kernel shows the firmware's event log, once
// securityfs is mounted on /sys/kernel/security.
const eventLogPath = "/sys/kernel/security/tpm0/binary_bios_measurements"

// EventLog returns the firmware's event log as the kernel keeps it. It does
// not change while the system runs, but the words that were measured into PCR
// 11 after the firmware are not in it. Mounting securityfs is the caller's.
func EventLog() ([]byte, error) { return readEventLog(eventLogPath) }

// readEventLog reads to the end: the file's size is shown as 0.
func readEventLog(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s does not exist: securityfs is not mounted, there is no TPM, or the firmware gave the kernel no log: %w", path, err)
	}
	if err != nil {
		return nil, fmt.Errorf("event log: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	b, err := io.ReadAll(io.LimitReader(f, eventlog.MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("event log: %w", err)
	}
	if len(b) > eventlog.MaxSize {
		return nil, fmt.Errorf("event log %s has more than %d bytes", path, eventlog.MaxSize)
	}
	return b, nil
}
