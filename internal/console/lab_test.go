package console_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"net"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/bmc"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/fleet/sample"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/server"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/store/mem"
)

var ctx = context.Background()

// lab is a server with a fleet, over real TLS.
type lab struct {
	t      *testing.T
	url    string
	dir    string // of serial consoles
	o      server.Options
	tokens map[string]string // by role
	caPEM  []byte
	op     *api.Client
	key    ed25519.PrivateKey
	ts     *httptest.Server
	cut    context.CancelFunc // ends all requests
	addr   string             // to start at, "" for any
	ahead  time.Duration      // of the server's clock
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t, tokens: map[string]string{}, dir: t.TempDir()}
	ca, caPEM, _, err := server.NewCA(time.Now())
	l.must(err)
	pub, key, err := ed25519.GenerateKey(nil)
	l.must(err)
	l.key = key
	images, err := oci.Create(t.TempDir())
	l.must(err)
	var lines []byte
	for _, role := range []string{"viewer", "operator", "admin"} {
		tok, line := server.NewToken(role+"-alice", role)
		l.tokens[role], lines = tok, append(lines, line...)
	}
	keys, err := bmc.NewKeys(make([]byte, 32))
	l.must(err)
	tokens, err := server.ParseTokens(lines)
	l.must(err)
	l.o = server.Options{Store: mem.New(), Images: images, CA: ca, TPM: &server.Trust{}, Tokens: tokens, ImageKeys: []ed25519.PublicKey{pub},
		Heartbeat: time.Minute, NodeCert: time.Hour, BMC: keys, ConsoleLogs: filepath.Join(l.dir, "{node}.log"), Version: "test", Now: func() time.Time { return time.Now().Add(l.ahead) }}
	l.start()
	l.caPEM = caPEM
	l.op = l.as("operator")
	return l
}

// as is a client with a role.
func (l *lab) as(role string) *api.Client {
	l.t.Helper()
	c, err := api.NewClient(l.url, l.caPEM, l.tokens[role])
	l.must(err)
	return c
}

// start starts a server on the store, as after a restart.
func (l *lab) start() {
	l.t.Helper()
	s := server.New(l.o)
	cert, err := l.o.CA.ServerCertificate([]string{"127.0.0.1"}, time.Now())
	l.must(err)
	l.ts = httptest.NewUnstartedServer(s.Handler())
	if l.addr != "" { // as before the stop
		l.ts.Listener.Close()
		if l.ts.Listener, err = net.Listen("tcp", l.addr); err != nil {
			l.t.Fatal(err)
		}
	}
	l.ts.TLS = s.TLS(cert)
	base, cut := context.WithCancel(ctx)
	l.cut = cut
	l.ts.Config.BaseContext = func(net.Listener) context.Context { return base }
	l.ts.StartTLS()
	l.url = l.ts.URL
	ts := l.ts
	l.t.Cleanup(func() { cut(); ts.CloseClientConnections(); ts.Close() })
}

// stop stops the server; start brings it back at the same address.
func (l *lab) stop() {
	l.addr = l.ts.Listener.Addr().String()
	l.cut()
	l.ts.Config.Close() //nolint:errcheck // it is over
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// publish makes an image with a kernel of its own and publishes it.
func (l *lab) publish(version, kernel string) *fleet.Image {
	l.t.Helper()
	var layers []oci.Descriptor
	put := func(media, title string, b []byte) manifest.Blob {
		d := manifest.DigestOf(b)
		l.must(l.op.PutBlob(ctx, d, bytes.NewReader(b)))
		layers = append(layers, oci.Descriptor{MediaType: media, Digest: d, Size: int64(len(b)), Annotations: map[string]string{oci.AnnotationTitle: title}})
		return manifest.Blob{Digest: d, SizeBytes: int64(len(b))}
	}
	text := func(what string) []byte { return fmt.Appendf(nil, "%s of %s", what, version) }
	packages, err := json.Marshal([]lock.Package{
		{Name: "linux-image-amd64", Version: kernel, Architecture: "amd64"}, {Name: "systemd", Version: "252.39-1~deb12u1", Architecture: "amd64"},
		{Name: "only-in-" + version, Version: "1", Architecture: "amd64"}})
	l.must(err)
	m := manifest.Manifest{SchemaVersion: manifest.Version, Name: "rack-base", Version: version, Architecture: "amd64",
		Kernel: manifest.Kernel{Release: kernel + "-amd64", Package: "linux-image-amd64", Version: kernel},
		Root:   put(manifest.MediaRoot, "root.squashfs", bytes.Repeat(text("root"), 4000)), Verity: manifest.Verity{Blob: put(manifest.MediaVerity, "root.verity", text("verity")), RootHash: fmt.Sprintf("%064x", len(version))},
		UKI: put(manifest.MediaUKI, "slot.efi", text("uki")), Installer: put(manifest.MediaInstaller, "installer.efi", text("installer")), Loader: put(manifest.MediaLoader, "systemd-boot.efi", text("loader")),
		Measurements: manifest.Measurements{StubVersion: "252.39", Paths: []manifest.BootPath{{Name: "disk", PCR4: manifest.Digests{"sha256": manifest.DigestOf(text("pcr4"))[7:]}}}},
		Health:       manifest.Health{Soak: manifest.Duration(time.Minute), Checks: []manifest.Check{{Name: "kernel", Kernel: "pinned"}, {Name: "gpu-count", Exec: []string{"gpu-count", "8"}, Class: "hardware"}}}}
	put(manifest.MediaSBOM, "sbom.spdx.json", []byte(`{"spdxVersion":"SPDX-2.3"}`))
	put(manifest.MediaPackageList, "packages.json", packages)
	config, err := m.Encode()
	l.must(err)
	cd := manifest.DigestOf(config)
	l.must(l.op.PutBlob(ctx, cd, bytes.NewReader(config)))
	raw, err := json.Marshal(oci.Manifest{SchemaVersion: 2, MediaType: oci.MediaManifest, ArtifactType: manifest.ArtifactType, Layers: layers,
		Config: oci.Descriptor{MediaType: manifest.MediaConfig, Digest: cd, Size: int64(len(config))}})
	l.must(err)
	sig, err := manifest.Sign(l.key, manifest.DigestOf(raw))
	l.must(err)
	i, err := l.op.Publish(ctx, api.PublishRequest{Manifest: raw, Signature: sig})
	l.must(err)
	return i
}

// seed puts a fleet of n nodes in racks of 20, with all that can be the
// matter with a node, in fixed places.
func (l *lab) seed(n int, image, was *fleet.Image) {
	l.t.Helper()
	now := l.o.Now()
	l.must(l.o.Store.Update(ctx, func(tx store.Tx) error {
		for _, p := range []string{"canary", "train", "inference"} {
			if err := tx.PutPool(ctx, &fleet.Pool{Name: p, Image: was.Digest}); err != nil {
				return err
			}
		}
		for i := range n {
			pool := "train"
			if i < 4 {
				pool = "canary"
			} else if i%3 == 0 {
				pool = "inference"
			}
			node := sample.Node(fmt.Sprintf("r%d-n%02d", 1+i/20, 1+i%20), pool, was, was, now)
			spoil(node, i, image, now)
			if err := tx.CreateNode(ctx, node); err != nil {
				return err
			}
		}
		return story(ctx, tx, "r1-n01", image, now.Add(-20*time.Minute))
	}))
}

func spoil(n *fleet.Node, i int, image *fleet.Image, now time.Time) {
	r := n.Reported
	switch i % 97 {
	case 0: // runs the new image
		*n = *sample.Node(n.Name, n.Pool, image, &fleet.Image{Digest: n.Desired.Image, Name: "rack-base", Version: "1.0.0"}, now)
	case 5:
		r.Health[1].Status, r.Health[1].Detail, r.Healthy = fleet.CheckFailed, "want 8, saw 7", false
	case 6:
		n.Verdict.Accepted, n.Verdict.Summary = false, "PCR 4 is not as built: event 9 is another loader"
		n.Verdict.Findings = []fleet.Finding{{Kind: "event", PCR: 4, Event: 9, What: "EV_EFI_BOOT_SERVICES_APPLICATION (UKI)", Detail: "the UKI that was started is not the one of this image",
			Expected: manifest.DigestOf([]byte("a"))[7:], Seen: manifest.DigestOf([]byte("a"))[7:30] + manifest.DigestOf([]byte("b"))[30:]}}
	case 7:
		n.LastSeen = now.Add(-12 * time.Minute)
	case 8:
		n.State, n.Reported, n.Verdict, n.Reason = fleet.NodePending, nil, nil, "discovered, waits for an operator"
	case 9:
		n.State, n.Reason = fleet.NodeCordoned, "replacing DIMM 3"
	case 10:
		n.State, n.Reason = fleet.NodeQuarantined, "both slots bad"
	case 11:
		n.Desired = fleet.Desired{Image: image.Digest, Generation: 3, Rollout: "r1"}
		r.Activity = "installing 43 %"
		r.Slots[1] = fleet.SlotReport{Slot: fleet.SlotB, State: fleet.SlotWriting, Generation: 3}
	case 12:
		r.Slots[0].State, r.Slots[0].TriesDone, r.Healthy, n.Verdict.BootID = fleet.SlotTrying, 1, false, "b0"
	}
}

// story is what a node tells from its first packet to its first image.
func story(ctx context.Context, tx store.Tx, node string, image *fleet.Image, at time.Time) error {
	for _, e := range []struct {
		after       int // seconds
		actor       string
		kind, words string
	}{
		{0, "server", "dhcp.offer", "uefi-pxe amd64 offered b/1f9def9fb32e/installer.efi: unknown machine: the installer, which waits for approval"},
		{6, "server", "tftp.sent", "b/1f9def9fb32e/installer.efi, 18144768 bytes in 4.3 s"},
		{21, "operator:alice", "node.approve", "was new-2ee0e504, in pool canary"},
		{2, "server", "node.enrolled", "TPM 2ee0e5048571 (certified by swtpm-localca), attestation key 000bf098a7566123"},
		{0, "server", "node.wanted", "image 15b5216a5327: first installation, image of pool canary"},
		{0, "server", "attest.accepted", "runs rack-base 1.0.0 by boot path installer; PCR 4 and PCR 11 are as built"},
		{1, "node:" + node, "install.started", "rack-base 1.0.0 into slot A of /dev/nvme0n1"},
		{31, "node:" + node, "slot.armed", "slot A, rack-base 1.0.0, generation 1"},
		{0, "node:" + node, "node.rebooting", "installed: starting from disk"},
		{73, "server", "attest.accepted", "runs rack-base 1.0.0 by boot path disk; PCR 4 and PCR 11 are as built"},
		{0, "server", "node.booted", "slot A (trying), rack-base 1.0.0 (15b5216a5327), generation 1, from disk"},
		{4, "node:" + node, "health.passed", "all required checks passed for the whole soak"},
		{1, "node:" + node, "slot.confirmed", "slot A, generation 1: healthy and attested"},
		{60, "rollout:r1", "rollout.node-started", "asked to run " + image.Name + " " + image.Version},
		{3, "node:" + node, "install.started", "image f49042bd22f7 into slot B: rollout r1"},
		{12, "node:" + node, "install.progress", "75 %: reading back"},
		{6, "node:" + node, "slot.armed", "slot B, image f49042bd22f7, generation 2, 1 tries"},
		{0, "node:" + node, "node.rebooting", "slot B is armed"},
		{57, "server", "attest.accepted", "runs rack-base 1.1.0 by boot path disk; PCR 4 and PCR 11 are as built"},
		{0, "server", "node.booted", "slot B (trying), rack-base 1.1.0 (f49042bd22f7), generation 2, from disk"},
		{30, "node:" + node, "health.failed", `check "gpu-count": want 8, saw 7`},
		{2, "node:" + node, "slot.condemned", `slot B, generation 2: check "gpu-count" failed: want 8, saw 7`},
		{50, "server", "node.booted", "slot A (good), rack-base 1.0.0 (15b5216a5327), generation 1, from disk"},
		{1, "server", "attest.accepted", "runs rack-base 1.0.0 by boot path disk; PCR 4 and PCR 11 are as built"},
	} {
		at = at.Add(time.Duration(e.after) * time.Second)
		if err := tx.AppendEvent(ctx, &fleet.Event{At: at, Actor: e.actor, Node: node, Kind: e.kind, Message: e.words}); err != nil {
			return err
		}
	}
	return nil
}

// startRollout starts a rollout to two pools and leaves it where a node has
// failed.
func (l *lab) startRollout(image *fleet.Image) {
	l.t.Helper()
	r, err := l.op.StartRollout(ctx, api.RolloutRequest{Image: image.Digest, Policy: fleet.Policy{Stages: []fleet.RolloutStage{{Pool: "canary"}, {Pool: "train"}},
		MaxUnavailable: fleet.Amount{Percent: 25}, FailureBudget: fleet.Amount{Nodes: 1}, Bake: 10 * time.Minute, FlipBack: true}})
	l.must(err)
	l.must(l.o.Store.Update(ctx, func(tx store.Tx) error {
		at := l.o.Now()
		r.Stage = 1
		for i := range r.Nodes {
			m := &r.Nodes[i]
			m.Started, m.Ended = at.Add(-4*time.Minute), at.Add(-2*time.Minute)
			switch {
			case m.Stage == 0:
				m.State = fleet.MoveDone
			case i == 6:
				m.State, m.Reason = fleet.MoveFailed, "check gpu-count: want 8, saw 7"
			case i == 7:
				m.State, m.Reason = fleet.MoveSkipped, "cordoned"
			case i < 16:
				m.State, m.Ended = fleet.MoveMoving, time.Time{}
			default:
				m.Started, m.Ended = time.Time{}, time.Time{}
			}
		}
		return tx.PutRollout(ctx, r)
	}))
}
