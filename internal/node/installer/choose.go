//go:build linux

package installer

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/disk"
)

// errDisk is wrapped when no disk may be used. It does not go away by itself.
var errDisk = errors.New("no disk to install on")

// found is a disk with what is on it.
type found struct {
	disk.Info
	content disk.Content
	err     error // of looking
}

// comfortable is the size from which a disk is large enough for two slots of
// any image and for state.
const comfortable = 64 * disk.GiB

// choose picks the disk of the system:
//
//  1. a disk that Turnout laid out before, so that an installation that was
//     cut goes on where it was;
//  2. a blank disk; a disk with foreign data only if wipe is set;
//
// and among several NVMe before SATA and SAS before virtio, then the smallest
// that is comfortable (large disks are for data), then the first by name.
// Removable and read-only disks never count.
func choose(all []found, wipe bool) (found, error) {
	var fit []found
	var why []string
	for _, f := range all {
		switch {
		case f.ReadOnly, f.Removable:
			why = append(why, f.Path+" is removable or read-only")
		case f.err != nil:
			why = append(why, fmt.Sprintf("%s cannot be read: %v", f.Path, f.err))
		case f.content.Turnout, f.content.IsBlank(), wipe:
			fit = append(fit, f)
		default:
			why = append(why, fmt.Sprintf("%s holds data (%s)", f.Path, f.content))
		}
	}
	if len(fit) == 0 {
		if len(all) == 0 {
			why = []string{"the machine shows none; is the driver in the image's recipe?"}
		}
		return found{}, fmt.Errorf("%w: %s; ask for a reinstallation of this node to allow that data is erased", errDisk, strings.Join(why, "; "))
	}
	return slices.MinFunc(fit, compare), nil
}

func compare(a, b found) int {
	for _, f := range []func(found) int64{foreign, busRank, cramped, size} {
		if x, y := f(a), f(b); x != y {
			if x < y {
				return -1
			}
			return 1
		}
	}
	return strings.Compare(a.Name, b.Name)
}

// foreign ranks our own disks before blank ones before those with data.
func foreign(f found) int64 {
	switch {
	case f.content.Turnout:
		return 0
	case f.content.IsBlank():
		return 1
	}
	return 2
}

func busRank(f found) int64 {
	switch {
	case strings.HasPrefix(f.Name, "nvme"):
		return 0
	case strings.HasPrefix(f.Name, "sd"):
		return 1
	}
	return 2
}

func cramped(f found) int64 {
	if f.SizeBytes < comfortable {
		return 1
	}
	return 0
}

// size ranks comfortable disks by how small they are, cramped ones by how
// large.
func size(f found) int64 {
	if f.SizeBytes < comfortable {
		return -int64(f.SizeBytes)
	}
	return int64(f.SizeBytes)
}

// look lists the disks with what is on them.
func look(h disk.Host) ([]found, error) {
	infos, err := h.List()
	if err != nil {
		return nil, err
	}
	var out []found
	for _, i := range infos {
		c, err := disk.Probe(i.Path)
		out = append(out, found{i, c, err})
	}
	return out, nil
}
