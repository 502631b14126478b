// Package device talks to the TPM 2.0 of the machine it runs on. It is the
// only package that opens one; what a TPM said is judged elsewhere.
//
// Keys are primary keys of the endorsement hierarchy, derived anew from the
// TPM's seed on each use: nothing is stored, nothing needs an owner password,
// and each command sequence flushes what it loaded. The hierarchy is that of
// the EK, so that a quote carries the true reset counter and firmware version.
package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/go-tpm/tpm2"
)

// Errors of Open and of every command.
var (
	ErrNoTPM    = errors.New("no TPM 2.0")
	ErrDisabled = errors.New("the TPM is disabled")
)

// commandTimeout is how long one TPM command may take. Slow chips need tens
// of seconds to make an RSA key.
const commandTimeout = 90 * time.Second

// Paths that Open tries, in this order: the first goes through the kernel's
// resource manager, so that others may use the TPM too.
var paths = []string{"/dev/tpmrm0", "/dev/tpm0"}

// Device is an open TPM. Its methods may be called from several goroutines
// and take turns. Close it after use.
type Device struct {
	mu   sync.Mutex
	t    *transport
	path string
}

// Open opens the machine's TPM. It waits for the device node to appear until
// ctx is done; a ctx without deadline waits for nothing. The error wraps
// ErrNoTPM or ErrDisabled where these are the reason.
func Open(ctx context.Context) (*Device, error) {
	for {
		for _, p := range paths {
			if _, err := os.Stat(p); err == nil {
				return OpenPath(ctx, p)
			}
		}
		if _, limited := ctx.Deadline(); !limited {
			return nil, absent("/")
		}
		select {
		case <-ctx.Done():
			return nil, absent("/")
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// OpenPath opens the TPM behind a device node, or behind a Unix socket that
// speaks the raw TPM protocol (swtpm).
func OpenPath(ctx context.Context, path string) (*Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t, err := dial(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s does not exist: %w", path, ErrNoTPM)
	case err != nil:
		return nil, fmt.Errorf("opening the TPM: %w", err)
	}
	d := &Device{t: t, path: path}
	if err := d.hello(); err != nil {
		t.close() //nolint:errcheck // the first error counts
		return nil, err
	}
	return d, nil
}

// Close closes the device.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.t.close()
}

// hello asks the TPM for its family, which shows whether it works at all.
func (d *Device) hello() error {
	v, err := d.property(tpm2.TPMPTFamilyIndicator)
	if err != nil {
		return fmt.Errorf("%s: %w", d.path, explain(err))
	}
	if v != 0x322e3000 { // "2.0\0"
		return fmt.Errorf("%s is of family %#x: %w", d.path, v, ErrNoTPM)
	}
	return nil
}

// absent says why there may be no TPM device below root.
func absent(root string) error {
	at := func(p string) string { return filepath.Join(root, p) }
	if v, err := os.ReadFile(at("sys/class/tpm/tpm0/tpm_version_major")); err == nil && strings.TrimSpace(string(v)) == "1" {
		return fmt.Errorf("the machine has a TPM 1.2; switch it to 2.0 in the firmware setup: %w", ErrNoTPM)
	}
	if _, err := os.Stat(at("sys/firmware/acpi/tables/TPM2")); err == nil {
		return fmt.Errorf("the firmware announces a TPM 2.0, but the kernel has no device for it; its driver (tpm_crb, tpm_tis) is missing or failed: %w", ErrNoTPM)
	}
	return fmt.Errorf("neither %s nor %s exists; enable the TPM (PTT, fTPM, Security Device) in the firmware setup: %w", paths[0], paths[1], ErrNoTPM)
}

// explain adds to a TPM's error code what it means for an operator.
func explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, tpm2.TPMRCInitialize):
		return fmt.Errorf("the firmware did not start the TPM; enable it in the firmware setup: %w: %w", err, ErrDisabled)
	case errors.Is(err, tpm2.TPMRCHierarchy):
		return fmt.Errorf("the TPM's endorsement hierarchy is disabled; enable it in the firmware setup: %w: %w", err, ErrDisabled)
	case errors.Is(err, tpm2.TPMRCFailure):
		return fmt.Errorf("the TPM is in failure mode; power the machine off and on: %w", err)
	case errors.Is(err, tpm2.TPMRCAuthFail), errors.Is(err, tpm2.TPMRCBadAuth):
		return fmt.Errorf("the endorsement hierarchy has a password; clear the TPM in the firmware setup: %w", err)
	case errors.Is(err, tpm2.TPMRCObjectMemory):
		return fmt.Errorf("the TPM has no room for another key; somebody uses it without the resource manager: %w", err)
	}
	return err
}
