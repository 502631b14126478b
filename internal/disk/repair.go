package disk

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/disk/fatdir"
)

// RepairESP deletes names that share one file with another name of the same
// folder: what a power cut in the middle of a rename can leave. keep reports
// whether a is to be kept rather than b (abslot.Keep). The ESP must not be
// mounted: it is opened exclusively. It returns the names that were deleted,
// and writes nothing when there are none.
func RepairESP(dev string, folders []string, keep func(a, b string) bool) (deleted []string, err error) {
	f, err := os.OpenFile(dev, os.O_RDWR|unix.O_EXCL, 0)
	if err != nil {
		return nil, fmt.Errorf("repairing ESP: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for _, dir := range folders {
		names, err := fatdir.Dedupe(f, 0, dir, keep)
		deleted = append(deleted, names...)
		if err != nil {
			return deleted, fmt.Errorf("repairing ESP %q: %w", dev, err)
		}
	}
	return deleted, nil
}
