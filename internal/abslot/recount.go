package abslot

import (
	"context"
	"fmt"
	"strings"

	"github.com/turnout-project/turnout/internal/fleet"
)

// Recount counts this boot where the loader could not: firmware that refuses
// the rename of the counter would start a slot that never lives for ever. It is
// for the initrd, before the root is mounted: one rename, exactly the one that
// the loader makes, after which evidence and file agree and the trial can be
// confirmed. It returns the path as the loader would have left it in
// LoaderBootCountPath, or "" where there is nothing to do.
//
// Guards: evidence agrees; started from disk by the loader, not by kexec; the
// booted slot has tries left, and the loader did not count them.
func (m *Machine) Recount(ctx context.Context) (countPath string, err error) {
	v, unlock, err := m.open(ctx)
	if err != nil {
		return "", fmt.Errorf("counting this boot: %w", err)
	}
	defer unlock()
	e := v.Evidence
	if e.Path != PathDisk || e.Kexec || v.Counted || v.Booted == fleet.NoSlot {
		return "", nil
	}
	n := v.boot[v.Booted.Index()][0]
	to := n.counted()
	path := LinuxDir + "/" + to.String()
	// Loaders that were refused leave no path, or the one that they wanted.
	if !n.Counted || n.Left == 0 || e.CountPath != "" && !strings.EqualFold(espPath(e.CountPath), path) {
		return "", nil
	}
	from := LinuxDir + "/" + n.String()
	if err := v.free(to, from); err != nil {
		return "", fmt.Errorf("counting this boot: %w", err)
	}
	if err := m.rename(ctx, from, to); err != nil {
		return "", fmt.Errorf("counting this boot: %w", err)
	}
	m.log("slot %s: the loader could not count this boot: %s -> %s", v.Booted, n, to)
	return `\` + strings.ReplaceAll(path, "/", `\`), nil
}

// NeedsRecount reports whether files of LinuxDir show a boot of entry that the
// loader did not count, so that Recount is worth a mount.
func NeedsRecount(files []string, entry, countPath string) bool {
	for _, f := range files {
		n, err := ParseName(f)
		if err == nil && n.Counted && n.Left > 0 && entryID(strings.ToLower(entry)) == n.ID() {
			return !strings.EqualFold(espPath(countPath), LinuxDir+"/"+f)
		}
	}
	return false
}
