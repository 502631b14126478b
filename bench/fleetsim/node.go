package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/tpm/softtpm"
)

// simNode is one simulated machine: a real client with a certificate of its
// own, and a report that changes as that of a real one would.
type simNode struct {
	name, pool string
	mac        fleet.MAC
	one        sync.Mutex // one call at a time, as nodeagent does it: one connection
	c          *api.NodeClient
	tpm        *softtpm.TPM // nil: it does not attest
	boot       *booted
	rnd        *rand.Rand
	fails      bool // does not come up with the new image
	failsBad   bool // nor with the bad one
	report     fleet.Report
	desired    fleet.Desired
	busy       int           // heartbeats until what it does is done
	away       *atomic.Int64 // how many nodes of its pool do not serve now
	most       *atomic.Int64 // the most there ever were
}

func newSimNode(i int, pool string, fails bool, url string, ca []byte) (*simNode, error) {
	c, err := api.NewNodeClient(url, ca)
	if err != nil {
		return nil, err
	}
	n := &simNode{name: fmt.Sprintf("n%05d", i), pool: pool, fails: fails, c: c, rnd: rand.New(rand.NewPCG(uint64(i), 1)),
		mac: fleet.MAC(fmt.Sprintf("52:54:00:%02x:%02x:%02x", i>>16&255, i>>8&255, i&255))}
	n.report = fleet.Report{
		Stage: fleet.StageSystem, BootID: fmt.Sprint("boot-", i, "-1"), Booted: fleet.SlotA, BootPath: "disk", Healthy: true,
		Kernel: "6.12.0-sim", Activity: "idle", Versions: map[string]string{"driver": "580.65.06", "nodeagent": "sim"},
		Slots: []fleet.SlotReport{{Slot: fleet.SlotA, State: fleet.SlotGood, Image: oldImage, Name: "sim 1", Generation: 1}, {Slot: fleet.SlotB, State: fleet.SlotEmpty}},
		Acted: 1,
	}
	for _, k := range []string{"systemd", "network", "gpu-count", "driver", "disk"} {
		n.report.Health = append(n.report.Health, fleet.CheckResult{Name: k, Status: fleet.CheckPassed, Class: fleet.FaultSoftware, Required: true, Detail: "as expected"})
	}
	return n, nil
}

func (n *simNode) inventory() *fleet.Inventory {
	v := &fleet.Inventory{Vendor: "Simulated", Product: "Node 8", Serial: n.name, CPU: "sim", CPUs: 192, MemoryBytes: 2 << 40, TPM: "simulated"}
	for i := range 4 {
		v.Disks = append(v.Disks, fleet.Disk{Name: fmt.Sprint("nvme", i, "n1"), Model: "sim", SizeBytes: 1 << 42, SectorSize: 512})
		v.NICs = append(v.NICs, fleet.NIC{Name: fmt.Sprint("eth", i), MAC: n.mac, Driver: "mlx5_core", Up: true})
	}
	for i := range 16 {
		v.PCI = append(v.PCI, fmt.Sprintf("0000:%02x:00.0 10de:2330 0302", i))
	}
	return v
}

// join enrols the node as nodeagent does, TPM arithmetic aside.
func (n *simNode) join(ctx context.Context) error {
	key, csr, err := api.NewNodeKey()
	if err != nil {
		return err
	}
	ek, ak := []byte("ek "+n.name), []byte("ak "+n.name)
	if n.tpm != nil {
		ak = n.tpm.AK()
	}
	r, err := n.c.Enrol(ctx, &api.EnrolRequest{EKPublic: ek, AKPublic: ak, CSR: csr, MACs: []fleet.MAC{n.mac}, Stage: fleet.StageSystem, BootID: n.report.BootID})
	if err != nil {
		return err
	}
	if r.Status != api.EnrolChallenge {
		return fmt.Errorf("enrolment is %s: %s", r.Status, r.Reason)
	}
	a, err := n.c.Activate(ctx, &api.ActivateRequest{Session: r.Session, Secret: openCredential(r.CredentialBlob, ek, ak)})
	if err != nil {
		return err
	}
	return n.c.UseCertificate(a.Certificate, key)
}

// errBackwards is the one thing a server must never do to a node.
var errBackwards = errors.New("the server's wish went back to an older generation")

// beat sends one heartbeat and acts on what is wanted.
func (n *simNode) beat(ctx context.Context, first bool) (time.Duration, error) {
	r := n.report
	r.Slots = append([]fleet.SlotReport(nil), r.Slots...)
	r.Time = time.Now()
	r.Metrics = map[string]float64{}
	for g := range 8 {
		r.Metrics[fmt.Sprintf("gpu.%d.temperature_celsius", g)] = 40 + float64(n.rnd.IntN(30))
		r.Metrics[fmt.Sprintf("gpu.%d.sm_clock_hertz", g)] = 1.9e9
	}
	for i := range r.Health {
		r.Health[i].Millis = int64(n.rnd.IntN(50))
	}
	if first {
		r.Inventory = n.inventory()
	}
	n.one.Lock()
	began := time.Now()
	a, err := n.c.Heartbeat(ctx, &r)
	n.one.Unlock()
	took := time.Since(began)
	if err != nil {
		return took, err
	}
	if a.Desired.Generation < n.desired.Generation {
		return took, fmt.Errorf("node %s: %w: %d after %d", n.name, errBackwards, a.Desired.Generation, n.desired.Generation)
	}
	n.desired = a.Desired
	n.act()
	return took, nil
}

// act goes on with what the node does: an installation and a trial of a few
// heartbeats.
func (n *simNode) act() {
	r, d := &n.report, n.desired
	if n.busy > 0 {
		if n.busy--; n.busy == 0 {
			n.finish()
		}
		return
	}
	if d.Image == "" || d.Generation <= r.Acted {
		return
	}
	r.Acted = d.Generation
	if d.Image == r.BootedImage() {
		return
	}
	other := r.Booted.Other()
	r.Slots[other.Index()] = fleet.SlotReport{Slot: other, State: fleet.SlotTrying, Image: d.Image, Generation: d.Generation, TriesLeft: 1}
	r.Activity, r.Healthy, n.busy = "installing", false, 2
	now := n.away.Add(1)
	for was := n.most.Load(); now > was && !n.most.CompareAndSwap(was, now); was = n.most.Load() {
	}
}

func (n *simNode) finish() {
	r := &n.report
	r.Activity, r.Healthy = "idle", true
	n.away.Add(-1)
	r.BootID += "'"
	for i := range r.Slots {
		s := &r.Slots[i]
		if s.State != fleet.SlotTrying {
			continue
		}
		if n.fails && s.Image == newImage || n.failsBad && s.Image == badImage {
			s.State, s.Reason = fleet.SlotBad, `health check "gpu-count" failed: want 8, saw 7`
			return
		}
		s.State, r.Booted = fleet.SlotGood, s.Slot
	}
}
