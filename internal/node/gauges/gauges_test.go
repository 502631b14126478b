//go:build linux

package gauges

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/gpu/probe"
	"github.com/turnout-project/turnout/internal/gpu/probe/smitest"
)

func TestMain(m *testing.M) {
	smitest.Main()
	os.Exit(m.Run())
}

// machine is a folder of files in the place of a machine's.
func machine(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

var files = map[string]string{
	"sys/class/net/eth0/device/vendor":                                    "0x15b3\n",
	"sys/class/net/eth0/statistics/rx_errors":                             "3\n",
	"sys/class/net/eth0/statistics/tx_errors":                             "0\n",
	"sys/class/net/eth0/operstate":                                        "up\n",
	"sys/class/net/eth0/speed":                                            "100000\n",
	"sys/class/net/eth1/device/vendor":                                    "0x15b3\n",
	"sys/class/net/eth1/operstate":                                        "up\n",
	"sys/class/net/eth1/speed":                                            "-1\n",
	"sys/class/net/br0/statistics/rx_errors":                              "9\n",
	"sys/class/infiniband/mlx5_0/fw_ver":                                  "28.45.1020\n",
	"sys/class/infiniband/mlx5_1/fw_ver":                                  "28.44.1036\n",
	"sys/class/infiniband/mlx5_0/ports/1/counters/link_downed":            "2\n",
	"sys/devices/system/edac/mc/mc0/ce_count":                             "4\n",
	"sys/devices/system/edac/mc/mc1/ce_count":                             "1\n",
	"sys/class/hwmon/hwmon1/name":                                         "k10temp\n",
	"sys/class/hwmon/hwmon1/temp1_input":                                  "61250\n",
	"sys/class/hwmon/hwmon1/temp2_input":                                  "70500\n",
	"sys/class/hwmon/hwmon2/name":                                         "nvme\n",
	"sys/class/hwmon/hwmon2/temp1_input":                                  "90000\n",
	"sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count": "7\n",
	"sys/devices/system/cpu/cpu1/thermal_throttle/package_throttle_count": "7\n",
}

var want = map[string]float64{
	"nic.eth0.rx_errors_total": 3, "nic.eth0.tx_errors_total": 0, "nic.eth0.speed_megabits": 100000, "nic.mlx5_0_1.link_downed_total": 2,
	"memory.corrected_total": 5, "cpu.temperature_celsius": 70.5, "cpu.throttles_total": 7,
}

func TestReadWithoutGPU(t *testing.T) {
	r := Reader{probe.Machine{Root: machine(t, files), SMI: []string{"/bin/false"}}} // nobody asks it
	s, err := r.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w := Sample{Metrics: want, Versions: map[string]string{"firmware.nic": "28.44.1036 28.45.1020"}}
	if d := cmp.Diff(w, s); d != "" {
		t.Errorf("Read (-want +got):\n%s", d)
	}
}

// TestReadGPU reads the captured answers of an H200 that is cut, at work.
func TestReadGPU(t *testing.T) {
	root := machine(t, map[string]string{
		"sys/bus/pci/devices/0000:83:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:83:00.0/class": "0x030200\n",
		"sys/module/nvidia/version": "590.48.01\n",
	})
	r := Reader{probe.Machine{Root: root, SMI: smitest.Command("../../gpu/probe/testdata/nvidia-smi/nvidia-h200-mig-590.48.01.txt", "load")}}
	s, err := r.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]string{"driver": "590.48.01", "firmware.vbios": "96.00.A5.00.03"}, s.Versions); d != "" {
		t.Errorf("versions (-want +got):\n%s", d)
	}
	if len(s.Uses) != 5 || s.Uses[1] != (fleet.Use{Device: "0/2/1", Profile: "2c.3g.71gb", Occupied: true}) {
		t.Errorf("uses %+v", s.Uses)
	}
	if s.Metrics["gpu.0.sm_clock_megahertz"] != 1980 {
		t.Errorf("metrics %v", s.Metrics)
	}
}

// TestReadLostGPU: where nvidia-smi fails, the driver's version is known
// still, and nobody is said to have the GPUs.
func TestReadLostGPU(t *testing.T) {
	root := machine(t, map[string]string{
		"sys/bus/pci/devices/0000:83:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:83:00.0/class": "0x030200\n",
		"sys/module/nvidia/version": "590.48.01\n",
	})
	r := Reader{probe.Machine{Root: root, SMI: []string{"/bin/sh", "-c", "echo 'Unable to determine the device handle for GPU0000:83:00.0: Unknown Error'; exit 15"}}}
	s, err := r.Read(t.Context())
	if err == nil || s.Uses != nil || s.Versions["driver"] != "590.48.01" {
		t.Errorf("Read = %+v, %v", s, err)
	}
}
