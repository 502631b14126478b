package judge_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/tpm/eventlog"
	"github.com/turnout-project/turnout/internal/tpm/judge"
	"github.com/turnout-project/turnout/internal/tpm/measure"
	"github.com/turnout-project/turnout/internal/tpm/quote"
)

func readFixture(t testing.TB, name string) (fixture, []byte) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name, "evidence.json"))
	if err != nil {
		t.Fatal(err)
	}
	var f fixture
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(filepath.Join("testdata", name, "eventlog.bin"))
	if err != nil {
		t.Fatal(err)
	}
	return f, log
}

func (f fixture) manifest() *manifest.Manifest {
	return &manifest.Manifest{SchemaVersion: manifest.Version, Name: "rack", Version: "1", Measurements: f.Measurements}
}

func values(t testing.TB, m map[int]string) map[int][]byte {
	t.Helper()
	out := map[int][]byte{}
	for p, v := range m {
		b, err := hex.DecodeString(v)
		if err != nil {
			t.Fatal(err)
		}
		out[p] = b
	}
	return out
}

// Kept boots of real firmware.
func TestFixtures(t *testing.T) {
	dirs, err := filepath.Glob("testdata/ovmf-*")
	if err != nil || len(dirs) < 8 {
		t.Fatalf("%d fixtures, %v", len(dirs), err)
	}
	unb64 := func(s string) []byte {
		b, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			f, log := readFixture(t, filepath.Base(dir))
			want := quote.Expect{AK: unb64(f.AK), Nonce: unb64(f.Nonce), Bank: "sha256", PCRs: judge.Selection}
			if _, err := quote.Verify(want, unb64(f.Quote), unb64(f.Signature), values(t, f.PCRs)); err != nil {
				t.Fatal(err)
			}
			for bank, pcrs := range map[string]map[int]string{"sha256": f.PCRs, "sha384": f.PCRs384} {
				v := judge.Judge(judge.Input{
					Manifest: f.manifest(), Digest: "sha256:d", Path: f.Path, Stage: fleet.StageSystem,
					Bank: bank, PCRs: values(t, pcrs), Log: log,
				})
				changed := strings.HasSuffix(dir, "-changed")
				if v.Accepted == changed {
					t.Errorf("%s: accepted %v: %s", bank, v.Accepted, v.Summary)
				}
				if changed && !strings.Contains(v.Summary, "section .osrel of the UKI differs") {
					t.Errorf("%s: %s", bank, v.Summary)
				}
				if !changed && (v.Path != f.Path || v.Phase != "enter-initrd:leave-initrd" || v.Bank != bank || v.Image != "sha256:d") {
					t.Errorf("%s: %+v", bank, v)
				}
			}
		})
	}
}

// world is a boot that a test can rewrite: what the TPM saw, and what the log
// says of it.
type world struct {
	t      *testing.T
	header []byte
	seen   []eventlog.Event
	logged []eventlog.Event // nil: the same as seen
	words  []string         // extended into PCR 11 after the firmware
	in     judge.Input
}

func newWorld(t *testing.T, name string) *world {
	t.Helper()
	f, raw := readFixture(t, name)
	log, err := eventlog.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return &world{
		t: t, header: raw[:log.Events[1].Offset], seen: log.Events[1:],
		words: []string{"enter-initrd", "leave-initrd"},
		in:    judge.Input{Manifest: f.manifest(), Digest: "sha256:d", Path: f.Path, Stage: fleet.StageSystem, Bank: "sha256"},
	}
}

var banks = []struct {
	name string
	id   uint16
}{{"sha1", 0x0004}, {"sha256", 0x000b}, {"sha384", 0x000c}, {"sha512", 0x000d}}

// event makes an event that hashes data.
func event(pcr int, typ eventlog.Type, data string) eventlog.Event {
	e := eventlog.Event{PCR: pcr, Type: typ, Data: []byte(data)}
	for _, b := range banks {
		e.Digests = append(e.Digests, eventlog.Digest{ID: b.id, Value: eventlog.Hash(b.name, []byte(data))})
	}
	return e
}

// encode writes the log.
func (w *world) encode(events []eventlog.Event) []byte {
	b := slices.Clone(w.header)
	le := binary.LittleEndian
	for _, e := range events {
		b = le.AppendUint32(b, uint32(e.PCR))
		b = le.AppendUint32(b, uint32(e.Type))
		b = le.AppendUint32(b, uint32(len(e.Digests)))
		for _, d := range e.Digests {
			b = append(le.AppendUint16(b, d.ID), d.Value...)
		}
		b = append(le.AppendUint32(b, uint32(len(e.Data))), e.Data...)
	}
	return b
}

// judge gives the verdict on the world as it is now.
func (w *world) judge() fleet.Verdict {
	w.t.Helper()
	log, err := eventlog.Parse(w.encode(w.seen))
	if err != nil {
		w.t.Fatal(err)
	}
	in := w.in
	replayed := log.Replay(in.Bank)
	pcrs := map[int][]byte{}
	for _, p := range judge.Selection {
		pcrs[p] = replayed[p]
		if pcrs[p] == nil {
			pcrs[p] = make([]byte, eventlog.Size(in.Bank))
		}
	}
	for _, word := range w.words {
		pcrs[11] = eventlog.Extend(in.Bank, pcrs[11], eventlog.Hash(in.Bank, []byte(word)))
	}
	maps.Copy(pcrs, in.PCRs)
	in.PCRs = pcrs
	if in.Log == nil {
		logged := w.logged
		if logged == nil {
			logged = w.seen
		}
		in.Log = w.encode(logged)
	}
	return judge.Judge(in)
}

// apps returns the indices of the applications in seen.
func (w *world) apps() []int {
	var out []int
	for i, e := range w.seen {
		if e.PCR == 4 && e.Type == eventlog.EFIBootServicesApp {
			out = append(out, i)
		}
	}
	return out
}

func (w *world) insert(at int, es ...eventlog.Event) { w.seen = slices.Insert(w.seen, at, es...) }

func without(es []eventlog.Event, drop func(eventlog.Event) bool) []eventlog.Event {
	return slices.DeleteFunc(slices.Clone(es), drop)
}

func of(pcr int) func(eventlog.Event) bool {
	return func(e eventlog.Event) bool { return e.PCR == pcr && e.Extends() }
}

func hexString(b []byte) string { return hex.EncodeToString(b) }

func digestOf(e eventlog.Event) string { return hex.EncodeToString(e.Digest("sha256")) }

// variable is a UEFI_VARIABLE_DATA.
func variable(name, data string) string {
	b := make([]byte, 16, 64)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(name)))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(data)))
	for _, c := range []byte(name) {
		b = append(b, c, 0)
	}
	return string(b) + data
}

var vendor = event(4, eventlog.EFIBootServicesApp, "vendor application")

// What must be accepted although it is not the plain boot.
func TestAccepted(t *testing.T) {
	calling := event(4, eventlog.EFIAction, measure.ActionCalling)
	returning := event(4, eventlog.EFIAction, measure.ActionReturning)
	for name, change := range map[string]func(*world){
		"as it was":             func(*world) {},
		"claims the other path": func(w *world) { w.in.Path = "network" },
		"claims no path":        func(w *world) { w.in.Path = "" },
		"failed boot option":    func(w *world) { w.insert(w.apps()[0], returning, calling) },
		"failed vendor program, allowed": func(w *world) {
			w.insert(w.apps()[0], vendor, returning, calling)
			w.in.AllowApplications = map[string]string{digestOf(vendor): "vendor tool"}
		},
		"own loader gave up first": func(w *world) {
			w.insert(w.apps()[0], w.seen[w.apps()[0]], returning, calling)
		},
		"vendor program, allowed in capitals": func(w *world) {
			w.insert(w.apps()[0], vendor)
			w.in.AllowApplications = map[string]string{strings.ToUpper(digestOf(vendor)): "vendor tool"}
		},
		"loader of another image, allowed": func(w *world) {
			w.seen[w.apps()[0]] = vendor
			w.in.AllowApplications = map[string]string{digestOf(vendor): measure.AppLoader}
		},
		"vendor program instead of the loader": func(w *world) { // that is the network path, after a program that may run
			w.seen[w.apps()[0]] = vendor
			w.in.AllowApplications = map[string]string{digestOf(vendor): "vendor tool"}
		},
		"kernel not measured": func(w *world) { w.seen = slices.Delete(w.seen, w.apps()[2], w.apps()[2]+1) },
		"separator of ones": func(w *world) {
			for i, e := range w.seen {
				if e.PCR == 4 && e.Type == eventlog.Separator {
					w.seen[i] = event(4, eventlog.Separator, "\xff\xff\xff\xff")
				}
			}
		},
		"PCR without events at its reset value":     func(w *world) { w.seen = without(w.seen, of(6)) },
		"unknown event in a PCR that is not pinned": func(w *world) { w.insert(0, event(1, 0x8202, "board")) },
		"event types rewritten in the log": func(w *world) {
			w.logged = slices.Clone(w.seen)
			for i := range w.logged {
				if w.logged[i].PCR == 4 {
					w.logged[i].Type = eventlog.IPL
				}
			}
		},
		"event data rewritten: a path is only a hint": func(w *world) {
			w.logged = slices.Clone(w.seen)
			for _, i := range w.apps() {
				w.logged[i].Data = []byte("\\EFI\\evil.efi")
			}
		},
		"vendor's action in PCR 7": func(w *world) { w.insert(0, event(7, eventlog.EFIAction, "DMA protection is off")) },
		"StartupLocality that is not of PCR 0": func(w *world) {
			w.logged = append([]eventlog.Event{event(7, eventlog.NoAction, "StartupLocality\x00\x03")}, w.seen...)
		},
		"padding after the log": func(w *world) { w.in.Log = append(w.encode(w.seen), make([]byte, 100)...) },
		"cmdline measured once": func(w *world) {
			i := slices.IndexFunc(w.seen, of(12))
			w.seen = slices.Delete(w.seen, i, i+1)
		},
		"cmdline not measured": func(w *world) { w.seen = without(w.seen, of(12)) },
		"installer": func(w *world) {
			w.in.Stage, w.in.Path, w.words = fleet.StageInstaller, measure.PathInstaller, w.words[:1]
			m := &w.in.Manifest.Measurements
			m.Installer11 = m.PCR11
			m.Paths = append(slices.Clone(m.Paths), manifest.BootPath{Name: measure.PathInstaller, Applications: m.Paths[0].Applications})
			m.Paths = slices.DeleteFunc(m.Paths, func(p manifest.BootPath) bool { return p.Name != measure.PathInstaller })
			m.Paths = m.Paths[1:]
			w.seen = without(w.seen, of(12))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "ovmf-stub252-disk")
			change(w)
			if v := w.judge(); !v.Accepted || len(v.Findings) > 0 {
				t.Errorf("refused: %s", v.Summary)
			}
		})
	}
}

// What must be refused, with the kind of finding, its PCR, and words of the
// summary.
func TestRefused(t *testing.T) {
	zero, ones := make([]byte, 32), bytes.Repeat([]byte{0xff}, 32)
	calling := event(4, eventlog.EFIAction, measure.ActionCalling)
	returning := event(4, eventlog.EFIAction, measure.ActionReturning)
	for name, tt := range map[string]struct {
		change func(*world)
		kind   string
		pcr    int
		want   string
	}{
		"no manifest":        {func(w *world) { w.in.Manifest = nil }, judge.KindRequest, -1, "manifest"},
		"SHA-1":              {func(w *world) { w.in.Bank = "sha1" }, judge.KindRequest, -1, "cannot judge bank"},
		"empty manifest":     {func(w *world) { w.in.Manifest = new(manifest.Manifest) }, judge.KindRequest, 4, "no boot path"},
		"no log":             {func(w *world) { w.in.Log = []byte{} }, judge.KindNoLog, -1, "no event log"},
		"log cut":            {func(w *world) { w.in.Log = w.encode(w.seen)[:5000] }, judge.KindTruncated, -1, "damaged or cut at event"},
		"log is rubbish":     {func(w *world) { w.in.Log = bytes.Repeat([]byte{1}, 999) }, judge.KindTruncated, -1, "damaged or cut"},
		"old form of log":    {func(w *world) { w.in.Log = make([]byte, 32) }, judge.KindLogBank, -1, "SHA-1 only"},
		"log cut at event":   {func(w *world) { w.logged = w.seen[:len(w.seen)-1] }, judge.KindReplay, 5, "events are missing"},
		"empty bank":         {func(w *world) { w.in.PCRs = map[int][]byte{0: zero, 4: zero, 7: zero, 11: zero} }, judge.KindEmptyBank, 0, "never extended"},
		"PCR 7 all ones":     {func(w *world) { w.in.PCRs = map[int][]byte{7: ones} }, judge.KindEmptyBank, 7, "never extended"},
		"PCR not quoted":     {func(w *world) { w.in.PCRs = map[int][]byte{4: nil} }, "selection", 4, "no proven value of PCR 4"},
		"PCR of other bank":  {func(w *world) { w.in.PCRs = map[int][]byte{7: make([]byte, 48)} }, "selection", 7, "no proven value"},
		"PCR 7 events gone":  {func(w *world) { w.logged = without(w.seen, of(7)) }, judge.KindReplay, 7, "no event for it"},
		"PCR 4 events gone":  {func(w *world) { w.logged = without(w.seen, of(4)) }, judge.KindReplay, 4, "no event for it"},
		"PCR 11 events gone": {func(w *world) { w.logged = without(w.seen, of(11)) }, judge.KindReplay, 11, "no event for it"},
		"event the TPM never saw": {func(w *world) {
			w.logged = append(slices.Clone(w.seen), event(4, eventlog.EFIAction, measure.ActionReturning))
		}, judge.KindReplay, 4, "the TPM never saw"},
		"event of PCR 4 hidden as no action": {func(w *world) {
			w.insert(w.apps()[0], vendor)
			w.logged = slices.Clone(w.seen)
			w.logged[w.apps()[0]].Type = eventlog.NoAction
		}, judge.KindReplay, 4, ""},
		"event digest changed": {func(w *world) {
			w.logged = slices.Clone(w.seen)
			w.logged[w.apps()[1]] = vendor
		}, judge.KindReplay, 4, "missing or were changed"},
		"locality forged": {func(w *world) {
			w.logged = append([]eventlog.Event{event(0, eventlog.NoAction, "StartupLocality\x00\x03")}, w.seen...)
		}, judge.KindReplay, 0, ""},
		"PCR never extended, log says so": {func(w *world) { w.in.PCRs = map[int][]byte{6: zero} }, judge.KindReplay, 6, "never extended"},
		"ExitBootServices not logged": {func(w *world) {
			w.logged = without(w.seen, func(e eventlog.Event) bool { return strings.HasPrefix(string(e.Data), "Exit Boot") })
		}, judge.KindReplay, 5, "ExitBootServices"},

		"ExitBootServices added to a log that lacks them": {func(w *world) { // row 11: what was made up must not help
			full := w.seen
			w.seen = without(w.seen, func(e eventlog.Event) bool { return strings.HasPrefix(string(e.Data), "Exit Boot") })
			w.logged = full
		}, judge.KindReplay, 5, "the TPM never saw"},
		"log of a later moment": {func(w *world) { // row 15: read after the quote
			w.logged = append(slices.Clone(w.seen), event(7, eventlog.EFIVariableAuthority, "later"))
		}, judge.KindReplay, 7, "the TPM never saw"},
		"log of another boot": {func(w *world) {
			w.logged = newWorld(t, "ovmf-stub257-disk").seen
		}, judge.KindReplay, 4, ""},
		"log without any event": {func(w *world) { w.logged = []eventlog.Event{} }, judge.KindReplay, 4, "no event for it"},
		"locality told twice": {func(w *world) {
			l := event(0, eventlog.NoAction, "StartupLocality\x00\x00")
			w.logged = append([]eventlog.Event{l, l}, w.seen...)
		}, judge.KindTruncated, -1, "second StartupLocality"},
		"bank in the log that the TPM never extended": {func(w *world) { // "Carte Blanche"
			w.in.PCRs = map[int][]byte{0: zero}
		}, judge.KindEmptyBank, 0, "never extended"},
		"second separator in PCR 7": {func(w *world) {
			w.seen = append(w.seen, event(7, eventlog.Separator, "\x00\x00\x00\x00"))
		}, judge.KindEvent, 7, "second separator in PCR 7"},
		"SecureBoot after the separator": {func(w *world) {
			w.seen = append(w.seen, event(7, eventlog.EFIVariableDriverCfg, variable("SecureBoot", "\x01")))
		}, judge.KindEvent, 7, "after the separator"},
		"SecureBoot after the separator, under another type": {func(w *world) {
			w.seen = append(w.seen, event(7, eventlog.EFIAction, variable("SecureBoot", "\x01")))
		}, judge.KindEvent, 7, "after the separator"},
		"SecureBoot twice": {func(w *world) {
			w.insert(0, event(7, eventlog.EFIVariableDriverCfg, variable("SecureBoot", "\x01")))
		}, judge.KindEvent, 7, "measured twice"},

		"other UKI":         {func(w *world) { w.seen[w.apps()[1]] = vendor }, judge.KindEvent, 4, "(UKI): expected"},
		"other loader":      {func(w *world) { w.seen[w.apps()[0]] = vendor }, judge.KindEvent, 4, "(systemd-boot): expected"},
		"other kernel":      {func(w *world) { w.seen[w.apps()[2]] = vendor }, judge.KindEvent, 4, "after the image's own"},
		"program after all": {func(w *world) { w.insert(w.apps()[2]+1, vendor) }, judge.KindEvent, 4, "after the image's own"},
		"program before":    {func(w *world) { w.insert(w.apps()[0], vendor) }, judge.KindEvent, 4, "not the one that was built"},
		"program in a failed option": {func(w *world) {
			w.insert(w.apps()[0], vendor, returning, calling)
		}, judge.KindEvent, 4, "unknown program ran before"},
		"allowed for another bank only": {func(w *world) {
			w.insert(w.apps()[0], vendor)
			w.in.AllowApplications = map[string]string{hex.EncodeToString(vendor.Digest("sha384")): "vendor tool"}
		}, judge.KindEvent, 4, ""},
		"UKI missing":      {func(w *world) { w.seen = slices.Delete(w.seen, w.apps()[1], w.apps()[2]+1) }, judge.KindEvent, 4, "no event for the start of UKI"},
		"second separator": {func(w *world) { w.insert(w.apps()[1], event(4, eventlog.Separator, "\x00\x00\x00\x00")) }, judge.KindEvent, 4, "second separator"},
		"no separator": {func(w *world) {
			w.seen = without(w.seen, func(e eventlog.Event) bool { return e.PCR == 4 && e.Type == eventlog.Separator })
		}, judge.KindEvent, 4, "separator"},
		"gave up": {func(w *world) { w.insert(w.apps()[2]+1, returning) }, judge.KindEvent, 4, "gave up"},

		"phase too early": {func(w *world) { w.words = w.words[:1] }, judge.KindPhase, 11, `in phase "enter-initrd"`},
		"phase missing":   {func(w *world) { w.words = nil }, judge.KindPhase, 11, `in phase ""`},
		"a word too many": {func(w *world) { w.words = append(w.words, "more") }, judge.KindReplay, 11, "neither in the log nor a boot phase"},
		"words swapped":   {func(w *world) { slices.Reverse(w.words) }, judge.KindReplay, 11, "neither"},
		"section more": {func(w *world) {
			w.seen = append(w.seen, event(11, eventlog.IPL, ".dtb\x00"))
		}, judge.KindEvent, 11, "a section more"},
		"sections missing": {func(w *world) {
			n := 0
			w.seen = without(w.seen, func(e eventlog.Event) bool { n++; return e.PCR == 11 && n > 30 })
		}, judge.KindPCRValue, 11, "PCR 11"},
		"initrd changed": {func(w *world) {
			n := 0
			for i, e := range w.seen {
				if e.PCR == 11 {
					if n++; n == 8 { // name and contents of .linux, .osrel, .cmdline, .initrd
						w.seen[i] = event(11, eventlog.IPL, "evil initrd")
					}
				}
			}
		}, judge.KindEvent, 11, "section .initrd of the UKI differs"},

		"other cmdline": {func(w *world) {
			w.seen = append(w.seen, event(12, eventlog.IPL, "i\x00n\x00i\x00t\x00=\x00x\x00\x00\x00"))
		},
			judge.KindPCRValue, 12, `EV_IPL "init=x"`},
		"cmdline three times": {func(w *world) {
			w.seen = append(w.seen, w.seen[slices.IndexFunc(w.seen, of(12))])
		}, judge.KindPCRValue, 12, "PCR 12"},
		"extension": {func(w *world) { w.seen = append(w.seen, event(13, eventlog.IPL, "sysext")) }, judge.KindPCRValue, 13, "sysext"},
		"slot UKI as installer": {func(w *world) {
			w.in.Stage, w.words = fleet.StageInstaller, w.words[:1]
		}, judge.KindEvent, 4, "installer UKI"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "ovmf-stub252-disk")
			tt.change(w)
			v := w.judge()
			if v.Accepted {
				t.Fatal("accepted")
			}
			found := slices.ContainsFunc(v.Findings, func(f fleet.Finding) bool { return f.Kind == tt.kind && f.PCR == tt.pcr })
			if !found || !strings.Contains(v.Summary, tt.want) {
				t.Errorf("findings %+v\nsummary %s\nwant kind %s of PCR %d and %q", v.Findings, v.Summary, tt.kind, tt.pcr, tt.want)
			}
			for _, f := range v.Findings {
				if f.Kind == "" || f.What == "" || f.Detail == "" {
					t.Errorf("finding is not whole: %+v", f)
				}
			}
		})
	}
}

// Nothing is judged from a log that does not replay (invariant 6): the only
// finding about PCR 4 is that it does not.
func TestNothingJudgedWithoutReplay(t *testing.T) {
	w := newWorld(t, "ovmf-stub252-disk")
	w.logged = slices.Clone(w.seen)
	w.logged[w.apps()[1]] = vendor
	v := w.judge()
	var kinds []string
	for _, f := range v.Findings {
		if f.PCR == 4 {
			kinds = append(kinds, f.Kind)
		}
	}
	if d := cmp.Diff([]string{judge.KindReplay}, kinds); d != "" {
		t.Errorf("findings of PCR 4 (-want +got):\n%s", d)
	}
}

// A log of a machine that has nothing to do with the image, from real
// hardware: refused, and no panic on the way.
func TestZeroInput(t *testing.T) {
	if v := judge.Judge(judge.Input{}); v.Accepted || v.Summary == "" {
		t.Errorf("verdict on nothing: %+v", v)
	}
	v := judge.Refused("sha256:d", "sha256", &quote.Error{Kind: quote.KindNonce, Detail: "old"})
	if v.Accepted || len(v.Findings) != 1 || v.Findings[0].Kind != "nonce" || !strings.Contains(v.Summary, "old") {
		t.Errorf("verdict on a refused quote: %+v", v)
	}
}
