package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/fleet"
)

// Host is the machine whose disks are looked at. The zero value is the
// running one; tests give other roots.
type Host struct {
	Sys string // "" means /sys
	Dev string // "" means /dev
}

func (h Host) sys(p ...string) string {
	root := h.Sys
	if root == "" {
		root = "/sys"
	}
	return filepath.Join(append([]string{root, "block"}, p...)...)
}

// Path returns the device node of a disk or partition name.
func (h Host) Path(name string) string {
	root := h.Dev
	if root == "" {
		root = "/dev"
	}
	return filepath.Join(root, name)
}

// PartitionPath returns the device node of partition n of a disk:
// /dev/vda -> /dev/vda1, /dev/nvme0n1 -> /dev/nvme0n1p1 (a name that ends in
// a digit gets a "p").
func PartitionPath(disk string, n int) string {
	if last := disk[len(disk)-1]; last >= '0' && last <= '9' {
		return fmt.Sprintf("%sp%d", disk, n)
	}
	return fmt.Sprintf("%s%d", disk, n)
}

// Info is a disk as the kernel shows it.
type Info struct {
	fleet.Disk
	Path      string   // device node
	IDs       []string // as udev names it below /dev/disk/by-id
	ReadOnly  bool
	Removable bool
}

// virtual are disks of the kernel's own making.
var virtual = []string{"loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd"}

// List returns the physical disks in order of name; disks without a medium
// are left out.
func (h Host) List() ([]Info, error) {
	entries, err := os.ReadDir(h.sys())
	if err != nil {
		return nil, fmt.Errorf("listing disks: %w", err)
	}
	var out []Info
	for _, e := range entries {
		name := e.Name()
		if slices.ContainsFunc(virtual, func(p string) bool { return strings.HasPrefix(name, p) }) {
			continue
		}
		if d := h.info(name); d.SizeBytes > 0 {
			out = append(out, d)
		}
	}
	return out, nil
}

func (h Host) info(name string) Info {
	size, _ := strconv.ParseUint(h.attr(name, "size"), 10, 64) // always in 512-byte units
	sector, err := strconv.Atoi(h.attr(name, "queue/logical_block_size"))
	if err != nil {
		sector = 512
	}
	serial := h.attr(name, "device/serial") // NVMe
	if serial == "" {
		serial = h.attr(name, "serial") // virtio
	}
	if vpd := h.attr(name, "device/vpd_pg80"); serial == "" && len(vpd) > 4 { // SCSI: four bytes of header
		serial = strings.TrimSpace(vpd[4:])
	}
	model := h.attr(name, "device/model")
	return Info{
		IDs:  h.ids(name, model, serial),
		Disk: fleet.Disk{Name: name, Model: model, Serial: serial, SizeBytes: size * 512, SectorSize: sector},
		Path: h.Path(name), ReadOnly: h.attr(name, "ro") == "1", Removable: h.attr(name, "removable") == "1",
	}
}

// ids returns the names that udev gives a disk for its model, serial number
// and world wide name. The kernel shows sixteen characters of a SATA disk's
// model, so that only its world wide name can be relied on.
func (h Host) ids(name, model, serial string) []string {
	var out []string
	add := func(parts ...string) {
		if !slices.Contains(parts, "") {
			out = append(out, strings.Join(strings.Fields(strings.Join(parts, "")), "_"))
		}
	}
	wwid := h.attr(name, "wwid")
	if wwid == "" {
		wwid = h.attr(name, "device/wwid")
	}
	switch {
	case strings.HasPrefix(name, "nvme"):
		add("nvme-", model, "_", serial)
		add("nvme-", wwid)
	case strings.HasPrefix(name, "sd"):
		add("ata-", model, "_", serial)
		if naa, ok := strings.CutPrefix(wwid, "naa."); ok {
			add("wwn-0x", naa)
		}
	case strings.HasPrefix(name, "vd"):
		add("virtio-", serial)
	}
	return out
}

// attr returns a sysfs attribute of a disk, "" when it has none.
func (h Host) attr(name, file string) string {
	b, err := os.ReadFile(h.sys(name, file))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Disk is a disk with a partition table.
type Disk struct {
	Path string
	Layout
}

// Open reads the partition table of the disk at path. It fails when it is not
// that of a Turnout disk.
func Open(path string) (*Disk, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening disk: %w", err)
	}
	defer f.Close()
	g, err := GeometryOf(f)
	if err != nil {
		return nil, err
	}
	l, found, err := readTable(f, g)
	if err == nil && (!found || !l.isTurnout()) {
		err = ErrNotTurnout
	}
	if err != nil {
		return nil, fmt.Errorf("disk %q: %w", path, err)
	}
	return &Disk{Path: path, Layout: l}, nil
}

// ErrNotTurnout is wrapped by Open for a disk without a Turnout layout.
var ErrNotTurnout = errors.New("no Turnout layout")

// PartitionPath returns the device node of the partition of that label.
func (d *Disk) PartitionPath(label string) (string, error) {
	p, err := d.Partition(label)
	if err != nil {
		return "", fmt.Errorf("%s: %w", d.Path, err)
	}
	return PartitionPath(d.Path, p.Number), nil
}

// Find returns the disks that carry a Turnout layout, in order of name. A
// disk that cannot be read is skipped.
func (h Host) Find(ctx context.Context) ([]*Disk, error) {
	infos, err := h.List()
	if err != nil {
		return nil, err
	}
	var out []*Disk
	for _, i := range infos {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if d, err := Open(i.Path); err == nil {
			out = append(out, d)
		}
	}
	return out, nil
}

// rereadPoll is how long Reread rests between two looks.
const rereadPoll = 50 * time.Millisecond

// Reread makes the kernel read the partition table of a disk anew, and waits
// until the device node of every partition of d is there. It goes on until
// ctx ends: a prober may hold a partition open for a moment.
func (h Host) Reread(ctx context.Context, d *Disk) error {
	err := ioctlReread(d.Path)
	for err != nil {
		if !errors.Is(err, unix.EBUSY) || pause(ctx) != nil {
			return fmt.Errorf("reading the partition table of %q anew: %w", d.Path, err)
		}
		err = ioctlReread(d.Path)
	}
	name := filepath.Base(d.Path)
	for _, p := range d.Partitions {
		for !h.shows(name, p) {
			if err := pause(ctx); err != nil {
				return fmt.Errorf("waiting for %s: %w", PartitionPath(d.Path, p.Number), err)
			}
		}
	}
	return nil
}

func (h Host) shows(disk string, p Partition) bool {
	part := PartitionPath(disk, p.Number)
	size, err := strconv.ParseInt(h.attr(disk, part+"/size"), 10, 64)
	if err != nil || size*512 != p.SizeBytes {
		return false
	}
	_, err = os.Stat(h.Path(part))
	return err == nil
}

func ioctlReread(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.IoctlSetInt(int(f.Fd()), unix.BLKRRPART, 0)
}

func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(rereadPoll):
		return nil
	}
}
