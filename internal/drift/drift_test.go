package drift

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/turnout-project/turnout/internal/compat"
	"github.com/turnout-project/turnout/internal/fleet"
)

func node(name, pool, image string) *fleet.Node {
	return &fleet.Node{Name: name, Pool: pool, State: fleet.NodeApproved, Reported: &fleet.Report{Booted: fleet.SlotA, Stage: fleet.StageSystem,
		Slots: []fleet.SlotReport{{Slot: fleet.SlotA, State: fleet.SlotGood, Image: image}}, Versions: map[string]string{},
		Inventory: &fleet.Inventory{Vendor: "V", Product: "P", BIOSVersion: "2.3"}}}
}

func input(nodes ...*fleet.Node) Input {
	return Input{Now: time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC), Nodes: nodes, Tables: compat.Default(),
		Pools:  []*fleet.Pool{{Name: "rack", Image: "new"}, {Name: "free"}},
		Images: map[string]Image{"new": {Architecture: "amd64", Driver: compat.Driver{Flavour: "open", Branch: 595, Version: "595.71.05"}}, "old": {Driver: compat.Driver{Branch: 535, Version: "535.261.03"}}},
		Next:   map[string][]string{"rack": {"new"}}}
}

func TestOffImage(t *testing.T) {
	a, b, c, d, e, f := node("a", "rack", "new"), node("b", "rack", "old"), node("c", "rack", "old"), node("d", "rack", "old"), node("e", "free", "old"), node("f", "rack", "")
	b.Banned = []fleet.Ban{{Image: "new", Reason: "check gpu failed"}}
	c.State, c.Reason = fleet.NodeCordoned, "DIMM"
	d.Desired = fleet.Desired{Image: "new", Reason: "rollout r1"}
	f.State = fleet.NodePending
	want := []fleet.DriftNode{
		{Node: "b", Pool: "rack", Runs: "old", Wants: "new", Why: "the image is banned here: check gpu failed"},
		{Node: "c", Pool: "rack", Runs: "old", Wants: "new", Why: "cordoned: DIMM"},
		{Node: "d", Pool: "rack", Runs: "old", Wants: "new", Why: "on its way: rollout r1"},
	}
	if diff := cmp.Diff(want, Find(input(f, e, d, c, b, a)).OffImage); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDrivers(t *testing.T) {
	a, b, c, d := node("a", "rack", "new"), node("b", "rack", "old"), node("c", "free", "old"), node("d", "rack", "unknown")
	a.Reported.Versions["driver"] = "580.95.05" // its own word counts more than its image's
	e := node("e", "rack", "")
	e.Reported = nil
	got := Find(input(a, b, c, d, e)).Drivers
	want := []fleet.DriftDriver{
		{Version: "535.261.03", Nodes: []string{"b", "c"}, Pools: []string{"free", "rack"}, State: "ended", EOL: "2026-06"},
		{Version: "580.95.05", Nodes: []string{"a"}, Pools: []string{"rack"}, State: "supported", EOL: "2028-06"},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(fleet.DriftDriver{}, "Source")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	in := input()
	for at, want := range map[string]string{"2026-09-30": "supported", "2026-10-15": "ending", "2027-03-31": "ending", "2027-04-01": "ended"} {
		in.Now, _ = time.Parse(time.DateOnly, at)
		if got, _, source := branchState(in, 595); got != want || source == "" {
			t.Errorf("R595 on %s is %s (%s); want %s", at, got, source, want)
		}
	}
	if got, _, _ := branchState(in, 999); got != "unknown" {
		t.Errorf("a branch in no table is %s", got)
	}
}

func TestFirmware(t *testing.T) {
	var nodes []*fleet.Node
	in := input()
	in.Firmware = map[string][]fleet.Firmware{}
	for i := range 5 {
		n := node(fmt.Sprint("n", i), "rack", "new")
		n.Reported.Versions[FirmwarePrefix+"vbios"] = "96.00.5E"
		in.Firmware[n.Name] = []fleet.Firmware{{ID: "BMC", Version: "1.2"}, {ID: "empty"}}
		nodes = append(nodes, n)
	}
	nodes[1].Reported.Inventory.BIOSVersion = "2.1"
	nodes[2].Reported.Versions[FirmwarePrefix+"vbios"] = "96.00.10"
	nodes[3].Reported.Health = []fleet.CheckResult{{Name: "gpu-firmware", Status: fleet.CheckFailed, Detail: "bios 2.3, want at least 2.4"}}
	in.Firmware["n4"] = []fleet.Firmware{{ID: "BMC", Version: "1.1"}}
	nodes = append(nodes, node("x1", "rack", "new"), node("x2", "rack", "new")) // two of another model have no usual version
	for i, v := range []string{"1", "2"} {
		nodes[5+i].Reported.Inventory = &fleet.Inventory{Vendor: "W", Product: "Q", BIOSVersion: v}
	}
	in.Nodes = nodes
	want := []fleet.DriftFirmware{
		{Node: "n1", Model: "V P", Component: "bios (node)", Version: "2.1", Usual: "2.3", Peers: 4},
		{Node: "n2", Model: "V P", Component: "vbios (node)", Version: "96.00.10", Usual: "96.00.5E", Peers: 4},
		{Node: "n3", Model: "V P", Component: "pins", Pin: "bios 2.3, want at least 2.4"},
		{Node: "n4", Model: "V P", Component: "BMC", Version: "1.1", Usual: "1.2", Peers: 4},
	}
	if diff := cmp.Diff(want, Find(in).Firmware); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The next image drops an architecture, or was never for a board.
func TestGPUs(t *testing.T) {
	v100, h100, odd, none := node("a", "rack", "old"), node("b", "rack", "old"), node("c", "rack", "old"), node("d", "rack", "old")
	v100.Reported.Inventory.PCI = []string{"0000:3b:00.0 10de:1db1 0302", "0000:86:00.0 10de:1db1 0302"}
	h100.Reported.Inventory.PCI = []string{"0000:3b:00.0 10de:2330 0302", "0000:01:00.0 8086:1572 0200"}
	odd.Reported.Inventory.PCI = []string{"0000:3b:00.0 10de:ffff 0302", "0000:05:00.0 10de:22a3 0680"}
	got := Find(input(v100, h100, odd, none)).GPUs
	var have []string
	for _, g := range got {
		have = append(have, g.Board+" "+g.Rule+" "+fmt.Sprint(g.Nodes))
		if g.Message == "" || g.Image != "new" {
			t.Errorf("%+v", g)
		}
	}
	want := []string{"PCI 10de:ffff board-known [c]", "v100-sxm arch-branch [a]", "v100-sxm arch-flavour [a]"}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDriverOf(t *testing.T) {
	for want, packages := range map[compat.Driver]map[string]string{
		{}: {"linux-image-amd64": "6.1"},
		{Flavour: "open", Branch: 535, Version: "535.261.03"}:        {"nvidia-open-kernel-support": "535.261.03-1", "firmware-nvidia-gsp": "535.261.03-1", "bash": "5.2"},
		{Flavour: "proprietary", Branch: 535, Version: "535.309.01"}: {"nvidia-kernel-support": "1:535.309.01-0+deb12u1", "nvidia-modprobe": "550.1"},
	} {
		if got := DriverOf(compat.Default(), packages); got != want {
			t.Errorf("DriverOf(%v) = %+v, want %+v", packages, got, want)
		}
	}
}
