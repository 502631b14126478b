//go:build linux

package installer

import (
	"errors"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
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
	named := d("nvme1n1", 960*gib, blank)
	named.Model, named.Serial, named.IDs = "SAMSUNG MZ1L2", "S4", []string{"nvme-SAMSUNG_MZ1L2_S4", "nvme-eui.0025"}
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
		{"by id", []found{d("nvme0n1", 960*gib, blank), named}, false, "/dev/nvme1n1", ""},
		{"by id, none", []found{named}, false, "", "/dev/nvme1n1 is not named wwn-* (it is nvme-SAMSUNG_MZ1L2_S4, nvme-eui.0025)"},
		{"by model", []found{d("nvme0n1", 960*gib, blank), named}, false, "/dev/nvme1n1", ""},
		{"by serial", []found{d("nvme0n1", 960*gib, blank), named}, false, "/dev/nvme1n1", ""},
		{"not too small", []found{d("nvme0n1", 100*gib, blank), d("nvme1n1", 960*gib, blank)}, false, "/dev/nvme1n1", ""},
		{"not too large", []found{d("nvme0n1", 960*gib, blank)}, false, "", "has 1031 GB, more than 200"},
		{"SATA only", []found{d("nvme0n1", 960*gib, blank), d("sda", 960*gib, blank)}, false, "/dev/sda", ""},
		{"SATA first", []found{d("nvme0n1", 960*gib, blank), d("sda", 960*gib, blank)}, false, "/dev/sda", ""},
		{"the image allows to erase", []found{d("nvme0n1", 960*gib, data)}, false, "/dev/nvme0n1", ""},
		{"the operator names one", []found{d("nvme0n1", 960*gib, blank), d("nvme1n1", 960*gib, data)}, false, "/dev/nvme1n1", ""},
		{"the operator names one by id", []found{d("nvme0n1", 960*gib, blank), named}, false, "/dev/nvme1n1", ""},
		{"two Turnout disks", []found{d("nvme0n1", 960*gib, ours), d("sda", 960*gib, ours)}, false, "", "/dev/nvme0n1 and /dev/sda are both Turnout disks"},
		{"one of two Turnout disks", []found{d("nvme0n1", 960*gib, ours), d("sda", 960*gib, ours)}, false, "/dev/sda", ""},
		{"two Turnout disks, one may be erased", []found{d("nvme0n1", 960*gib, ours), d("sda", 960*gib, ours)}, true, "/dev/nvme0n1", ""},
		{"a node keeps its disk", []found{d("nvme0n1", 960*gib, ours), d("sda", 960*gib, blank)}, false, "/dev/nvme0n1", ""},
		{"a USB stick is no disk", []found{usb}, true, "", "removable"},
		{"a disk that cannot be read is not blank", []found{broken}, true, "", "cannot be read: input/output error"},
	}
	policies := map[string]policy{
		"by id": {Disk: manifest.Disk{ByID: "nvme-SAMSUNG*"}}, "by id, none": {Disk: manifest.Disk{ByID: "wwn-*"}},
		"by model": {Disk: manifest.Disk{Model: "SAMSUNG*"}}, "by serial": {Disk: manifest.Disk{Serial: "S4"}},
		"not too small": {Disk: manifest.Disk{MinGB: 200}}, "not too large": {Disk: manifest.Disk{MaxGB: 200}}, "SATA only": {Disk: manifest.Disk{Bus: []string{"scsi"}}},
		"SATA first": {Disk: manifest.Disk{Bus: []string{"scsi", "nvme"}}}, "the image allows to erase": {Disk: manifest.Disk{MinGB: 1, Erase: true}},
		"the operator names one": {only: "nvme1n1", wipe: true}, "the operator names one by id": {only: "nvme-SAMSUNG*", wipe: true},
		"a node keeps its disk": {Disk: manifest.Disk{Bus: []string{"scsi"}}}, "one of two Turnout disks": {Disk: manifest.Disk{Bus: []string{"scsi"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := policies[tt.name]
			p.wipe = p.wipe || tt.wipe
			got, err := choose(tt.all, p)
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
