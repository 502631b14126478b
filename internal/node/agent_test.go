package node

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/abslot/memesp"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/health"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/node/attempts"
	"github.com/turnout-project/turnout/internal/node/bootinfo"
	"github.com/turnout-project/turnout/internal/node/gauges"
	"github.com/turnout-project/turnout/internal/node/session"
	"github.com/turnout-project/turnout/internal/node/slots"
	"github.com/turnout-project/turnout/internal/tpm/device"
	"github.com/turnout-project/turnout/internal/tpm/swtpm"
)

const bootID = "boot-1"

var (
	hashA = strings.Repeat("aa", 32)
	hashB = strings.Repeat("bb", 32)
)

const (
	shortA = "aaaaaaaaaaaa"
	shortB = "bbbbbbbbbbbb"
)

// rig is an agent with a software TPM, a server, and slots in memory.
type rig struct {
	t       *testing.T
	server  *fakeServer
	esp     *memesp.ESP
	cfg     Config
	checked string // file that the health check looks for
	reboots chan string
	key     ed25519.PrivateKey // signs images

	mu  sync.Mutex
	log []string
}

// newRig makes a node that runs slot booted from the file of that name; the
// other slot's is other, "" for none.
func newRig(t *testing.T, booted fleet.Slot, file, other string) *rig {
	t.Helper()
	r := &rig{t: t, server: newFakeServer(t), esp: &memesp.ESP{}, reboots: make(chan string, 1)}
	dir := t.TempDir()
	r.checked = filepath.Join(dir, "healthy")
	hashes := map[fleet.Slot]string{fleet.SlotA: hashA, fleet.SlotB: hashB}
	r.put(file, hashes[booted])
	if other != "" {
		r.put(other, hashes[booted.Other()])
	} else {
		hashes[booted.Other()] = ""
	}
	ev := abslot.Evidence{BootID: bootID, Path: abslot.PathDisk, Entry: file, RootHash: hashes[booted], Backing: booted}
	if strings.Contains(file, "+") {
		ev.CountPath = `\EFI\Linux\` + file
	}
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	r.key = key
	roots, verities := [2]string{}, [2]string{}
	for i, s := range fleet.Slots {
		roots[i], verities[i] = filepath.Join(dir, "root-"+string(s)), filepath.Join(dir, "verity-"+string(s))
		for _, p := range []string{roots[i], verities[i]} {
			if err := os.WriteFile(p, make([]byte, 2<<20), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	keys, err := manifest.MarshalPublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	tpm := swtpm.Start(t)
	var d *device.Device
	t.Cleanup(func() {
		if d != nil {
			_ = d.Close()
		}
	})
	r.cfg = Config{
		Info:     &bootinfo.Info{BootID: bootID, Slot: booted, RootHash: hashes[booted], BootPath: "disk", Roots: roots, Verities: verities},
		Trust:    &manifest.Trust{ImageKeys: string(keys), ServerCA: string(r.server.caPEM)},
		Identity: &manifest.Identity{Health: manifest.Health{Checks: []manifest.Check{{Name: "workload", Exec: []string{"/bin/sh", "-c", `test -e "$0" || { echo "no $0"; exit 1; }`, r.checked}}}}},
		Slots: abslot.New(abslot.Config{
			ESP:    r.esp,
			Booted: func(context.Context) (abslot.Evidence, error) { return ev, nil },
			SlotHash: func(_ context.Context, s fleet.Slot) (string, error) {
				if h, err := slots.TreeHash(verities[s.Index()]); h != "" || err != nil {
					return h, err // the test installed something
				}
				return hashes[s], nil
			},
			UKIHash: func(r io.ReaderAt, size int64) (string, error) {
				b, err := io.ReadAll(io.NewSectionReader(r, 0, size))
				return strings.TrimPrefix(string(b), "roothash="), err
			},
			Log: r.logf,
		}),
		TPM: func(ctx context.Context) (session.TPM, error) {
			var err error
			if d == nil {
				d, err = device.OpenPath(ctx, tpm.Socket)
			}
			return d, err
		},
		EventLog:  func() ([]byte, error) { return []byte("log"), nil },
		Servers:   func() []string { return []string{r.server.http.URL} },
		Inventory: func() *fleet.Inventory { return &fleet.Inventory{Vendor: "QEMU"} },
		Checks:    &health.Runner{},
		Dir:       filepath.Join(dir, "agent"),
		ReportTo:  filepath.Join(dir, "report.json"),
		Reboot:    func(reason string) error { r.reboots <- reason; return nil },
		Log:       r.logf,
		Grace:     time.Millisecond, CheckEvery: 5 * time.Millisecond, Tick: 5 * time.Millisecond,
	}
	return r
}

func (r *rig) put(file, hash string) {
	r.t.Helper()
	text := "roothash=" + hash
	if err := r.esp.Put(r.t.Context(), "EFI/Linux/"+file, strings.NewReader(text), int64(len(text))); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) logf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, fmt.Sprintf(format, args...))
}

func (r *rig) logged() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.log, "\n")
}

func (r *rig) healthy() {
	r.t.Helper()
	if err := os.WriteFile(r.checked, nil, 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// run starts the agent; it is stopped when the test ends.
func (r *rig) run() {
	r.t.Helper()
	a, err := New(r.cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("Run = %v", err)
		}
		if r.t.Failed() {
			r.t.Logf("log:\n%s\nstory:\n%s", r.logged(), r.server.story())
		}
	})
}

// until waits for a condition; the test's time limit bounds it.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	for start := time.Now(); !ok(); {
		if time.Since(start) > 2*time.Minute {
			r.t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (r *rig) ukis() []string {
	var out []string
	for p := range r.esp.Files() {
		if f, ok := strings.CutPrefix(p, "EFI/Linux/"); ok {
			out = append(out, f)
		}
	}
	slices.Sort(out)
	return out
}

func (r *rig) wantUKIs(want ...string) {
	r.t.Helper()
	if got := r.ukis(); !slices.Equal(got, want) {
		r.t.Errorf("UKIs = %v, want %v", got, want)
	}
}

const (
	goodA   = "g000001-" + shortA + ".efi"
	goodB   = "g000002-" + shortB + ".efi"
	tryingB = "g000002-" + shortB + "+1-1.efi"
	badB    = "g000002-" + shortB + "+0-50.efi"
)

func TestAgentConfirms(t *testing.T) {
	r := newRig(t, fleet.SlotB, tryingB, goodA)
	if err := attempts.Write(r.cfg.Dir, attempts.Ledger{RootHash: hashB, Starts: 2}); err != nil {
		t.Fatal(err)
	}
	r.healthy()
	r.run()
	r.until("a report of the confirmed slot", func() bool {
		rep := r.server.last()
		return rep.Slot(fleet.SlotB).State == fleet.SlotGood && rep.Healthy && rep.Inventory == nil
	})
	r.wantUKIs(goodA, goodB)
	rep := r.server.last()
	if rep.Booted != fleet.SlotB || rep.BootPath != "disk" || rep.BootID != bootID || rep.Acted != 2 || rep.Stage != fleet.StageSystem || rep.Slot(fleet.SlotB).Image != shortB {
		t.Errorf("report = %+v", rep)
	}
	r.server.with(func() {
		if inv := r.server.reports[0].Inventory; inv == nil || inv.Vendor != "QEMU" {
			t.Errorf("inventory of the first report = %+v", inv)
		}
		if rep.Inventory != nil {
			t.Error("the inventory is sent again and again")
		}
		a := r.server.attests[0]
		if a.Image != shortB || a.Path != "disk" || a.BootID != bootID || a.Stage != fleet.StageSystem || string(a.EventLog) != "log" {
			t.Errorf("attestation = %+v", a)
		}
	})
	if l, err := attempts.Read(r.cfg.Dir); err != nil || l.Starts != 0 {
		t.Errorf("ledger of starts = %+v, %v; want it reset", l, err)
	}
	r.until("the story", func() bool { return strings.Contains(r.server.story(), "slot.confirmed: slot B, generation 2") })
}

// TestAgentMeasures: numbers go with the reports, and are left out, with all
// else going on, once what measures does not come back any more.
func TestAgentMeasures(t *testing.T) {
	r := newRig(t, fleet.SlotA, goodA, goodB)
	calls := 0
	r.cfg.GaugeEvery = 50 * time.Millisecond
	r.cfg.Gauges = func(context.Context) (gauges.Sample, error) {
		if calls++; calls > 1 {
			select {} // state D: the context does not matter
		}
		return gauges.Sample{Metrics: map[string]float64{"gpu.0.power_watts": 78.28}, Versions: map[string]string{"driver": "590.48.01"},
			Uses: []fleet.Use{{Device: "0", Occupied: true}}}, nil
	}
	r.healthy()
	r.run()
	r.until("a report with numbers", func() bool {
		rep := r.server.last()
		return rep != nil && rep.Metrics["gpu.0.power_watts"] == 78.28 && len(rep.Usage) == 1 && rep.Versions["driver"] == "590.48.01"
	})
	r.until("a report without", func() bool {
		rep := r.server.last()
		return rep.Metrics == nil && rep.Usage == nil && rep.Versions["driver"] == "590.48.01"
	})
}

// A confirmed slot has come up when its checks pass once: power that goes
// again before the soak is over does not count against it.
func TestAgentCameUpBeforeSoak(t *testing.T) {
	r := newRig(t, fleet.SlotA, goodA, goodB)
	r.cfg.Identity.Health.Soak = manifest.Duration(time.Hour)
	if err := attempts.Write(r.cfg.Dir, attempts.Ledger{RootHash: hashA, Starts: 3}); err != nil {
		t.Fatal(err)
	}
	r.server.away = true
	r.run()
	r.until("a failing check", func() bool { return strings.Contains(r.logged(), `check "workload" failed`) })
	if l, err := attempts.Read(r.cfg.Dir); err != nil || l.Starts != 3 {
		t.Errorf("ledger of an unhealthy start: %+v, %v", l, err)
	}
	r.healthy()
	r.until("the ledger to be reset", func() bool { l, err := attempts.Read(r.cfg.Dir); return err == nil && l.Starts == 0 })
}

func TestAgentCondemnsUnhealthyTrial(t *testing.T) {
	r := newRig(t, fleet.SlotB, tryingB, goodA)
	r.run()
	reason := <-r.reboots
	if !strings.Contains(reason, `health check "workload" failed`) {
		t.Errorf("rebooted because %q", reason)
	}
	r.wantUKIs(goodA, badB)
}

// TestAgentTellsBeforeTheReset: with a server at hand, it knows which check
// failed before the machine is gone.
func TestAgentTellsBeforeTheReset(t *testing.T) {
	r := newRig(t, fleet.SlotB, tryingB, goodA)
	r.cfg.Grace = 2 * time.Second
	r.run()
	<-r.reboots
	if story := r.server.story(); !strings.Contains(story, `slot.condemned: slot B, generation 2: health check "workload" failed: /bin/sh: exit status 1: no `) {
		t.Errorf("story:\n%s", story)
	}
	bad := r.server.last().Slot(fleet.SlotB)
	if bad.State != fleet.SlotBad || !strings.Contains(bad.Reason, "workload") {
		t.Errorf("last report has slot B as %+v, want it bad with the reason", bad)
	}
	if c, ok := fleet.FirstFailure(r.server.last().Health); !ok || c.Name != "workload" {
		t.Errorf("last report names the failed check %+v", c)
	}
}

func TestAgentCondemnsRefusedBoot(t *testing.T) {
	for _, tt := range []struct{ name, file, bad string }{
		{"trial", tryingB, badB},
		{"confirmed", goodB, badB},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, fleet.SlotB, tt.file, goodA)
			r.server.verdict = *refused(11)
			r.healthy()
			r.run()
			if reason := <-r.reboots; !strings.Contains(reason, "attestation refused: PCR is wrong") {
				t.Errorf("rebooted because %q", reason)
			}
			r.wantUKIs(goodA, tt.bad)
		})
	}
}

// TestAgentSilentServer: without a server a healthy trial is neither
// confirmed nor given up; when the server comes, it is confirmed.
func TestAgentSilentServer(t *testing.T) {
	r := newRig(t, fleet.SlotB, tryingB, goodA)
	r.server.away = true
	r.healthy()
	r.run()
	r.until("the agent to wait for its attestation", func() bool { return strings.Contains(r.logged(), "wait: waiting for an accepted attestation") })
	r.wantUKIs(goodA, tryingB)
	r.server.with(func() { r.server.away = false })
	r.until("the confirm", func() bool { return slices.Contains(r.ukis(), goodB) })
	select {
	case why := <-r.reboots:
		t.Errorf("rebooted: %s", why)
	default:
	}
}

// TestAgentCannotConfirm is case C72: where the ESP cannot be written, the
// slot is not reported as good.
func TestAgentCannotConfirm(t *testing.T) {
	r := newRig(t, fleet.SlotB, tryingB, goodA)
	r.esp.ReadOnly = true
	r.healthy()
	r.run()
	r.until("the failure to be told", func() bool { return strings.Contains(r.server.story(), "confirm.failed: ") })
	r.server.with(func() {
		for _, rep := range r.server.reports {
			if s := rep.Slot(fleet.SlotB); s.State != fleet.SlotTrying {
				t.Errorf("reported %+v, want trying", s)
			}
		}
	})
	r.wantUKIs(goodA, tryingB)
}

func TestAgentEnrolsAgain(t *testing.T) {
	r := newRig(t, fleet.SlotA, goodA, "")
	r.healthy()
	r.run()
	r.until("the first report", func() bool { return r.server.last() != nil })
	r.server.with(func() { r.server.expired = true })
	r.until("a second enrolment", func() bool {
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		return r.server.enrols == 2
	})
	var n int
	r.server.with(func() { n = len(r.server.reports) })
	r.until("reports to go on", func() bool {
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		return len(r.server.reports) > n
	})
}

// TestAgentFlips: a wish for the image in the other, good slot arms it under
// the new generation and reboots; nothing else moves.
func TestAgentFlips(t *testing.T) {
	r := newRig(t, fleet.SlotA, goodA, goodB)
	r.server.desired = fleet.Desired{Image: "sha256:" + shortB + strings.Repeat("b", 52), Generation: 7, Tries: 3}
	r.healthy()
	r.run()
	<-r.reboots
	r.wantUKIs(goodA, "g000007-"+shortB+"+3.efi")
	if l := readLocal(r.cfg.Dir); l.Acted != 7 || l.ArmedBoot != bootID {
		t.Errorf("remembered %+v, want generation 7 armed by this boot", l)
	}
}

// TestAgentRetries: a ban here that is newer than the wish stands, until an
// operator's word comes with it.
func TestAgentRetries(t *testing.T) {
	for _, retry := range []bool{false, true} {
		r := newRig(t, fleet.SlotA, goodA, goodB)
		journal := `{"version":1,"bans":[{"short":"` + shortB + `","generation":9,"reason":"failed"}]}`
		if err := r.esp.Put(t.Context(), "turnout/journal.json", strings.NewReader(journal), int64(len(journal))); err != nil {
			t.Fatal(err)
		}
		r.server.desired = fleet.Desired{Image: "sha256:" + shortB + strings.Repeat("b", 52), Generation: 7, Retry: retry}
		r.healthy()
		r.run()
		if retry {
			<-r.reboots
			r.wantUKIs(goodA, "g000007-"+shortB+"+2.efi")
			continue
		}
		r.until("the flip to be refused", func() bool { return strings.Contains(r.server.story(), "failed on this node before") })
		r.wantUKIs(goodA, goodB)
	}
}

// TestAgentCancelsPassedOver: an arming that the loader did not follow is
// taken back, not repeated for ever.
func TestAgentCancelsPassedOver(t *testing.T) {
	r := newRig(t, fleet.SlotA, goodA, "g000007-"+shortB+"+3.efi")
	if err := (local{Acted: 7, ArmedBoot: "boot-0"}).write(r.cfg.Dir); err != nil {
		t.Fatal(err)
	}
	r.server.desired = fleet.Desired{Image: "sha256:" + shortB + strings.Repeat("b", 52), Generation: 7}
	r.healthy()
	r.run()
	r.until("the arming to be taken back", func() bool { return strings.Contains(r.server.story(), "slot.cancelled") })
	r.until("the agent to idle", func() bool {
		rep := r.server.last()
		return rep.Slot(fleet.SlotB).State == fleet.SlotStaged && rep.Activity == "idle"
	})
	r.wantUKIs(shortB+".new", goodA)
}

func TestAgentNoTPM(t *testing.T) {
	r := newRig(t, fleet.SlotB, tryingB, goodA)
	r.cfg.TPM = func(context.Context) (session.TPM, error) { return nil, errors.New("no TPM 2.0") }
	r.healthy()
	r.run()
	r.until("the agent to say so", func() bool { return strings.Contains(r.logged(), "no TPM 2.0; trying again") })
	r.until("the agent to wait", func() bool { return strings.Contains(r.logged(), "waiting for an accepted attestation") })
	r.wantUKIs(goodA, tryingB)
}
