//go:build linux

package installer

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/manifest"
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

// policy is what image and operator say of the disk.
type policy struct {
	manifest.Disk
	only string // an operator's word: pattern of the one disk, "" for none
	wipe bool   // an operator's word: foreign data may be erased
}

// excludes says why a disk is not one that the policy means, or "".
func (p policy) excludes(f found) string {
	is := func(pattern string, names ...string) bool {
		return pattern == "" || slices.ContainsFunc(names, func(n string) bool {
			ok, err := path.Match(pattern, n)
			return ok && err == nil
		})
	}
	gb := float64(f.SizeBytes) / 1e9
	switch {
	case !is(p.only, append([]string{f.Name, f.Serial}, f.IDs...)...):
		return fmt.Sprintf("is not the one that was asked for (%s)", p.only)
	case !is(p.ByID, f.IDs...):
		return fmt.Sprintf("is not named %s (it is %s)", p.ByID, strings.Join(f.IDs, ", "))
	case !is(p.Model, f.Model):
		return fmt.Sprintf("is no %s but a %q", p.Model, f.Model)
	case !is(p.Serial, f.Serial):
		return fmt.Sprintf("has serial number %q, not %s", f.Serial, p.Serial)
	case p.MinGB > 0 && gb < float64(p.MinGB):
		return fmt.Sprintf("has %.0f GB, less than %d", gb, p.MinGB)
	case p.MaxGB > 0 && gb > float64(p.MaxGB):
		return fmt.Sprintf("has %.0f GB, more than %d", gb, p.MaxGB)
	case len(p.Bus) > 0 && !slices.Contains(p.Bus, bus(f)):
		return "is " + bus(f) + ", not " + strings.Join(p.Bus, " or ")
	}
	return ""
}

// choose picks the disk of the system, among those that the policy means:
//
//  1. a disk that Turnout laid out before, so that an installation that was
//     cut goes on where it was;
//  2. a blank disk; a disk with foreign data only if image or operator allow it;
//
// and among several NVMe before SATA and SAS before virtio, or as the image
// says, then the smallest
// that is comfortable (large disks are for data), then the first by name.
// Removable and read-only disks never count. Two disks that Turnout laid out
// are refused unless one may be erased: the firmware might start either.
func choose(all []found, p policy) (found, error) {
	var fit []found
	var why []string
	for _, f := range all {
		switch {
		case f.ReadOnly, f.Removable:
			why = append(why, f.Path+" is removable or read-only")
		case f.err != nil:
			why = append(why, fmt.Sprintf("%s cannot be read: %v", f.Path, f.err))
		case f.content.Turnout && !p.wipe && p.only == "" && only(all, f): // a node keeps its disk
			return f, nil
		case p.excludes(f) != "":
			why = append(why, f.Path+" "+p.excludes(f))
		case f.content.Turnout, f.content.IsBlank(), p.wipe, p.Erase:
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
	var ours []string
	for _, f := range fit {
		if f.content.Turnout {
			ours = append(ours, f.Path)
		}
	}
	if len(ours) > 1 && !p.wipe {
		return found{}, fmt.Errorf("%w: %s are both Turnout disks, and the firmware might start either: take one out, or name one (pxeserver reimage NODE --disk …)", errDisk, strings.Join(ours, " and "))
	}
	return slices.MinFunc(fit, p.compare), nil
}

// only reports whether no other disk than f has a Turnout layout.
func only(all []found, f found) bool {
	return !slices.ContainsFunc(all, func(g found) bool { return g.content.Turnout && g.Path != f.Path })
}

func (p policy) compare(a, b found) int {
	for _, f := range []func(found) int64{foreign, p.busRank, cramped, size} {
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

// buses are the kinds of disk, the best first.
var buses = []string{"nvme", "scsi", "virtio"}

func (p policy) busRank(f found) int64 {
	if len(p.Bus) > 0 {
		return int64(slices.Index(p.Bus, bus(f)))
	}
	return int64(slices.Index(buses, bus(f)))
}

func bus(f found) string {
	switch {
	case strings.HasPrefix(f.Name, "nvme"):
		return "nvme"
	case strings.HasPrefix(f.Name, "sd"):
		return "scsi"
	}
	return "virtio"
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
