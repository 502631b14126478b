package abslot_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/abslot/memesp"
	"github.com/turnout-project/turnout/internal/abslot/slottest"
	"github.com/turnout-project/turnout/internal/fleet"
)

var (
	v1 = slottest.NewImage("v1")
	v2 = slottest.NewImage("v2")
	v3 = slottest.NewImage("v3")
)

// node returns a node with v1 confirmed in slot A.
func node(t *testing.T) (*slottest.Node, *memesp.ESP) {
	t.Helper()
	esp := &memesp.ESP{}
	n := slottest.NewNode(esp)
	must(t, n.Provision(t.Context(), v1))
	return n, esp
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func rename(t *testing.T, e abslot.ESP, from, to string) {
	t.Helper()
	must(t, e.Rename(t.Context(), abslot.LinuxDir+"/"+from, abslot.LinuxDir+"/"+to))
}

func put(t *testing.T, e abslot.ESP, path string, b []byte) {
	t.Helper()
	must(t, e.Put(t.Context(), path, bytes.NewReader(b), int64(len(b))))
}

// Every transition that is asked for at the wrong time is refused with the
// right error and changes nothing.
func TestRefusals(t *testing.T) {
	type world struct {
		ctx context.Context
		n   *slottest.Node
		esp *memesp.ESP
		t   *testing.T
	}
	install := func(w world) { must(w.t, w.n.Install(w.ctx, fleet.SlotB, v2, 2)) }
	trial := func(w world) { install(w); _, err := w.n.Boot(w.ctx); must(w.t, err) }
	updated := func(w world) { trial(w); must(w.t, w.n.Confirm(w.ctx)) }
	confirm := func(change func(*abslot.ConfirmRequest)) func(world) error {
		return func(w world) error {
			r := abslot.ConfirmRequest{BootID: w.n.Evidence.BootID, Slot: fleet.SlotB, Generation: 2}
			change(&r)
			return w.n.Machine().Confirm(w.ctx, r)
		}
	}
	asIs := func(*abslot.ConfirmRequest) {}
	begin := func(s fleet.Slot) func(world) error {
		return func(w world) error { return w.n.Machine().Begin(w.ctx, s) }
	}
	arm := func(generation uint64, tries int) func(world) error {
		return func(w world) error { return w.n.Machine().Arm(w.ctx, fleet.SlotB, generation, tries) }
	}
	staged := func(w world) { install(w); must(w.t, w.n.Machine().Cancel(w.ctx, fleet.SlotB)) }
	tests := []struct {
		name  string
		setup func(world)
		act   func(world) error
		want  error
	}{
		{"begin on the booted slot", nil, begin(fleet.SlotA), abslot.ErrBooted},
		{"begin on no slot", nil, begin(fleet.NoSlot), abslot.ErrState},
		{"begin while unconfirmed (systemd 34827)", trial, begin(fleet.SlotA), abslot.ErrUnconfirmed},
		{"begin on the last good slot from the installer", func(w world) { w.n.BootInstaller() }, begin(fleet.SlotA), abslot.ErrLastGood},
		{"stage without begin, other image in the slot", nil, func(w world) error {
			return w.n.Machine().Stage(w.ctx, fleet.SlotB, v2.Staged())
		}, abslot.ErrMismatch},
		{"stage over an armed slot", install, func(w world) error {
			return w.n.Machine().Stage(w.ctx, fleet.SlotB, v2.Staged())
		}, abslot.ErrState},
		{"stage the image of the other slot", func(w world) {
			must(w.t, w.n.Machine().Begin(w.ctx, fleet.SlotB))
			w.n.Hashes[fleet.SlotB] = v1.RootHash
		}, func(w world) error { return w.n.Machine().Stage(w.ctx, fleet.SlotB, v1.Staged()) }, abslot.ErrSameImage},
		{"stage a UKI of another image", func(w world) {
			must(w.t, w.n.Machine().Begin(w.ctx, fleet.SlotB))
			w.n.Write(fleet.SlotB, v2)
		}, func(w world) error {
			in := v2.Staged()
			in.UKI = bytes.NewReader(v3.UKI)
			return w.n.Machine().Stage(w.ctx, fleet.SlotB, in)
		}, abslot.ErrMismatch},
		{"stage a UKI with another digest", func(w world) {
			must(w.t, w.n.Machine().Begin(w.ctx, fleet.SlotB))
			w.n.Write(fleet.SlotB, v2)
		}, func(w world) error {
			in := v2.Staged()
			in.UKISHA256 = make([]byte, 32)
			return w.n.Machine().Stage(w.ctx, fleet.SlotB, in)
		}, abslot.ErrVerify},
		{"arm an empty slot (bottlerocket 444)", nil, arm(2, 2), abslot.ErrState},
		{"arm with an old generation", staged, arm(1, 2), abslot.ErrStale},
		{"arm with a generation too large", staged, arm(abslot.MaxGeneration+1, 2), abslot.ErrStale},
		{"arm with too many tries", staged, arm(2, 10), abslot.ErrState},
		{"arm a good slot", func(w world) { updated(w); install2(w.ctx, w.t, w.n) }, func(w world) error {
			return w.n.Machine().Arm(w.ctx, fleet.SlotB, 9, 1)
		}, abslot.ErrBooted},
		{"flip to a staged slot", staged, func(w world) error {
			return w.n.Machine().Flip(w.ctx, fleet.SlotB, v2.Short, 2, 1)
		}, abslot.ErrState},
		{"flip to another image than expected (mender 623)", updated, func(w world) error {
			return w.n.Machine().Flip(w.ctx, fleet.SlotA, v3.Short, 3, 1)
		}, abslot.ErrMismatch},
		{"cancel what is not armed", nil, func(w world) error { return w.n.Machine().Cancel(w.ctx, fleet.SlotB) }, abslot.ErrState},
		{"cancel what the loader has tried", func(w world) {
			trial(w)
			rename(w.t, w.esp, "g000001-"+v1.Short+".efi", "g000003-"+v1.Short+".efi")
			_, err := w.n.Boot(w.ctx)
			must(w.t, err)
		}, func(w world) error { return w.n.Machine().Cancel(w.ctx, fleet.SlotB) }, abslot.ErrState},
		{"confirm for another boot (coreos 2334)", trial, confirm(func(r *abslot.ConfirmRequest) { r.BootID = "yesterday" }), abslot.ErrStale},
		{"confirm without a boot id", trial, confirm(func(r *abslot.ConfirmRequest) { r.BootID = "" }), abslot.ErrStale},
		{"confirm another generation", trial, confirm(func(r *abslot.ConfirmRequest) { r.Generation = 3 }), abslot.ErrStale},
		{"confirm the slot that is not booted", trial, confirm(func(r *abslot.ConfirmRequest) { r.Slot = fleet.SlotA }), abslot.ErrStale},
		{"confirm after kexec (talos 11909)", func(w world) { trial(w); w.n.Evidence.Kexec = true }, confirm(asIs), abslot.ErrUncounted},
		{"confirm a network boot", func(w world) { install(w); w.n.BootNetwork(fleet.SlotB) }, confirm(asIs), abslot.ErrUncounted},
		{"confirm when the loader did not count (systemd 36170)", func(w world) { trial(w); w.n.Evidence.CountPath = "" }, confirm(asIs), abslot.ErrUncounted},
		{"confirm when the rename was refused (systemd 40405)", func(w world) {
			trial(w)
			rename(w.t, w.esp, "g000002-"+v2.Short+"+1-1.efi", "g000002-"+v2.Short+"+2.efi")
			w.n.Evidence.CountPath = ""
		}, confirm(asIs), abslot.ErrUncounted},
		{"confirm what was bad before the boot", func(w world) {
			trial(w)
			must(w.t, w.n.Machine().Condemn(w.ctx, fleet.SlotB, "x", false))
			rename(w.t, w.esp, "g000001-"+v1.Short+".efi", "g000001-"+v1.Short+"+0-50.efi")
			_, err := w.n.Boot(w.ctx) // everything is bad: the loader goes on with the newest
			must(w.t, err)
		}, confirm(asIs), abslot.ErrState},
		{"condemn the last good slot", nil, func(w world) error {
			return w.n.Machine().Condemn(w.ctx, fleet.SlotA, "x", false)
		}, abslot.ErrLastGood},
		{"condemn an empty slot", nil, func(w world) error {
			return w.n.Machine().Condemn(w.ctx, fleet.SlotB, "x", false)
		}, abslot.ErrState},
		{"condemn no slot", nil, func(w world) error { return w.n.Machine().Condemn(w.ctx, fleet.NoSlot, "x", true) }, abslot.ErrState},
		{"demote without a root hash", func(w world) { w.n.Evidence.RootHash = "" }, func(w world) error {
			_, err := w.n.Machine().Demote(w.ctx, "x")
			return err
		}, abslot.ErrEvidence},
		{"ESP is read-only (rauc 1140)", func(w world) { trial(w); w.esp.ReadOnly = true }, confirm(asIs), abslot.ErrReadOnly},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n, esp := node(t)
			w := world{t.Context(), n, esp, t}
			if tt.setup != nil {
				tt.setup(w)
			}
			before, lines := esp.Files(), len(n.Lines)
			if err := tt.act(w); !errors.Is(err, tt.want) {
				t.Fatalf("error %v; want %v", err, tt.want)
			}
			after := esp.Files()
			delete(before, "turnout/"+v2.Short+".json") // Stage stores it first; it is no state
			delete(after, "turnout/"+v2.Short+".json")
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("the refusal changed the ESP (-before +after):\n%s", diff)
			}
			if len(n.Lines) != lines {
				t.Errorf("the refusal was logged as done: %q", n.Lines[lines:])
			}
		})
	}
}

func install2(ctx context.Context, t *testing.T, n *slottest.Node) {
	t.Helper()
	must(t, n.Install(ctx, fleet.SlotA, v3, 3))
}

// Evidence that does not fit refuses every write, and still shows.
func TestEvidence(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*slottest.Node, *memesp.ESP)
		want   error
		booted fleet.Slot
	}{
		{"all agree", func(*slottest.Node, *memesp.ESP) {}, nil, fleet.SlotA},
		{"no backing slot", func(n *slottest.Node, _ *memesp.ESP) { n.Evidence.Backing = fleet.NoSlot }, abslot.ErrEvidence, fleet.NoSlot},
		{"root hash of another image", func(n *slottest.Node, _ *memesp.ESP) { n.Evidence.RootHash = v3.RootHash }, abslot.ErrEvidence, fleet.SlotA},
		{"no root hash", func(n *slottest.Node, _ *memesp.ESP) { n.Evidence.RootHash = "" }, abslot.ErrEvidence, fleet.SlotA},
		{"no entry from the loader", func(n *slottest.Node, _ *memesp.ESP) { n.Evidence.Entry = "" }, abslot.ErrEvidence, fleet.SlotA},
		{"entry of the other slot", func(n *slottest.Node, _ *memesp.ESP) { n.Evidence.Entry = "g000002-" + v2.Short + ".efi" }, abslot.ErrEvidence, fleet.SlotA},
		{"entry in capitals", func(n *slottest.Node, _ *memesp.ESP) { n.Evidence.Entry = strings.ToUpper(n.Evidence.Entry) }, nil, fleet.SlotA},
		{"tree of the booted slot changed", func(n *slottest.Node, _ *memesp.ESP) { n.Hashes[fleet.SlotA] = v3.RootHash }, abslot.ErrEvidence, fleet.SlotA},
		{"both slots hold one image", func(n *slottest.Node, _ *memesp.ESP) { n.Hashes[fleet.SlotB] = v1.RootHash }, nil, fleet.SlotA},
		{"unknown boot path", func(n *slottest.Node, _ *memesp.ESP) { n.Evidence.Path = "" }, abslot.ErrEvidence, fleet.NoSlot},
		{"installer with a slot", func(n *slottest.Node, _ *memesp.ESP) { n.Evidence.Path = abslot.PathInstaller }, abslot.ErrEvidence, fleet.NoSlot},
		{"network boot needs no loader", func(n *slottest.Node, _ *memesp.ESP) { n.BootNetwork(fleet.SlotA) }, nil, fleet.SlotA},
		{"two names for one UKI", func(n *slottest.Node, e *memesp.ESP) {
			_ = e.Put(context.Background(), abslot.LinuxDir+"/g000005-"+v1.Short+"+2.efi", bytes.NewReader(v1.UKI), int64(len(v1.UKI)))
		}, abslot.ErrTorn, fleet.SlotA},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, esp := node(t)
			tt.change(n, esp)
			m := n.Machine()
			st, err := m.Status(t.Context())
			must(t, err)
			if !errors.Is(st.Problem, tt.want) || st.Booted != tt.booted {
				t.Errorf("Problem = %v, booted %q; want %v, %q", st.Problem, st.Booted, tt.want, tt.booted)
			}
			if err := m.Begin(t.Context(), fleet.SlotB); !errors.Is(err, tt.want) {
				t.Errorf("Begin: error %v; want %v", err, tt.want)
			}
		})
	}
}

// C72: with both slots bad the status is still shown, the loader's decision
// is defined, and the installer can bring the node back.
func TestBothBad(t *testing.T) {
	n, _ := node(t)
	ctx := t.Context()
	must(t, n.Install(ctx, fleet.SlotB, v2, 2))
	_, err := n.Boot(ctx)
	must(t, err)
	must(t, n.Machine().Condemn(ctx, fleet.SlotB, "check failed", false))
	_, err = n.Boot(ctx)
	must(t, err)
	must(t, n.Machine().Condemn(ctx, fleet.SlotA, "an operator's word", true))
	started, err := n.Boot(ctx)
	if err != nil || started != "g000002-"+v2.Short+"+0-51.efi" {
		t.Fatalf("started %q, %v; want the newest bad one, counted on", started, err)
	}
	st, err := n.Machine().Status(ctx)
	must(t, err)
	want := []fleet.SlotReport{
		{Slot: fleet.SlotA, State: fleet.SlotBad, Generation: 1, RootHash: v1.RootHash, TriesDone: 50, Reason: "an operator's word"},
		{Slot: fleet.SlotB, State: fleet.SlotBad, Generation: 2, RootHash: v2.RootHash, TriesDone: 51, Reason: "check failed"},
	}
	if diff := cmp.Diff(want, st.Report()); diff != "" || st.Problem != nil {
		t.Errorf("status (-want +got):\n%sproblem: %v", diff, st.Problem)
	}
	if _, err := n.Machine().Demote(ctx, "x"); !errors.Is(err, abslot.ErrLastGood) {
		t.Errorf("Demote: error %v; want %v", err, abslot.ErrLastGood)
	}
	n.BootInstaller()
	must(t, n.Install(ctx, fleet.SlotA, v3, 3))
	_, err = n.Boot(ctx)
	must(t, err)
	must(t, n.Confirm(ctx))
}

// A first installation has one slot and no other choice: its last trial can
// be told from a boot without tries only by the journal.
func TestOnlySlotLastTrial(t *testing.T) {
	for _, tt := range []struct {
		name  string
		boots int
		lose  bool // the journal
		want  error
	}{
		{"last trial", 2, false, nil},
		{"one boot too many", 3, false, abslot.ErrState},
		{"last trial, journal lost", 2, true, abslot.ErrState},
		{"first trial, journal lost", 1, true, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := slottest.NewNode(&memesp.ESP{})
			ctx := t.Context()
			must(t, n.Install(ctx, fleet.SlotA, v1, 1))
			for range tt.boots {
				_, err := n.Boot(ctx)
				must(t, err)
			}
			if tt.lose {
				must(t, n.ESP.Remove(ctx, "turnout/journal.json"))
			}
			if err := n.Confirm(ctx); !errors.Is(err, tt.want) {
				t.Errorf("Confirm: error %v; want %v", err, tt.want)
			}
		})
	}
}

// The journal is a cache: every transition works without one, with a damaged
// one, and when it cannot be written.
func TestJournalLost(t *testing.T) {
	for name, spoil := range map[string]func(*testing.T, *memesp.ESP){
		"removed": func(t *testing.T, e *memesp.ESP) { must(t, e.Remove(t.Context(), "turnout/journal.json")) },
		"damaged": func(t *testing.T, e *memesp.ESP) {
			put(t, e, "turnout/journal.json", []byte(`{"version": 1, "slots": [`))
		},
		"future": func(t *testing.T, e *memesp.ESP) { put(t, e, "turnout/journal.json", []byte(`{"version": 99}`)) },
		"refused": func(_ *testing.T, e *memesp.ESP) {
			e.OnChange = func(_, path string) error {
				if strings.HasSuffix(path, "journal.json") {
					return errors.New("no journal today")
				}
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, esp := node(t)
			ctx, m := t.Context(), n.Machine()
			must(t, m.Begin(ctx, fleet.SlotB))
			spoil(t, esp)
			n.Write(fleet.SlotB, v2)
			must(t, m.Stage(ctx, fleet.SlotB, v2.Staged()))
			spoil(t, esp)
			must(t, m.Arm(ctx, fleet.SlotB, 2, 1))
			spoil(t, esp)
			must(t, m.Cancel(ctx, fleet.SlotB))
			spoil(t, esp)
			must(t, m.Arm(ctx, fleet.SlotB, 3, 1))
			_, err := n.Boot(ctx)
			must(t, err)
			spoil(t, esp)
			must(t, n.Confirm(ctx))
			must(t, m.Flip(ctx, fleet.SlotA, v1.Short, 4, 0))
			spoil(t, esp)
			must(t, m.Condemn(ctx, fleet.SlotA, "x", false))
			st, err := m.Status(ctx)
			must(t, err)
			if st.Slots[0].State != fleet.SlotBad || st.Slots[1].State != fleet.SlotGood {
				t.Errorf("A %s, B %s; want bad, good", st.Slots[0].State, st.Slots[1].State)
			}
		})
	}
}

// C74 and what a torn rename leaves: files that are none of ours do not
// confuse the machine, and go when a slot is written.
func TestStrays(t *testing.T) {
	n, esp := node(t)
	ctx := t.Context()
	put(t, esp, "EFI/Linux/G00000~1.EFI", v2.UKI)                         // short name of a torn rename
	put(t, esp, "EFI/Linux/g000009-"+v3.Short+".efi", v3.UKI)             // image in no slot
	put(t, esp, "EFI/Linux/"+v3.Short+".tmp", []byte("half"))             // interrupted Put
	put(t, esp, "EFI/Linux/g000008-"+v3.Short+".old", []byte("retired"))  // interrupted Begin
	put(t, esp, "EFI/Linux/README.txt", []byte("an administrator's own")) // not ours
	st, err := n.Machine().Status(ctx)
	must(t, err)
	if len(st.Strays) != 2 || st.NextGeneration != 10 || st.Problem != nil {
		t.Errorf("strays %q, next generation %d, problem %v; want two, 10, none", st.Strays, st.NextGeneration, st.Problem)
	}
	must(t, n.Install(ctx, fleet.SlotB, v2, 10))
	var left []string
	files, err := esp.List(ctx, abslot.LinuxDir)
	must(t, err)
	for _, f := range files {
		left = append(left, f.Name)
	}
	want := []string{"g000001-" + v1.Short + ".efi", "README.txt", "g000010-" + v2.Short + "+2.efi"}
	if diff := cmp.Diff(want, left); diff != "" {
		t.Errorf("files after the installation (-want +got):\n%s", diff)
	}
}

// A damaged UKI of the other slot is known by its manifest copy.
func TestManifestFallback(t *testing.T) {
	n, esp := node(t)
	ctx := t.Context()
	must(t, n.Install(ctx, fleet.SlotB, v2, 2))
	_, err := n.Boot(ctx)
	must(t, err)
	must(t, n.Confirm(ctx))
	put(t, esp, "EFI/Linux/g000001-"+v1.Short+".efi", []byte("rotten"))
	st, err := n.Machine().Status(ctx)
	must(t, err)
	if st.Slots[0].State != fleet.SlotGood || st.Slots[0].Short != v1.Short {
		t.Errorf("slot A: %+v; want good, %s", st.Slots[0], v1.Short)
	}
	b, err := n.Machine().Manifest(ctx, v1.Short)
	if err != nil || !bytes.Equal(b, v1.Manifest()) {
		t.Errorf("Manifest() = %q, %v", b, err)
	}
}

// An unreadable slot is an error for every write, never "empty".
func TestUnreadableSlot(t *testing.T) {
	n, esp := node(t)
	broken := errors.New("input/output error")
	m := abslot.New(abslot.Config{
		ESP: esp, UKIHash: slottest.UKIHash,
		Booted: func(context.Context) (abslot.Evidence, error) { return n.Evidence, nil },
		SlotHash: func(_ context.Context, s fleet.Slot) (string, error) {
			if s == fleet.SlotB {
				return "", broken
			}
			return n.Hashes[s], nil
		},
	})
	st, err := m.Status(t.Context())
	must(t, err)
	if !errors.Is(st.Problem, abslot.ErrEvidence) || !errors.Is(st.Problem, broken) || st.Booted != fleet.SlotA {
		t.Errorf("Problem = %v, booted %q", st.Problem, st.Booted)
	}
	if err := m.Begin(t.Context(), fleet.SlotB); !errors.Is(err, broken) {
		t.Errorf("Begin: error %v; want %v", err, broken)
	}
}

// Two transitions at once: one is refused.
func TestBusy(t *testing.T) {
	n, esp := node(t)
	m := n.Machine()
	var inner error
	esp.OnChange = func(string, string) error {
		esp.OnChange = nil
		inner = m.Condemn(context.Background(), fleet.SlotB, "x", false)
		return nil
	}
	must(t, m.Begin(t.Context(), fleet.SlotB))
	if !errors.Is(inner, abslot.ErrBusy) {
		t.Errorf("transition inside another: error %v; want ErrBusy", inner)
	}
}

func TestNext(t *testing.T) {
	for _, tt := range []struct {
		from  fleet.SlotState
		event abslot.Event
		to    fleet.SlotState // "" for refused
	}{
		{fleet.SlotEmpty, abslot.EventBegin, fleet.SlotWriting}, {fleet.SlotEmpty, abslot.EventArm, ""},
		{fleet.SlotWriting, abslot.EventArm, ""}, {fleet.SlotWriting, abslot.EventStage, fleet.SlotStaged},
		{fleet.SlotStaged, abslot.EventConfirm, ""}, {fleet.SlotArmed, abslot.EventConfirm, ""},
		{fleet.SlotTrying, abslot.EventCancel, ""}, {fleet.SlotTrying, abslot.EventConfirm, fleet.SlotGood},
		{fleet.SlotBad, abslot.EventConfirm, ""}, {fleet.SlotBad, abslot.EventArm, ""}, {fleet.SlotGood, abslot.EventArm, fleet.SlotArmed},
		{"nonsense", abslot.EventBegin, ""},
	} {
		got, err := abslot.Next(tt.from, tt.event)
		if tt.to == "" && (!errors.Is(err, abslot.ErrState) || got != tt.from) || tt.to != "" && (err != nil || got != tt.to) {
			t.Errorf("Next(%s, %s) = %s, %v; want %q", tt.from, tt.event, got, err, tt.to)
		}
	}
}
