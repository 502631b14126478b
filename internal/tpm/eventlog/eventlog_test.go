package eventlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// builder writes crypto-agile logs for tests.
type builder struct{ b []byte }

func le32(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }
func le16(v uint16) []byte { return binary.LittleEndian.AppendUint16(nil, v) }

func cat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func specID(algs ...Algorithm) []byte {
	b := cat([]byte(specID03), le32(0), []byte{0, 2, 105, 2}, le32(uint32(len(algs))))
	for _, a := range algs {
		b = cat(b, le16(a.ID), le16(uint16(a.Size)))
	}
	return append(b, 0)
}

func (w *builder) legacy(pcr uint32, typ Type, digest, data []byte) *builder {
	w.b = cat(w.b, le32(pcr), le32(uint32(typ)), digest, le32(uint32(len(data))), data)
	return w
}

func agile(algs ...Algorithm) *builder {
	return new(builder).legacy(0, NoAction, make([]byte, 20), specID(algs...))
}

var sha256Alg = Algorithm{0x000b, 32}

func (w *builder) event(pcr uint32, typ Type, data string) *builder {
	w.b = cat(w.b, le32(pcr), le32(uint32(typ)), le32(1), le16(0x000b), Hash("sha256", []byte(data)), le32(uint32(len(data))), []byte(data))
	return w
}

func TestParseRefuses(t *testing.T) {
	sha := make([]byte, 32)
	agileEvent := func(parts ...[]byte) []byte { return cat(append([][]byte{agile(sha256Alg).b}, parts...)...) }
	for name, tt := range map[string]struct {
		log  []byte
		want string
	}{
		"digest count 2^32":      {agileEvent(le32(0), le32(4), le32(0xffffffff)), "digests, the header declares"},
		"undeclared algorithm":   {agileEvent(le32(0), le32(4), le32(1), le16(4), sha, le32(0)), "does not declare"},
		"event size 2^32":        {agileEvent(le32(0), le32(4), le32(1), le16(11), sha, le32(0xffffffff)), "event data of 4294967295 bytes"},
		"wrong digest size":      {agile(Algorithm{0x000b, 20}).b, "says a sha256 digest has 20 bytes"},
		"digest size 0":          {agile(Algorithm{0x99, 0}).b, "digests of 0 bytes"},
		"digest size huge":       {agile(Algorithm{0x99, 60000}).b, "digests of 60000 bytes"},
		"algorithm twice":        {agile(sha256Alg, sha256Alg).b, "twice"},
		"no algorithm":           {agile().b, "declares 0 algorithms"},
		"locality twice":         {agile(sha256Alg).event(0, NoAction, startupLocality+"\x03").event(0, NoAction, startupLocality+"\x00").b, "second StartupLocality"},
		"locality late":          {agile(sha256Alg).event(0, Separator, "\x00\x00\x00\x00").event(0, NoAction, startupLocality+"\x03").b, "after PCR 0"},
		"locality 2":             {agile(sha256Alg).event(0, NoAction, startupLocality+"\x02").b, "StartupLocality 2"},
		"short of a header":      {[]byte{1, 2, 3}, "event header needs 8 bytes"},
		"two digests, one kind":  {cat(agile(sha256Alg, Algorithm{4, 20}).b, le32(0), le32(4), le32(2), le16(11), sha, le16(11), sha, le32(0)), "two digests"},
		"garbage between events": {append(agile(sha256Alg).b, bytes.Repeat([]byte{0xff, 0xff, 0xff, 0}, 20)...), "digests, the header"},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := Parse(tt.log)
			var m *MalformedError
			if l != nil || !errors.As(err, &m) || !strings.Contains(m.Reason, tt.want) {
				t.Errorf("Parse = %v, %v; want a MalformedError with %q", l, err, tt.want)
			}
		})
	}
	if _, err := Parse(make([]byte, MaxSize+1)); err == nil || errors.As(err, new(*MalformedError)) {
		t.Errorf("Parse of a log above the limit: %v", err)
	}
}

func TestParseTolerates(t *testing.T) {
	l, err := Parse(agile(sha256Alg).
		event(0, Type(0x8202), "vendor").          // AMD boards
		event(0, NoAction, "StartupLocality\x00"). // too short: no such event
		event(7, NoAction, startupLocality+"\x03").
		event(40, Separator, "\x00\x00\x00\x00").
		event(0xffffffff, NoAction, "").
		event(1, EFIVariableBoot, "not a variable").b)
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Events) != 7 || l.Locality != 0 || len(l.Warnings) != 1 {
		t.Errorf("%d events, locality %d, warnings %q", len(l.Events), l.Locality, l.Warnings)
	}
	if got := l.Events[1].String(); got != "event type 0x00008202" {
		t.Errorf("unknown event is called %q", got)
	}
	want := Extend("sha256", make([]byte, 32), Hash("sha256", []byte("vendor")))
	got := l.Replay("sha256")
	if !bytes.Equal(got[0], want) || len(got) != 2 {
		t.Errorf("Replay = %x; want PCR 0 = %x and PCR 1", got, want)
	}
	if !l.Events[1].HashesData("sha256") || l.Events[1].HashesData("sha384") {
		t.Error("HashesData is wrong")
	}
}

// An event without a digest in the bank makes its PCR unknown, never lighter
// by one event.
func TestReplayMissingDigest(t *testing.T) {
	b := agile(sha256Alg).event(4, Separator, "\x00\x00\x00\x00").event(5, Separator, "\x00\x00\x00\x00").b
	b = cat(b, le32(4), le32(uint32(EFIBootServicesApp)), le32(0), le32(0))
	l, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	got := l.Replay("sha256")
	if _, ok := got[4]; ok || got[5] == nil {
		t.Errorf("Replay = %x; want PCR 5 only", got)
	}
}

// H-CRTM starts PCR 0 at 4 even if the firmware does not log the locality.
func TestHCRTM(t *testing.T) {
	l, err := Parse(agile(sha256Alg).event(0, EFIHCRTMEvent, "HCRTM").b)
	if err != nil {
		t.Fatal(err)
	}
	if l.Locality != 4 {
		t.Errorf("locality = %d; want 4", l.Locality)
	}
}

func TestDescribe(t *testing.T) {
	wide := func(s string) string {
		var b strings.Builder
		for _, c := range []byte(s) {
			b.Write([]byte{c, 0})
		}
		return b.String()
	}
	variable := strings.Repeat("g", 16) + string(le32(10)) + "\x00\x00\x00\x00" + string(le32(1)) + "\x00\x00\x00\x00" + wide("SecureBoot") + "\x01"
	file := wide("\\EFI\\BOOT\\BOOTX64.EFI\x00")
	node := "\x04\x04" + string(le16(uint16(4+len(file)))) + file + "\x7f\xff\x04\x00"
	app := strings.Repeat("\x00", 24) + string(le32(uint32(len(node)))) + "\x00\x00\x00\x00" + node
	for _, tt := range []struct {
		typ  Type
		data string
		want string
	}{
		{IPL, wide(".linux\x00"), `".linux"`},
		{IPL, "grub_cmd: echo\x00", `"grub_cmd: echo"`},
		{EFIAction, "Calling EFI Application from Boot Option", `"Calling EFI Application from Boot Option"`},
		{EFIAction, "\x1b[31mred\"", `"?[31mred'"`},
		{Separator, "\xff\xff\xff\xff", "ffffffff"},
		{EFIVariableDriverCfg, variable, `"SecureBoot"`},
		{EFIVariableDriverCfg, "short", ""},
		{EFIVariableDriverCfg, strings.Repeat("\xff", 64), ""},
		{EFIBootServicesApp, app, `"\EFI\BOOT\BOOTX64.EFI"`},
		{EFIBootServicesApp, strings.Repeat("\xff", 64), ""},
		{NoAction, startupLocality + "\x03", `"StartupLocality"`},
	} {
		if got := (Event{Type: tt.typ, Data: []byte(tt.data)}).Describe(); got != tt.want {
			t.Errorf("%s %q is described as %s; want %s", tt.typ, tt.data, got, tt.want)
		}
	}
	long := Event{Type: EFIAction, Data: bytes.Repeat([]byte(`"`), 1<<20)}
	if got := long.Describe(); len(got) > maxText {
		t.Errorf("description has %d bytes", len(got))
	}
}

// Whatever comes in: no panic, nothing returned with an error, descriptions
// bounded and printable, every event where it says it is.
func FuzzParse(f *testing.F) {
	f.Add([]byte{})
	f.Add(agile(sha256Alg).event(0, NoAction, startupLocality+"\x03").event(4, EFIBootServicesApp, strings.Repeat("\x00", 40)).b)
	f.Add(new(builder).legacy(0, SCRTMVersion, make([]byte, 20), []byte("v")).b)
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := Parse(b)
		sameOfOneBank(t, b, l, err)
		if err != nil {
			if l != nil {
				t.Fatal("a log came with an error")
			}
			return
		}
		for i, e := range l.Events {
			if e.Index != i || e.Offset >= len(b) {
				t.Fatalf("event %d: index %d, offset %d", i, e.Index, e.Offset)
			}
			if d := e.Describe(); len(d) > maxText || !printable(d) {
				t.Fatalf("description %q", d)
			}
		}
		for _, bank := range []string{"sha1", "sha256", "sha384", "sha512"} {
			for pcr, v := range l.Replay(bank) {
				if len(v) != Size(bank) {
					t.Fatalf("%s PCR %d has %d bytes", bank, pcr, len(v))
				}
			}
		}
	})
}

// sameOfOneBank checks that ParseBank reads a log as Parse does, but for the
// other banks, and that Replay of some PCRs is part of that of all.
func sameOfOneBank(t *testing.T, b []byte, all *Log, err error) {
	t.Helper()
	for _, bank := range []string{"sha1", "sha256", "sha384", "sha512", "md5"} {
		one, err1 := ParseBank(b, bank)
		if fmt.Sprint(err) != fmt.Sprint(err1) {
			t.Fatalf("Parse: %v, ParseBank(%s): %v", err, bank, err1)
		}
		if err != nil {
			continue
		}
		want := all.Replay(bank)
		if d := cmp.Diff(want, one.Replay(bank)); d != "" || len(one.Events) != len(all.Events) || one.Locality != all.Locality {
			t.Fatalf("%s of the log with one bank (-all +one):\n%s", bank, d)
		}
		some := all.Replay(bank, 0, 4, 11)
		for p := range PCRs {
			v, ok := some[p]
			if w, has := want[p]; (p == 0 || p == 4 || p == 11) != ok && has || ok && !bytes.Equal(v, w) {
				t.Fatalf("%s PCR %d replays to %x among some, %x among all", bank, p, v, w)
			}
		}
	}
}
