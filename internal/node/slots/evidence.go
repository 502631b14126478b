//go:build linux

package slots

import (
	"context"
	"os"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/node/bootinfo"
)

// Evidence gathers what independent witnesses say of the running system: the
// kernel of the backing partition, the command line of the root hash, the
// loader of the file it started.
func Evidence(i *bootinfo.Info) func(context.Context) (abslot.Evidence, error) {
	return func(context.Context) (abslot.Evidence, error) {
		cmdline, err := os.ReadFile("/proc/cmdline")
		if err != nil {
			return abslot.Evidence{}, err
		}
		hash, err := RootHash(string(cmdline))
		if err != nil {
			return abslot.Evidence{}, err
		}
		backing, err := Backing(i.Roots)
		if err != nil {
			return abslot.Evidence{}, err
		}
		entry, count, err := LoaderVars()
		if err != nil {
			return abslot.Evidence{}, err
		}
		return abslot.Evidence{
			BootID: i.BootID, Path: abslot.BootPath(i.BootPath), Entry: entry, CountPath: count,
			RootHash: hash, Backing: backing, Kexec: Kexec(),
		}, nil
	}
}
