package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/tpm/device"
	"github.com/turnout-project/turnout/internal/tpm/swtpm"
)

// agent is a node with a real (software) TPM that does what the server wants
// at once, or fails at it. It stands for nodeagent, which is tested on
// virtual machines.
type agent struct {
	t      *testing.T
	c      *api.NodeClient
	mu     sync.Mutex
	r      fleet.Report
	hold   bool   // does not act
	fails  string // image that fails its check here
	cancel context.CancelFunc
	done   chan struct{}
}

var ctx = context.Background()

// join enrols a node over its TPM and has it install its pool's image.
func (l *lab) join(mac fleet.MAC) *agent {
	l.t.Helper()
	d, err := device.OpenPath(ctx, swtpm.Start(l.t).Socket)
	if err != nil {
		l.t.Fatal(err)
	}
	defer d.Close()
	c := l.client()
	if err := enrol(c, d, mac); err != nil {
		l.t.Fatal(err)
	}
	return newAgent(l.t, c)
}

// newAgent brings an enrolled node to life.
func newAgent(t *testing.T, c *api.NodeClient) *agent {
	a := &agent{t: t, c: c, done: make(chan struct{})}
	a.r = fleet.Report{Stage: fleet.StageInstaller, BootID: "boot-0", Activity: "idle",
		Slots: []fleet.SlotReport{{Slot: fleet.SlotA, State: fleet.SlotEmpty}, {Slot: fleet.SlotB, State: fleet.SlotEmpty}}}
	run, cancel := context.WithCancel(ctx)
	a.cancel = cancel
	t.Cleanup(func() { cancel(); <-a.done })
	go a.live(run)
	return a
}

func enrol(c *api.NodeClient, d *device.Device, mac fleet.MAC) error {
	ek, err := d.EK()
	if err != nil {
		return err
	}
	ak, err := d.AK()
	if err != nil {
		return err
	}
	key, csr, err := api.NewNodeKey()
	if err != nil {
		return err
	}
	r, err := c.Enrol(ctx, &api.EnrolRequest{EKPublic: ek.Public, EKCertificate: ek.Certificate, AKPublic: ak, CSR: csr, MACs: []fleet.MAC{mac}})
	if err != nil {
		return err
	}
	secret, err := d.Activate(r.CredentialBlob, r.EncryptedSecret)
	if err != nil {
		return err
	}
	act, err := c.Activate(ctx, &api.ActivateRequest{Session: r.Session, Secret: secret})
	if err != nil {
		return err
	}
	return c.UseCertificate(act.Certificate, key)
}

// live sends heartbeats until ctx ends; a server that is away is waited for.
func (a *agent) live(ctx context.Context) {
	defer close(a.done)
	for ctx.Err() == nil {
		a.mu.Lock()
		rep := a.r
		rep.Slots = append([]fleet.SlotReport(nil), a.r.Slots...)
		a.mu.Unlock()
		h, err := a.c.Heartbeat(ctx, &rep)
		if err == nil {
			a.act(h.Desired)
		}
		select {
		case <-ctx.Done():
		case <-time.After(30 * time.Millisecond):
		}
	}
}

func (a *agent) act(d fleet.Desired) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.hold || d.Generation <= a.r.Acted || d.Image == "" {
		return
	}
	a.r.Acted = d.Generation
	target := fleet.SlotA
	if a.r.Booted != fleet.NoSlot {
		target = a.r.Booted.Other()
	}
	if d.Image == a.r.BootedImage() {
		return
	}
	s := fleet.SlotReport{Slot: target, State: fleet.SlotGood, Image: d.Image, Generation: d.Generation}
	if d.Image == a.fails {
		s.State, s.Reason = fleet.SlotBad, `health check "gpu-count" failed: want 8, saw 7`
		a.r.BootID += "+"
	} else {
		a.r.Stage, a.r.Booted, a.r.BootPath, a.r.Healthy = fleet.StageSystem, target, "disk", true
		a.r.BootID += "'"
	}
	a.r.Slots[target.Index()] = s
}

func (a *agent) set(fn func(*agent)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	fn(a)
}

// image makes a small signed image in a folder.
func image(t *testing.T, version string, key ed25519.PrivateKey) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), version)
	l, err := oci.Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	m := manifest.Manifest{SchemaVersion: manifest.Version, Name: "rack-base", Version: version, Architecture: "amd64", Kernel: manifest.Kernel{Release: "6.1.0-" + version}}
	o := oci.Manifest{ArtifactType: manifest.ArtifactType}
	put := func(what, media string) manifest.Blob {
		d, err := l.PutBytes(media, bytes.Repeat([]byte(what+version), 1000))
		if err != nil {
			t.Fatal(err)
		}
		o.Layers = append(o.Layers, d)
		return manifest.Blob{Digest: d.Digest, SizeBytes: d.Size}
	}
	m.Root, m.Verity.Blob = put("root", manifest.MediaRoot), put("verity", manifest.MediaVerity)
	m.UKI, m.Installer, m.Loader = put("uki", manifest.MediaUKI), put("installer", manifest.MediaInstaller), put("loader", manifest.MediaLoader)
	b, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if o.Config, err = l.PutBytes(manifest.MediaConfig, b); err != nil {
		t.Fatal(err)
	}
	d, err := l.PutManifest(o)
	if err != nil {
		t.Fatal(err)
	}
	sig, err := manifest.Sign(key, d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.PutSignature(d, sig); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (l *lab) node(name string) (n fleet.Node) {
	l.t.Helper()
	if err := json.Unmarshal([]byte(l.must("node", "show", name, "-o", "json")), &n); err != nil {
		l.t.Fatal(err)
	}
	return n
}

func (l *lab) runs(name, label string) {
	l.t.Helper()
	l.until(name+" runs "+label, func() bool {
		return strings.Contains(l.must("node", "list"), label+" (") && strings.Contains(line(l.must("node", "list"), name), label+" (")
	})
}

// line returns the line of a table that starts with a name.
func line(table, name string) string {
	for s := range strings.Lines(table) {
		if strings.HasPrefix(s, name+" ") {
			return s
		}
	}
	return ""
}

// TestStory is a fleet's life through the commands alone, with the server
// killed in the middle of a rollout.
func TestStory(t *testing.T) {
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	pem, err := manifest.MarshalPublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	keyFile := filepath.Join(t.TempDir(), "image.pub")
	if err := os.WriteFile(keyFile, pem, 0o600); err != nil {
		t.Fatal(err)
	}
	l := newLab(t, "--image-key", keyFile)
	l.start()
	if r := l.do("serve"); r.code != exitRefused || !strings.Contains(r.errOut, "another pxeserver runs") {
		t.Fatalf("second server on the same state: %+v", r)
	}

	_, stranger, _ := ed25519.GenerateKey(nil)
	if r := l.do("image", "publish", image(t, "0.9", stranger)); r.code != exitRefused || !strings.Contains(r.errOut, "image_keys") {
		t.Errorf("image of a stranger: %+v; want refused", r)
	}
	for _, v := range []string{"1.0", "1.1", "1.2"} {
		l.must("image", "publish", image(t, v, key))
	}
	for _, p := range []string{"canary", "rack"} {
		l.must("pool", "set", p, "--image", "rack-base 1.0")
	}
	nodes := map[string]*agent{}
	for i, name := range []string{"n1", "n2", "n3"} {
		mac := "52:54:00:00:00:0" + string(rune('1'+i))
		l.must("node", "add", name, "--mac", mac, "--pool", map[bool]string{true: "canary", false: "rack"}[i == 0])
		nodes[name] = l.join(fleet.MAC(mac))
	}
	for name := range nodes {
		l.runs(name, "rack-base 1.0")
	}

	plan := l.must("rollout", "plan", "--image", "rack-base 1.1", "--stage", "canary", "--stage", "rack", "--max-unavailable", "50%")
	if !strings.Contains(plan, "stage 2: pool rack, 2 nodes, 1 at once") {
		t.Errorf("plan:\n%s", plan)
	}
	nodes["n1"].set(func(a *agent) { a.hold = true })
	l.must("rollout", "start", "--image", "rack-base 1.1", "--stage", "canary", "--stage", "rack", "--bake", "10ms", "--yes")
	l.until("the canary is asked", func() bool { return l.node("n1").Desired.Rollout == "r1" })
	l.kill()
	l.start()
	nodes["n1"].set(func(a *agent) { a.hold = false })
	if r := l.do("rollout", "status", "r1", "--wait"); r.code != exitOK || !strings.Contains(r.out, "3 done") {
		t.Fatalf("rollout over a killed server: %+v", r)
	}

	l.must("slot", "flip", "--pool", "rack", "--max-unavailable", "50%", "--yes")
	l.runs("n2", "rack-base 1.0")
	l.runs("n3", "rack-base 1.0")
	if r := l.do("slot", "flip", "--rollout", "r1", "--dry-run"); r.code != exitOK || !strings.Contains(r.out, "n1") || strings.Contains(r.out, "n2") {
		t.Errorf("flip of what r1 moved and still runs its image: %+v; want n1 alone", r)
	}
	if r := l.do("slot", "flip", "n1", "--pool", "rack"); r.code != exitUsage {
		t.Errorf("flip of nodes and a pool: %+v; want it refused", r)
	}
	l.must("slot", "flip", "--pool", "rack", "--now", "--yes")
	l.runs("n2", "rack-base 1.1")
	l.runs("n3", "rack-base 1.1")
	if plan := l.must("rollout", "plan", "--image", "rack-base 1.2", "--stage", "canary", "--window", "sat,sun 02:00-04:00 Europe/Berlin"); !strings.Contains(plan, "window sat,sun 02:00-04:00 Europe/Berlin") {
		t.Errorf("plan with a window:\n%s", plan)
	}

	nodes["n1"].set(func(a *agent) { a.fails = l.node("n1").Desired.Image })
	if r := l.do("slot", "flip", "n1", "--dry-run"); r.code != exitOK || !strings.Contains(r.out, "would boot slot A instead of B") {
		t.Errorf("dry run of a flip: %+v", r)
	}
	if r := commandIn("", "--config", l.config, "slot", "flip", "n1"); r.code != exitRefused || !strings.Contains(r.errOut, "--yes") {
		t.Errorf("flip with nobody to ask: %+v; want refused", r)
	}
	l.must("slot", "flip", "n2", "--yes", "--reason", "test")
	l.runs("n2", "rack-base 1.0")

	var bad string
	for s := range strings.Lines(l.must("image", "list", "-o", "json")) {
		if d, ok := strings.CutPrefix(strings.TrimSpace(s), `"digest": "`); ok && bad == "" {
			bad = strings.TrimSuffix(d, `",`) // the newest
		}
	}
	nodes["n1"].set(func(a *agent) { a.fails = bad })
	before := l.node("n3").Desired
	l.must("rollout", "start", "--image", bad, "--stage", "canary", "--stage", "rack", "--yes")
	r := l.do("rollout", "status", "--wait")
	if r.code != exitRollout || !strings.Contains(r.errOut, "gpu-count") || !strings.Contains(line(r.out, "  n1"), "want 8, saw 7") {
		t.Errorf("failed rollout: %+v; want status 5 and the failed check", r)
	}
	if r := l.do("rollout", "undo", "r2", "--yes"); r.code != exitRefused || !strings.Contains(r.errOut, "none of its nodes") {
		t.Errorf("undo of a rollout that moved nobody: %+v; want it refused", r)
	}
	if after := l.node("n3").Desired; after != before {
		t.Errorf("n3 wants %+v, before %+v; want it untouched", after, before)
	}
	l.runs("n1", "rack-base 1.1")
	if show := l.must("node", "show", "n1"); !strings.Contains(show, "banned") {
		t.Errorf("node show n1:\n%s", show)
	}
	if r := l.do("reimage", "n1", "--image", bad, "--yes"); r.code != exitRefused || !strings.Contains(r.errOut, "node unban n1") {
		t.Errorf("reimage with a banned image: %+v; want refused, with the way out", r)
	}
	if r := l.do("slot", "flip", "n1", "--yes"); r.code != exitRefused || !strings.Contains(r.errOut, "is bad, not good") {
		t.Errorf("flip to a bad slot: %+v; want refused", r)
	}
	if r := l.do("verdict", "show", "n1"); r.code != exitFailure || !strings.Contains(r.errOut, "not attested") {
		t.Errorf("verdict of a node that never attested: %+v", r)
	}
	if out := l.must("attest", "n1", "--wait", "0"); !strings.Contains(out, "asked to attest") {
		t.Errorf("attest: %s", out)
	}
	if r := l.do("attest", "n1", "--wait", "1s"); r.code != exitFailure || !strings.Contains(r.errOut, "did not attest in time") {
		t.Errorf("attest of a node whose agent knows no such favour: %+v", r)
	}
	if gc := l.must("image", "gc", "--dry-run", "--keep", "1"); strings.Contains(gc, "removed") || !strings.Contains(gc, "stays: in slot") {
		t.Errorf("what could be removed:\n%s", gc)
	}
	events := l.must("events", "--last", "1000")
	for _, want := range []string{"image.published", "node.enrolled", "rollout.started", "rollout.halted", "slot.flip", "image.banned"} {
		if !strings.Contains(events, want) {
			t.Errorf("events do not tell of %s", want)
		}
	}
}
