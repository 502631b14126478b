//go:build linux

package installer

import (
	"errors"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/fleet"
)

func TestChoose(t *testing.T) {
	const gib = uint64(disk.GiB)
	blank := disk.Content{}
	ours := disk.Content{Turnout: true, Table: "gpt"}
	data := disk.Content{Table: "gpt", Signatures: []string{`XFS on partition 1 ("data")`}}
	d := func(name string, size uint64, c disk.Content) found {
		return found{Info: disk.Info{Disk: fleet.Disk{Name: name, SizeBytes: size}, Path: "/dev/" + name}, content: c}
	}
	usb := d("sda", 64*gib, blank)
	usb.Removable = true
	broken := d("nvme9n1", 960*gib, blank)
	broken.err = errors.New("input/output error")
	tests := []struct {
		name string
		all  []found
		wipe bool
		want string
		err  string
	}{
		{"one blank disk", []found{d("vda", 8*gib, blank)}, false, "/dev/vda", ""},
		{"none", nil, false, "", "shows none"},
		{"NVMe before SATA before virtio", []found{d("vda", 100*gib, blank), d("sdb", 100*gib, blank), d("nvme1n1", 960*gib, blank)}, false, "/dev/nvme1n1", ""},
		{"the small one of a machine with data disks", []found{d("nvme0n1", 3840*gib, blank), d("nvme1n1", 1920*gib, blank), d("nvme2n1", 1920*gib, blank)}, false, "/dev/nvme1n1", ""},
		{"but not too small", []found{d("nvme0n1", 16*gib, blank), d("nvme1n1", 1920*gib, blank)}, false, "/dev/nvme1n1", ""},
		{"the larger of two small ones", []found{d("vda", 8*gib, blank), d("vdb", 16*gib, blank)}, false, "/dev/vdb", ""},
		{"our own disk, whatever its kind", []found{d("nvme0n1", 960*gib, blank), d("sda", 100*gib, ours)}, false, "/dev/sda", ""},
		{"data is not touched", []found{d("nvme0n1", 960*gib, data), d("sda", 100*gib, blank)}, false, "/dev/sda", ""},
		{"nothing but data", []found{d("nvme0n1", 960*gib, data)}, false, "", `/dev/nvme0n1 holds data (partition table gpt, XFS on partition 1 ("data"))`},
		{"data may be erased", []found{d("nvme0n1", 960*gib, data)}, true, "/dev/nvme0n1", ""},
		{"data may be erased, but there is a blank disk", []found{d("nvme0n1", 960*gib, data), d("sda", 100*gib, blank)}, true, "/dev/sda", ""},
		{"a USB stick is no disk", []found{usb}, true, "", "removable"},
		{"a disk that cannot be read is not blank", []found{broken}, true, "", "cannot be read: input/output error"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := choose(tt.all, tt.wipe)
			if tt.err != "" {
				if !errors.Is(err, errDisk) || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("choose = %s, %v; want errDisk with %q", got.Path, err, tt.err)
				}
				return
			}
			if err != nil || got.Path != tt.want {
				t.Errorf("choose = %s, %v; want %s", got.Path, err, tt.want)
			}
		})
	}
}
