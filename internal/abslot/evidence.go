package abslot

import (
	"errors"
	"fmt"
	"strings"

	"github.com/turnout-project/turnout/internal/fleet"
)

// agree settles which slot is booted. Three witnesses must say the same: the
// loader's variables, the root hash of the kernel command line, and the
// partition behind the root file system. Booted is set as far as root hash
// and partition go, whatever the outcome, so that it can be shown and the
// slot is never taken for the other one.
func (v *view) agree() error {
	e := v.Evidence
	switch e.Path {
	case PathInstaller:
		if e.Backing != fleet.NoSlot || e.RootHash != "" {
			return fmt.Errorf("%w: an installer runs, yet slot %q backs the root (root hash %q)", ErrEvidence, e.Backing, e.RootHash)
		}
		return nil
	case PathDisk, PathNetwork:
	default:
		return fmt.Errorf("%w: boot path %q: want disk, network or installer", ErrEvidence, e.Path)
	}
	v.Booted = e.Backing
	if e.Backing == fleet.NoSlot {
		return fmt.Errorf("%w: no slot's partition backs the root file system", ErrEvidence)
	}
	s := v.Slot(e.Backing)
	if e.RootHash == "" || s.RootHash != e.RootHash {
		return fmt.Errorf("%w: the kernel was started for root hash %q, slot %s holds %q", ErrEvidence, e.RootHash, s.Slot, s.RootHash)
	}
	if e.Path == PathNetwork {
		return nil
	}
	return v.loaderAgrees()
}

// loaderAgrees checks the loader's variables against the files of the booted
// slot, and sets BootedFile and Counted.
func (v *view) loaderAgrees() error {
	e, i := v.Evidence, v.Booted.Index()
	entry := strings.ToLower(e.Entry)
	if entry == "" {
		return fmt.Errorf("%w: the loader left no LoaderEntrySelected, so it is not known which file was started", ErrEvidence)
	}
	for _, n := range v.boot[i] {
		if entryID(entry) != n.ID() {
			continue
		}
		v.BootedFile = LinuxDir + "/" + n.String()
		v.Counted = strings.EqualFold(espPath(e.CountPath), v.BootedFile)
		return nil
	}
	return fmt.Errorf("%w: the loader started %q, slot %s has %s", ErrEvidence, e.Entry, v.Booted, names(v.boot[i]))
}

// torn reports names that share one UKI. The loader is safe with them, but
// deleting one would free the blocks of the other.
func (v *view) torn() error {
	var errs []error
	for i, s := range fleet.Slots {
		if len(v.boot[i])+len(v.staged[i]) > 1 {
			errs = append(errs, fmt.Errorf("%w: slot %s: %s %s; the repair before the next mount of the ESP cures it: reboot",
				ErrTorn, s, names(v.boot[i]), strings.Join(v.staged[i], " ")))
		}
	}
	return errors.Join(errs...)
}

// entryID strips the counter from an entry name: loaders differ in whether
// LoaderEntrySelected carries it.
func entryID(entry string) string {
	body, ok := strings.CutSuffix(entry, efiSuffix)
	if !ok {
		return entry
	}
	stem, _, _ := strings.Cut(body, "+")
	return stem + efiSuffix
}

// espPath turns `\EFI\Linux\x.efi` into "EFI/Linux/x.efi".
func espPath(p string) string {
	return strings.TrimPrefix(strings.ReplaceAll(p, `\`, "/"), "/")
}

func names(ns []Name) string {
	if len(ns) == 0 {
		return "no bootable UKI"
	}
	var out []string
	for _, n := range ns {
		out = append(out, n.String())
	}
	return strings.Join(out, " and ")
}
