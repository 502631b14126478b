package eventlog

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// module returns the folder of a Go module that is no dependency, only a
// source of real event logs.
func module(t testing.TB, nameVersion string) string {
	t.Helper()
	cmd := exec.Command("go", "mod", "download", "-json", nameVersion)
	cmd.Dir = t.TempDir() // outside of this module, so that go.sum stays as it is
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod")
	out, err := cmd.Output()
	var m struct{ Dir, Error string }
	json.Unmarshal(out, &m) //nolint:errcheck // an empty Dir is handled below
	if err != nil || m.Dir == "" {
		if os.Getenv("CI") != "" {
			t.Fatalf("fetching %s: %v %s", nameVersion, err, m.Error)
		}
		t.Skipf("fetching %s: %v %s", nameVersion, err, m.Error)
	}
	return m.Dir
}

var sources = map[string]string{
	"google/go-attestation": "github.com/google/go-attestation@v0.6.4",
	"google/go-eventlog":    "github.com/google/go-eventlog@v0.0.2",
}

// realLog reads a log by its name in eventlog-pcrs.json.
func realLog(t testing.TB, name string) []byte {
	t.Helper()
	repo, file, ok := strings.Cut(name, ":")
	if !ok || sources[repo] == "" {
		t.Fatalf("%s names no known module", name)
	}
	b, err := os.ReadFile(filepath.Join(module(t, sources[repo]), file))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

type oracle struct {
	Bytes  int
	SHA256 string
	Agile  bool
	Events int
	PCRs   map[string]map[int]string
}

func oracles(t testing.TB) map[string]oracle {
	t.Helper()
	b, err := os.ReadFile("testdata/eventlog-pcrs.json")
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]oracle
	if err := json.Unmarshal(b, &m); err != nil || len(m) == 0 {
		t.Fatalf("oracle: %v, %d logs", err, len(m))
	}
	return m
}

func replayHex(l *Log, bank string) map[int]string {
	out := map[int]string{}
	for pcr, v := range l.Replay(bank) {
		out[pcr] = hex.EncodeToString(v)
	}
	return out
}

// Real logs of real machines against values computed elsewhere.
func TestReplayRealLogs(t *testing.T) {
	for name, want := range oracles(t) {
		t.Run(name, func(t *testing.T) {
			b := realLog(t, name)
			if got := fmt.Sprintf("%x", Hash("sha256", b)); got != want.SHA256 {
				t.Fatalf("log has SHA-256 %s; want %s", got, want.SHA256)
			}
			l, err := Parse(b)
			if err != nil {
				t.Fatal(err)
			}
			events := want.Events
			if want.Agile {
				events++ // the oracle does not count the header
			}
			if l.Agile != want.Agile || len(l.Events) != events {
				t.Errorf("agile %v, %d events; want %v, %d", l.Agile, len(l.Events), want.Agile, events)
			}
			for bank, pcrs := range want.PCRs {
				if d := cmp.Diff(pcrs, replayHex(l, bank)); d != "" {
					t.Errorf("%s (-want +got):\n%s", bank, d)
				}
			}
			for _, e := range l.Events {
				if d := e.String(); len(d) > 220 || !printable(d) {
					t.Errorf("event %d is described as %q", e.Index, d)
				}
			}
		})
	}
}

// Case C53.
func TestStartupLocality(t *testing.T) {
	l, err := Parse(realLog(t, "google/go-eventlog:testdata/eventlogs/tpm/glinux-alex.bin"))
	if err != nil {
		t.Fatal(err)
	}
	want := "0e5ea849d7647a1ac1becc096fee4df98f00f8015f934afadaab0b8aa20b38a5"
	if got := replayHex(l, "sha256")[0]; got != want || l.Locality != 3 {
		t.Errorf("PCR 0 = %s, locality %d; want %s, 3", got, l.Locality, want)
	}
	short, err := Parse(realLog(t, "google/go-attestation:attest/testdata/short_no_action_eventlog"))
	if err != nil || len(short.Events) != 1 || short.Agile {
		t.Errorf("short log: %+v, %v; want one event of a legacy log", short, err)
	}
}

// Case C56.
func TestMissingEvents(t *testing.T) {
	l, err := Parse(realLog(t, "google/go-attestation:attest/testdata/sb_cert_eventlog"))
	if err != nil {
		t.Fatal(err)
	}
	got := l.Replay("sha256")
	for _, pcr := range []int{1, 2, 3, 6} {
		if v, ok := got[pcr]; ok {
			t.Errorf("PCR %d replays to %x; the log has no event for it", pcr, v)
		}
	}
	l, err = Parse(realLog(t, "google/go-attestation:attest/testdata/ebs_event_missing_eventlog"))
	if err != nil {
		t.Fatal(err)
	}
	v := l.Replay("sha1")[5]
	if got := hex.EncodeToString(v); got != "e5781a2fd49c23a33b16bf0ba5f10efa1aa5d43c" {
		t.Errorf("PCR 5 = %s", got)
	}
	for _, action := range []string{"Exit Boot Services Invocation", "Exit Boot Services Returned with Success"} {
		v = Extend("sha1", v, Hash("sha1", []byte(action)))
	}
	if got := hex.EncodeToString(v); got != "31245808d6d35849bc394f6343f2b3ff908ed5e3" {
		t.Errorf("PCR 5 with the missing events = %s; want what the TPM had", got)
	}
	if l.Replay("sha256") != nil {
		t.Error("a log with SHA-1 only replays for sha256")
	}
}

// Case C60.
func TestCutLog(t *testing.T) {
	full := realLog(t, "google/go-eventlog:testdata/eventlogs/tpm/rhel8-uefi.bin")
	whole, err := Parse(full)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Parse(nil); !errors.Is(err, ErrEmpty) {
		t.Errorf("Parse of nothing: %v; want ErrEmpty", err)
	}
	boundary := map[int]bool{}
	for _, e := range whole.Events {
		boundary[e.Offset] = true
	}
	for n := 1; n < len(full); n++ {
		l, err := Parse(full[:n])
		var m *MalformedError
		switch {
		case boundary[n] && (err != nil || len(l.Events) >= len(whole.Events)):
			t.Fatalf("cut between events at %d: %v", n, err)
		case !boundary[n] && !errors.As(err, &m):
			t.Fatalf("cut at %d: error %v; want a MalformedError", n, err)
		case m != nil && (l != nil || m.Offset > n || m.Event != len(m.Prefix.Events)):
			t.Fatalf("cut at %d: %+v", n, m)
		}
	}
	l, err := Parse(full[:33872])
	if err != nil || len(l.Events) != 82 {
		t.Fatalf("cut at 33872: %d events, %v; want the header and 81", len(l.Events), err)
	}
	if cmp.Equal(l.Replay("sha256")[5], whole.Replay("sha256")[5]) {
		t.Error("PCR 5 of the cut log equals that of the whole one")
	}
	for _, fill := range []string{"\x00", "\xff"} {
		l, err := Parse(append([]byte(nil), string(full)+strings.Repeat(fill, 1000)...))
		if err != nil || l.Padding != 1000 || len(l.Events) != len(whole.Events) {
			t.Errorf("log with padding %q: %v", fill, err)
		}
	}
}
