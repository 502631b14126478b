package main

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/store/pgtest"
	"github.com/turnout-project/turnout/internal/tpm/device"
	"github.com/turnout-project/turnout/internal/tpm/swtpm"
)

// twoServers makes two servers on one database, as docs/high-availability.md
// says: the same CA and tokens, a folder of its own each.
func twoServers(t *testing.T, initArgs ...string) (a, b *lab) {
	t.Helper()
	pg, err := pgtest.Start(true)
	if errors.Is(err, pgtest.ErrNone) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pg.Stop)
	url, err := pg.Database()
	if err != nil {
		t.Fatal(err)
	}
	a, b = newLab(t, initArgs...), newLab(t, initArgs...)
	for _, f := range []string{"ca.pem", "data/ca.key", "tokens", "operator.token"} {
		text, err := os.ReadFile(filepath.Join(a.dir, f))
		if err == nil {
			err = os.WriteFile(filepath.Join(b.dir, f), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range []*lab{a, b} {
		text, err := os.ReadFile(l.config)
		if err == nil {
			err = os.WriteFile(l.config, []byte(strings.Replace(string(text), `store: ""`, fmt.Sprintf("store: %q", url), 1)), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return a, b
}

// url returns where a server's API is.
func (l *lab) url() string {
	l.t.Helper()
	for line := range strings.Lines(l.must("check-config", "--verbose")) {
		if u, ok := strings.CutPrefix(line, "API: "); ok {
			return strings.TrimSpace(u)
		}
	}
	l.t.Fatal("check-config does not say where the API is")
	return ""
}

// client is a node's connection to a server.
func (l *lab) client() *api.NodeClient {
	l.t.Helper()
	ca, err := os.ReadFile(filepath.Join(l.dir, "ca.pem"))
	if err != nil {
		l.t.Fatal(err)
	}
	c, err := api.NewNodeClient(l.url(), ca)
	if err != nil {
		l.t.Fatal(err)
	}
	return c
}

// joinOver enrols a node over its TPM at one server, proves the TPM to the
// other, and lives with that one.
func joinOver(t *testing.T, a, b *lab, mac fleet.MAC) *agent {
	t.Helper()
	d, err := device.OpenPath(ctx, swtpm.Start(t).Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ek, err := d.EK()
	ak, err2 := d.AK()
	key, csr, err3 := api.NewNodeKey()
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	r, err := a.client().Enrol(ctx, &api.EnrolRequest{EKPublic: ek.Public, EKCertificate: ek.Certificate, AKPublic: ak, CSR: csr, MACs: []fleet.MAC{mac}})
	if err != nil {
		t.Fatal(err)
	}
	secret, err := d.Activate(r.CredentialBlob, r.EncryptedSecret)
	if err != nil {
		t.Fatal(err)
	}
	c := b.client()
	act, err := c.Activate(ctx, &api.ActivateRequest{Session: r.Session, Secret: secret})
	if err == nil {
		err = c.UseCertificate(act.Certificate, key)
	}
	if err != nil {
		t.Fatal(err)
	}
	n := newAgent(t, c)
	return n
}

// wishes returns what a server wants of each node.
func wishes(l *lab) map[string]fleet.Desired {
	l.t.Helper()
	var nodes []fleet.Node
	if err := json.Unmarshal([]byte(l.must("node", "list", "-o", "json")), &nodes); err != nil {
		l.t.Fatal(err)
	}
	out := map[string]fleet.Desired{}
	for _, n := range nodes {
		out[n.Name] = n.Desired
	}
	return out
}

// TestKilledLeader kills the server that carries a rollout on, at its worst
// moment: the other one finishes it, and does nothing twice.
func TestKilledLeader(t *testing.T) {
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
	a, b := twoServers(t, "--image-key", keyFile)
	a.start()
	logged := func(l *lab, what string) int {
		log, err := os.ReadFile(filepath.Join(l.dir, "log"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(log), what)
	}
	leads := func(l *lab) bool { return logged(l, "this server leads: ") > 0 }
	a.until("the first server leads", func() bool { return leads(a) })
	b.start()
	for _, v := range []string{"1.0", "1.1"} {
		dir := image(t, v, key)
		a.must("image", "publish", dir)
		b.must("image", "publish", dir) // its files; that it is published is known
	}
	for _, p := range []string{"canary", "rack"} {
		a.must("pool", "set", p, "--image", "rack-base 1.0")
	}
	nodes := map[string]*agent{}
	for i, name := range []string{"n1", "n2", "n3"} {
		mac := "52:54:00:00:00:0" + string(rune('1'+i))
		b.must("node", "add", name, "--mac", mac, "--pool", map[bool]string{true: "canary", false: "rack"}[i == 0])
		nodes[name] = joinOver(t, a, b, fleet.MAC(mac))
	}
	for name := range nodes {
		a.runs(name, "rack-base 1.0") // what they told the other
	}
	if leads(b) {
		t.Fatal("two servers lead")
	}
	nodes["n1"].set(func(a *agent) { a.hold = true })
	b.must("rollout", "start", "--image", "rack-base 1.1", "--stage", "canary", "--stage", "rack", "--bake", "10ms", "--yes")
	b.until("the canary is asked", func() bool { return b.node("n1").Desired.Rollout == "r1" })
	a.kill()
	killed := time.Now()
	nodes["n1"].set(func(a *agent) { a.hold = false })
	b.until("the second server leads", func() bool { return leads(b) })
	t.Logf("another leads after %s", time.Since(killed).Round(time.Millisecond))
	if r := b.do("rollout", "status", "r1", "--wait"); r.code != exitOK || !strings.Contains(r.out, "3 done") {
		t.Fatalf("rollout over a killed leader: %+v", r)
	}
	a.start() // which follows
	if d := cmp.Diff(wishes(b), wishes(a)); d != "" {
		t.Errorf("the servers differ about the nodes (-one +other):\n%s", d)
	}
	events := a.must("events", "--last", "1000")
	for _, once := range []string{"rollout.started", "rollout.done"} {
		if n := strings.Count(events, " "+once+" "); n != 1 {
			t.Errorf("%s is told %d times, want once:\n%s", once, n, events)
		}
	}
	for _, each := range []string{"rollout.node-started", "rollout.node-done"} {
		if n := strings.Count(events, " "+each+" "); n != 3 {
			t.Errorf("%s is told %d times, want once for each of 3 nodes:\n%s", each, n, events)
		}
	}
	// One that hangs is replaced too, and knows it when it comes to itself.
	if err := b.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	hung := time.Now()
	a.until("the first server leads again", func() bool { return logged(a, "this server leads: ") == 2 })
	t.Logf("another leads after %s", time.Since(hung).Round(time.Millisecond))
	if err := b.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	b.until("the one that hung leads no more", func() bool { return logged(b, "leads no more") == 1 })
	a.must("slot", "flip", "n2", "--yes")
	b.runs("n2", "rack-base 1.0")
	if r := a.do("backup", filepath.Join(t.TempDir(), "x.tar")); r.code != exitRefused || !strings.Contains(r.errOut, "pg_dump") {
		t.Errorf("backup of a state that is not in a file: %+v", r)
	}
}
