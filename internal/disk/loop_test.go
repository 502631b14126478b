package disk_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/disk"
)

// loop makes a block device with sectors of that size.
func loop(t *testing.T, file string, sector int) string {
	t.Helper()
	lack := func(what string) {
		if os.Getenv("CI") != "" {
			t.Fatalf("this test needs %s", what)
		}
		t.Skipf("this test needs %s", what)
	}
	if os.Geteuid() != 0 {
		lack("root, for loop devices")
	}
	out, err := exec.Command("losetup", "--find", "--show", "--sector-size", fmt.Sprint(sector), file).CombinedOutput()
	if err != nil {
		lack(fmt.Sprintf("loop devices with sectors of %d bytes: %v: %s", sector, err, out))
	}
	dev := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", dev).CombinedOutput(); err != nil {
			t.Errorf("losetup --detach %s: %v: %s", dev, err, out)
		}
	})
	return dev
}

// TestCreateOnBlockDevices lays out disks with sectors of 512 and 4096 bytes,
// and then larger ones anew, as where a disk was exchanged: both tables are
// where they belong, and state takes what the slots leave.
func TestCreateOnBlockDevices(t *testing.T) {
	for _, sector := range []int{512, 4096} {
		t.Run(fmt.Sprint(sector), func(t *testing.T) {
			var states []int64
			for _, size := range []int64{3 * disk.GiB, 5 * disk.GiB} {
				dev := loop(t, image(t, size), sector)
				l := mustPlan(t, disk.Geometry{SizeBytes: size, SectorSize: sector}, disk.Want{RootBytes: 100 * disk.MiB, UKIBytes: 20 * disk.MiB, ESPBytes: 300 * disk.MiB})
				if err := disk.Create(context.Background(), dev, l, disk.ESPFiles("amd64", []byte("loader"))); err != nil {
					t.Fatal(err)
				}
				if out := run(t, "sgdisk", "-v", dev); !strings.Contains(out, "No problems found") {
					t.Errorf("sgdisk -v: %s", out)
				}
				d, err := disk.Open(dev)
				if err != nil {
					t.Fatal(err)
				}
				state, err := d.Partition(disk.LabelState)
				if err != nil {
					t.Fatal(err)
				}
				if left := size - state.StartBytes - state.SizeBytes; left > 2*disk.MiB {
					t.Errorf("%d bytes are left behind the state partition", left)
				}
				states = append(states, state.SizeBytes)
			}
			if states[1]-states[0] < disk.GiB {
				t.Errorf("a disk 2 GiB larger has %d bytes more of state", states[1]-states[0])
			}
		})
	}
}
