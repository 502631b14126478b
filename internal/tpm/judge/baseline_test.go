package judge_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/tpm/eventlog"
	"github.com/turnout-project/turnout/internal/tpm/judge"
)

// learned is the baseline of the world as it is.
func (w *world) learned(model fleet.Model) *fleet.Baseline {
	w.t.Helper()
	raw := w.encode(w.seen)
	log, err := eventlog.Parse(raw)
	if err != nil {
		w.t.Fatal(err)
	}
	pcrs := map[int]string{}
	for p, v := range log.Replay("sha256") {
		pcrs[p] = hexString(v)
	}
	for _, p := range judge.BaselinePCRs {
		if pcrs[p] == "" {
			pcrs[p] = strings.Repeat("00", 32)
		}
	}
	b, err := judge.Learn(model, "sha256", pcrs, raw)
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

func TestFirmware(t *testing.T) {
	model := fleet.Model{Vendor: "ACME", Product: "R1", BIOSVersion: "2.1"}
	driver := event(2, 0x80000004, "option ROM")
	dbx := event(7, eventlog.EFIVariableAuthority, "another key vouched")
	for name, tt := range map[string]struct {
		change   func(w *world, b *fleet.Baseline) []*fleet.Baseline // what is approved
		enforce  bool
		accepted bool
		pcr      int    // of the finding, -2 for none
		want     string // in the summary
	}{
		"as approved":               {func(w *world, b *fleet.Baseline) []*fleet.Baseline { return []*fleet.Baseline{b} }, true, true, -2, "as built"},
		"nothing approved, warn":    {func(w *world, b *fleet.Baseline) []*fleet.Baseline { return nil }, false, true, -2, "as built"},
		"nothing approved, enforce": {func(w *world, b *fleet.Baseline) []*fleet.Baseline { return nil }, true, false, -1, "ACME R1, BIOS 2.1"},
		"option ROM more, warn": {func(w *world, b *fleet.Baseline) []*fleet.Baseline {
			w.seen = append(w.seen, driver)
			return []*fleet.Baseline{b}
		}, false, true, 2, "warning: the firmware (PCR 2) is not as approved"},
		"option ROM more, enforce": {func(w *world, b *fleet.Baseline) []*fleet.Baseline {
			w.seen = append(w.seen, driver)
			return []*fleet.Baseline{b}
		}, true, false, 2, "PCR 2 event"},
		"other key vouched": {func(w *world, b *fleet.Baseline) []*fleet.Baseline {
			w.seen = append(w.seen, dbx)
			return []*fleet.Baseline{b}
		}, true, false, 7, "PCR 7 event"},
		"event less": {func(w *world, b *fleet.Baseline) []*fleet.Baseline {
			w.seen = without(w.seen, func(e eventlog.Event) bool { return e.PCR == 2 && e.Type == eventlog.Separator })
			return []*fleet.Baseline{b}
		}, true, false, 2, "missing at the end"},
		"second of two approved sets": {func(w *world, b *fleet.Baseline) []*fleet.Baseline {
			old := *b
			old.PCRs = maps.Clone(b.PCRs)
			old.PCRs[0] = strings.Repeat("ab", 32)
			return []*fleet.Baseline{&old, b}
		}, true, true, -2, "as built"},
		"the nearest set is named": {func(w *world, b *fleet.Baseline) []*fleet.Baseline {
			far, near := *b, *b
			far.PCRs = map[int]string{}
			near.ID, near.Events, near.PCRs = "nearest", nil, maps.Clone(b.PCRs)
			near.PCRs[3] = strings.Repeat("ab", 32)
			return []*fleet.Baseline{&far, &near}
		}, true, false, 3, "baseline nearest"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "ovmf-stub252-disk")
			approved := tt.change(w, w.learned(model))
			w.in.Firmware = &judge.Firmware{Model: model, Approved: approved, Enforce: tt.enforce}
			v := w.judge()
			if v.Accepted != tt.accepted || !strings.Contains(v.Summary, tt.want) {
				t.Errorf("accepted %v, %s; want %v and %q", v.Accepted, v.Summary, tt.accepted, tt.want)
			}
			if tt.pcr == -2 && len(v.Findings) > 0 {
				t.Errorf("findings %+v; want none", v.Findings)
			}
			if tt.pcr > -2 && (len(v.Findings) != 1 || v.Findings[0].Kind != judge.KindBaseline || v.Findings[0].PCR != tt.pcr) {
				t.Errorf("findings %+v; want one of PCR %d", v.Findings, tt.pcr)
			}
		})
	}
}

// A warning about the firmware never hides what stands against acceptance.
func TestFirmwareWarningHidesNothing(t *testing.T) {
	w := newWorld(t, "ovmf-stub252-disk")
	b := w.learned(fleet.Model{})
	b.PCRs[0] = strings.Repeat("ab", 32)
	w.in.Firmware = &judge.Firmware{Approved: []*fleet.Baseline{b}}
	w.seen[w.apps()[1]] = vendor
	v := w.judge()
	if v.Accepted || !slices.ContainsFunc(v.Findings, func(f fleet.Finding) bool { return f.Kind == judge.KindEvent && f.PCR == 4 }) {
		t.Errorf("another UKI beside a firmware warning: %+v", v)
	}
}

func TestBaselineID(t *testing.T) {
	pcrs := map[int]string{0: "a", 2: "b", 3: "c", 7: "d"}
	m := fleet.Model{Vendor: "V", Product: "P", BIOSVersion: "1"}
	id := judge.BaselineID(m, "sha256", pcrs)
	other := maps.Clone(pcrs)
	other[7] = "e"
	for what, got := range map[string]string{
		"other PCR 7": judge.BaselineID(m, "sha256", other),
		"other bank":  judge.BaselineID(m, "sha384", pcrs),
		"other BIOS":  judge.BaselineID(fleet.Model{Vendor: "V", Product: "P", BIOSVersion: "2"}, "sha256", pcrs),
		"other split": judge.BaselineID(fleet.Model{Vendor: "VP", BIOSVersion: "1"}, "sha256", pcrs),
	} {
		if got == id {
			t.Errorf("%s has the same ID %s", what, id)
		}
	}
	other[7], other[1] = "d", "x"
	if got := judge.BaselineID(m, "sha256", other); got != id {
		t.Errorf("PCR 1 changes the ID: %s, %s", got, id)
	}
}

func TestSameBoot(t *testing.T) {
	base := map[int][]byte{}
	for _, p := range judge.Selection {
		base[p] = make([]byte, 32)
	}
	extend := func(words ...string) map[int][]byte {
		m := maps.Clone(base)
		for _, w := range words {
			m[11] = eventlog.Extend("sha256", m[11], eventlog.Hash("sha256", []byte(w)))
		}
		return m
	}
	changed := maps.Clone(base)
	changed[12] = slices.Repeat([]byte{1}, 32)
	missing := maps.Clone(base)
	delete(missing, 4)
	for name, tt := range map[string]struct {
		before, now map[int][]byte
		pcr         int // -1: the same boot
	}{
		"unchanged":                   {base, base, -1},
		"initrd, then system":         {extend("enter-initrd"), extend("enter-initrd", "leave-initrd"), -1},
		"start, then system":          {base, extend("enter-initrd", "leave-initrd"), -1},
		"system, then initrd":         {extend("enter-initrd", "leave-initrd"), extend("enter-initrd"), 11},
		"another word":                {base, extend("sysinit"), 11},
		"PCR 12 extended":             {base, changed, 12},
		"value missing":               {base, missing, 4},
		"nothing known of before":     {map[int][]byte{}, base, 0},
		"PCR 11 of another size":      {map[int][]byte{11: {1}}, base, 0},
		"entered twice":               {extend("enter-initrd"), extend("enter-initrd", "enter-initrd"), 11},
		"left without having entered": {base, extend("leave-initrd"), -1}, // is refused by the phase instead
	} {
		fs := judge.SameBoot("sha256", tt.before, tt.now)
		if tt.pcr == -1 && len(fs) > 0 || tt.pcr >= 0 && (len(fs) == 0 || fs[0].PCR != tt.pcr || fs[0].Kind != judge.KindSameBoot) {
			t.Errorf("%s: %+v; want PCR %d", name, fs, tt.pcr)
		}
	}
}
