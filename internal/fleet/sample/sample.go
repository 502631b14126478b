// Package sample holds nodes as a fleet has them, for tests of what people
// see and of what documents tell them to do.
package sample

import (
	"fmt"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
)

// Node returns a node that runs image from slot A, healthy and attested, and
// has was in slot B: eight GPUs, of which the fourth is slower than its peers.
func Node(name, pool string, image, was *fleet.Image, now time.Time) *fleet.Node {
	return &fleet.Node{
		Name: name, Pool: pool, State: fleet.NodeApproved, LastSeen: now, Created: now.Add(-time.Hour), EKHash: manifest.DigestOf([]byte(name))[7:],
		MACs:    []fleet.MAC{fleet.MAC(fmt.Sprintf("52:54:%s:%s:%s:%s", hex(name, 0), hex(name, 2), hex(name, 4), hex(name, 6)))},
		Desired: fleet.Desired{Image: image.Digest, Generation: 2},
		Verdict: &fleet.Verdict{Accepted: true, Image: image.Digest, Path: "disk", Phase: "enter-initrd:leave-initrd", Bank: "sha256", At: now, BootID: "b1", Summary: "runs " + image.Name + " " + image.Version + " by boot path disk; PCR 4 and PCR 11 are as built"},
		Reported: &fleet.Report{Stage: fleet.StageSystem, BootID: "b1", Booted: fleet.SlotA, BootPath: "disk", Acted: 2, Activity: "idle", Kernel: image.Kernel, Healthy: true, Time: now, Metrics: gauges(),
			Versions: map[string]string{"driver": "580.82.07", "nodeagent": "1.0"},
			Slots:    []fleet.SlotReport{{Slot: fleet.SlotA, State: fleet.SlotGood, Image: image.Digest, Name: image.Name + " " + image.Version, Generation: 2, RootHash: manifest.DigestOf([]byte("r"))[7:]}, {Slot: fleet.SlotB, State: fleet.SlotGood, Image: was.Digest, Name: was.Name + " " + was.Version, Generation: 1}},
			Inventory: &fleet.Inventory{Vendor: "QEMU", Product: "Standard PC (Q35)", CPU: "EPYC 9654", CPUs: 192, MemoryBytes: 1 << 40, TPM: "IBM SW TPM", SecureBoot: true,
				Disks: []fleet.Disk{{Name: "nvme0n1", SizeBytes: 1 << 40, SectorSize: 512}}, NICs: []fleet.NIC{{Name: "enp1s0", MAC: "52:54:00:77:00:01", Driver: "mlx5_core", Up: true}}, PCI: []string{"0000:3b:00.0 10de:2330 0302"}},
			Health: []fleet.CheckResult{{Name: "kernel", Status: fleet.CheckPassed, Class: fleet.FaultSoftware, Required: true, Detail: image.Kernel}, {Name: "gpu-count", Status: fleet.CheckPassed, Class: fleet.FaultHardware, Required: true, Detail: "8", Millis: 41}}},
	}
}

// gauges is what eight GPUs measure, of which the fourth is slow.
func gauges() map[string]float64 {
	out := map[string]float64{"nic.enp1s0.rx_errors_total": 0}
	for i := range 8 {
		gpu := fmt.Sprintf("gpu.%d.", i)
		out[gpu+"temperature_celsius"], out[gpu+"sm_clock_megahertz"], out[gpu+"power_watts"], out[gpu+"ecc_uncorrected_total"] = float64(61+i%3), 1980, 642.5, 0
	}
	out["gpu.3.sm_clock_megahertz"] = 1410
	return out
}

func hex(s string, i int) string { return manifest.DigestOf([]byte(s))[7+i : 9+i] }
