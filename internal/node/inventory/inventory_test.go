//go:build linux

package inventory

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/fleet"
)

func TestRead(t *testing.T) {
	root := t.TempDir()
	for p, text := range map[string]string{
		"sys/class/dmi/id/sys_vendor":                "NVIDIA\n",
		"sys/class/dmi/id/product_name":              "DGX H100\n",
		"sys/class/dmi/id/product_serial":            "To Be Filled By O.E.M.\n",
		"sys/class/dmi/id/product_uuid":              "4C4C4544-0042\n",
		"sys/class/dmi/id/bios_version":              "1.0\n",
		"proc/cpuinfo":                               "processor\t: 0\nmodel name\t: Xeon 8480C\n\nprocessor\t: 1\nmodel name\t: Xeon 8480C\n",
		"proc/meminfo":                               "MemTotal:       2048 kB\nMemFree: 1 kB\n",
		"sys/class/net/eth0/address":                 "52:54:00:12:34:56\n",
		"sys/class/net/eth0/operstate":               "up\n",
		"sys/class/net/eth0/device/x":                "",
		"sys/class/net/br0/address":                  "52:54:00:12:34:57\n",
		"sys/class/net/lo/address":                   "00:00:00:00:00:00\n",
		"sys/bus/pci/devices/0000:3b:00.0/vendor":    "0x10de\n",
		"sys/bus/pci/devices/0000:3b:00.0/device":    "0x2330\n",
		"sys/bus/pci/devices/0000:3b:00.0/class":     "0x030200\n",
		"sys/block/nvme0n1/size":                     "4096\n",
		"sys/block/nvme0n1/queue/logical_block_size": "4096\n",
		"sys/block/nvme0n1/device/model":             "Micron 7450\n",
		"sys/block/loop0/size":                       "8\n",
		"sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c": "\x06\x00\x00\x00\x01",
	} {
		f := filepath.Join(root, p)
		if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../../../bus/virtio/drivers/virtio_net", filepath.Join(root, "sys/class/net/eth0/device/driver")); err != nil {
		t.Fatal(err)
	}
	want := &fleet.Inventory{
		Vendor: "NVIDIA", Product: "DGX H100", UUID: "4c4c4544-0042", BIOSVersion: "1.0",
		CPU: "Xeon 8480C", CPUs: 2, MemoryBytes: 2 << 20,
		Disks:      []fleet.Disk{{Name: "nvme0n1", Model: "Micron 7450", SizeBytes: 2 << 20, SectorSize: 4096}},
		NICs:       []fleet.NIC{{Name: "eth0", MAC: "52:54:00:12:34:56", Driver: "virtio_net", Up: true}},
		PCI:        []string{"0000:3b:00.0 10de:2330 0302"},
		SecureBoot: true,
	}
	if d := cmp.Diff(want, Read(root)); d != "" {
		t.Errorf("Read (-want +got):\n%s", d)
	}
}

func TestReadNothing(t *testing.T) {
	if d := cmp.Diff(&fleet.Inventory{}, Read(t.TempDir())); d != "" {
		t.Errorf("Read of an empty machine (-want +got):\n%s", d)
	}
}
