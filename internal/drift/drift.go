// Package drift compares a fleet with what it should be: nodes with their
// pools' images, driver branches with the calendar, firmware with pins and
// peers, GPUs with the images that come next. It is pure.
package drift

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/compat"
	"github.com/turnout-project/turnout/internal/fleet"
)

// Input is what is compared.
type Input struct {
	Now      time.Time
	Nodes    []*fleet.Node
	Pools    []*fleet.Pool
	Images   map[string]Image            // by digest
	Next     map[string][]string         // pool -> digests of the images that it has or gets
	Firmware map[string][]fleet.Firmware // by node, as BMCs told it
	Tables   *compat.Tables
}

// Image is what matters of a published one.
type Image struct {
	Architecture string
	Kernel       string
	Driver       compat.Driver
}

// Ending is how long before its end of life a branch is told of.
const Ending = 180 * 24 * time.Hour

// Find compares. Nodes that are pending count for nothing. Lists are sorted
// and never nil.
func Find(in Input) fleet.Drift {
	in.Nodes = slices.DeleteFunc(slices.Clone(in.Nodes), func(n *fleet.Node) bool { return n.State == fleet.NodePending })
	slices.SortFunc(in.Nodes, func(a, b *fleet.Node) int { return cmp.Compare(a.Name, b.Name) })
	return fleet.Drift{At: in.Now, OffImage: offImage(in), Drivers: drivers(in), Firmware: firmware(in), GPUs: gpus(in)}
}

func offImage(in Input) []fleet.DriftNode {
	out := []fleet.DriftNode{}
	wants := map[string]string{}
	for _, p := range in.Pools {
		wants[p.Name] = p.Image
	}
	for _, n := range in.Nodes {
		want, runs := wants[n.Pool], n.Reported.BootedImage()
		if want == "" || runs == want {
			continue
		}
		out = append(out, fleet.DriftNode{Node: n.Name, Pool: n.Pool, Runs: runs, Wants: want, Why: why(n, want)})
	}
	return out
}

// why says why a node does not run its pool's image, as far as it shows.
func why(n *fleet.Node, want string) string {
	for _, b := range n.Banned {
		if b.Image == want {
			return "the image is banned here: " + b.Reason
		}
	}
	switch {
	case n.State != fleet.NodeApproved:
		return strings.TrimSuffix(string(n.State)+": "+n.Reason, ": ")
	case n.Reported.BootedImage() == "":
		return "it runs from no slot"
	case n.Desired.Image == want:
		return "on its way: " + n.Desired.Reason
	case n.Desired.Image != "":
		return "something else was asked for: " + n.Desired.Reason
	}
	return "nobody has asked for it; a rollout moves it"
}

// driverOf is the driver that a node runs: by its own word, else by its
// image's packages.
func driverOf(in Input, n *fleet.Node) string {
	if n.Reported == nil {
		return ""
	}
	return cmp.Or(n.Reported.Versions["driver"], in.Images[n.Reported.BootedImage()].Driver.Version)
}

func drivers(in Input) []fleet.DriftDriver {
	by := map[string]*fleet.DriftDriver{}
	for _, n := range in.Nodes {
		v := driverOf(in, n)
		if v == "" {
			continue
		}
		if by[v] == nil {
			by[v] = &fleet.DriftDriver{Version: v}
			by[v].State, by[v].EOL, by[v].Source = branchState(in, compat.BranchOf(v))
		}
		by[v].Nodes = append(by[v].Nodes, n.Name)
		if !slices.Contains(by[v].Pools, n.Pool) {
			by[v].Pools = append(by[v].Pools, n.Pool)
		}
	}
	out := []fleet.DriftDriver{}
	for _, d := range by {
		slices.Sort(d.Pools)
		out = append(out, *d)
	}
	slices.SortFunc(out, func(a, b fleet.DriftDriver) int {
		x, errX := compat.ParseVersion(a.Version)
		y, errY := compat.ParseVersion(b.Version)
		if errX != nil || errY != nil {
			return cmp.Compare(a.Version, b.Version)
		}
		return cmp.Or(x.Compare(y), cmp.Compare(a.Version, b.Version))
	})
	return out
}

// branchState says how long a branch has to live.
func branchState(in Input, n int) (state, eol, source string) {
	b, ok := in.Tables.Branch(n)
	switch {
	case !ok:
		return "unknown", "", ""
	case b.Ended != "":
		return "ended", "", b.Source
	case len(b.EOL) == 0:
		return "unknown", "", b.Source
	}
	e := b.EOL[len(b.EOL)-1]
	end, err := e.Time()
	switch {
	case err != nil:
		return "unknown", e.Date, e.Source
	case !in.Now.Before(end):
		return "ended", e.Date, e.Source
	case !in.Now.Add(Ending).Before(end):
		return "ending", e.Date, e.Source
	}
	return "supported", e.Date, e.Source
}

// FirmwarePrefix begins the keys of fleet.Report.Versions that name firmware:
// "firmware.vbios".
const FirmwarePrefix = "firmware."

// pinCheck is the check by which an image holds a node's firmware to the
// recipe's pins.
const pinCheck = "gpu-firmware"

// Peers that must have a piece of firmware before one can stand out.
const minPeers = 3

// versionsOf are a node's firmware versions by component.
func versionsOf(in Input, n *fleet.Node) map[string]string {
	out := map[string]string{}
	for _, f := range in.Firmware[n.Name] {
		if f.Version != "" {
			out[f.ID] = f.Version
		}
	}
	if r := n.Reported; r != nil {
		if r.Inventory != nil && r.Inventory.BIOSVersion != "" {
			out["bios (node)"] = r.Inventory.BIOSVersion
		}
		for k, v := range r.Versions {
			if c, ok := strings.CutPrefix(k, FirmwarePrefix); ok && v != "" {
				out[c+" (node)"] = v
			}
		}
	}
	return out
}

func modelOf(n *fleet.Node) string {
	if n.Reported == nil || n.Reported.Inventory == nil {
		return ""
	}
	return strings.TrimSpace(n.Reported.Inventory.Vendor + " " + n.Reported.Inventory.Product)
}

func firmware(in Input) []fleet.DriftFirmware {
	out := []fleet.DriftFirmware{}
	count := map[[2]string]map[string]int{} // model, component -> version -> nodes
	for _, n := range in.Nodes {
		for c, v := range versionsOf(in, n) {
			k := [2]string{modelOf(n), c}
			if count[k] == nil {
				count[k] = map[string]int{}
			}
			count[k][v]++
		}
	}
	for _, n := range in.Nodes {
		if c, ok := pinned(n); ok {
			out = append(out, fleet.DriftFirmware{Node: n.Name, Model: modelOf(n), Component: "pins", Pin: c.Detail})
		}
		if modelOf(n) == "" {
			continue
		}
		vs := versionsOf(in, n)
		for _, c := range slices.Sorted(maps.Keys(vs)) {
			usual, peers := usualOf(count[[2]string{modelOf(n), c}])
			if usual != "" && usual != vs[c] {
				out = append(out, fleet.DriftFirmware{Node: n.Name, Model: modelOf(n), Component: c, Version: vs[c], Usual: usual, Peers: peers})
			}
		}
	}
	return out
}

// pinned returns the check of firmware pins if it does not pass.
func pinned(n *fleet.Node) (fleet.CheckResult, bool) {
	if n.Reported != nil {
		for _, c := range n.Reported.Health {
			if c.Name == pinCheck && c.Status == fleet.CheckFailed {
				return c, true
			}
		}
	}
	return fleet.CheckResult{}, false
}

// usualOf returns the version that more than half have, "" for none.
func usualOf(versions map[string]int) (string, int) {
	all := 0
	for _, k := range versions {
		all += k
	}
	for v, k := range versions {
		if all >= minPeers && 2*k > all {
			return v, k
		}
	}
	return "", 0
}

// deviceIDs returns the PCI device ids of a node's NVIDIA GPUs, upper case.
func deviceIDs(n *fleet.Node) []string {
	var out []string
	if n.Reported == nil || n.Reported.Inventory == nil {
		return nil
	}
	for _, p := range n.Reported.Inventory.PCI {
		f := strings.Fields(p) // "0000:3b:00.0 10de:2330 0302"
		if len(f) < 3 || !strings.HasPrefix(f[2], "03") {
			continue
		}
		if id, ok := strings.CutPrefix(strings.ToLower(f[1]), "10de:"); ok {
			if id = strings.ToUpper(id); !slices.Contains(out, id) {
				out = append(out, id)
			}
		}
	}
	return out
}

// boardOf names a GPU by its PCI device id.
func boardOf(t *compat.Tables, id string) string {
	for _, b := range t.Boards {
		if slices.Contains(b.PCI, id) {
			return b.ID
		}
	}
	return ""
}

// wanted are the rules that say a GPU and an image do not go together.
var wanted = []string{"arch-machine", "arch-branch", "arch-flavour", "board-minimum", "known-bad"}

func gpus(in Input) []fleet.DriftGPU {
	out := []fleet.DriftGPU{}
	have := map[[2]string][]string{} // pool, board or PCI id -> nodes
	for _, n := range in.Nodes {
		for _, id := range deviceIDs(n) {
			k := [2]string{n.Pool, cmp.Or(boardOf(in.Tables, id), "PCI 10de:"+strings.ToLower(id))}
			have[k] = append(have[k], n.Name)
		}
	}
	keys := slices.SortedFunc(maps.Keys(have), func(a, b [2]string) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
	for _, k := range keys {
		for _, digest := range in.Next[k[0]] {
			im := in.Images[digest]
			if im.Driver.Branch == 0 {
				continue
			}
			d := fleet.DriftGPU{Pool: k[0], Image: digest, Board: k[1], Nodes: have[k]}
			if strings.HasPrefix(k[1], "PCI ") {
				d.Rule, d.Message = "board-known", fmt.Sprintf("%s is in no table: whether %s drives it is not known", k[1], im.Driver)
				d.Hint = "give newer tables"
				out = append(out, d)
				continue
			}
			for _, f := range compat.Check(in.Tables, compat.Input{Now: in.Now, Architecture: im.Architecture, Kernel: compat.Kernel{Release: im.Kernel}, Driver: im.Driver, Boards: []string{k[1]}}) {
				if slices.Contains(wanted, f.Rule) && f.Severity == compat.Error {
					d.Rule, d.Message, d.Hint, d.Source = f.Rule, f.Message, f.Hint, f.Source
					out = append(out, d)
				}
			}
		}
	}
	return out
}

// DriverOf finds the driver among an image's packages: by name and Debian
// version.
func DriverOf(t *compat.Tables, packages map[string]string) compat.Driver {
	var d compat.Driver
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		row, ok := t.Package(name)
		if !ok || !row.Family {
			continue
		}
		v := upstream(packages[name])
		if compat.BranchOf(v) == 0 {
			continue
		}
		if d.Version == "" {
			d.Version, d.Branch = v, compat.BranchOf(v)
		}
		d.Flavour = cmp.Or(d.Flavour, row.Flavour)
	}
	return d
}

// upstream cuts epoch and revision off a Debian version.
func upstream(v string) string {
	if _, rest, ok := strings.Cut(v, ":"); ok {
		v = rest
	}
	if i := strings.LastIndexByte(v, '-'); i > 0 {
		v = v[:i]
	}
	return v
}
