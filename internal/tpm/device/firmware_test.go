package device

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-tpm/tpm2"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/tpm/eventlog"
	"github.com/turnout-project/turnout/internal/tpm/judge"
	"github.com/turnout-project/turnout/internal/tpm/quote"
	"github.com/turnout-project/turnout/internal/tpm/swtpm"
)

// replayFirmware does to a TPM what the firmware that wrote the log did.
func replayFirmware(t *testing.T, d *Device, log *eventlog.Log) {
	t.Helper()
	for _, e := range log.Events {
		if !e.Extends() {
			continue
		}
		var digests []tpm2.TPMTHA
		for _, x := range e.Digests {
			digests = append(digests, tpm2.TPMTHA{HashAlg: tpm2.TPMAlgID(x.ID), Digest: x.Value})
		}
		_, err := tpm2.PCRExtend{
			PCRHandle: tpm2.AuthHandle{Handle: tpm2.TPMHandle(e.PCR), Auth: tpm2.PasswordAuth(nil)},
			Digests:   tpm2.TPMLDigestValues{Digests: digests},
		}.Execute(d.t)
		if err != nil {
			t.Fatalf("event %d: %v", e.Index, err)
		}
	}
}

// The whole chain, from the log of a real boot through a TPM to a verdict,
// in both banks; and the same TPM with one more event that the log hides.
func TestFirmwareToVerdict(t *testing.T) {
	dir := filepath.Join("..", "judge", "testdata", "ovmf-stub252-disk")
	raw, err := os.ReadFile(filepath.Join(dir, "eventlog.bin"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "evidence.json"))
	if err != nil {
		t.Fatal(err)
	}
	var f struct{ Measurements manifest.Measurements }
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	log, err := eventlog.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	d := open(t, swtpm.Start(t))
	replayFirmware(t, d, log)
	for _, word := range []string{"enter-initrd", "leave-initrd"} {
		if err := d.Extend(11, []byte(word)); err != nil {
			t.Fatal(err)
		}
	}
	ak, err := d.AK()
	if err != nil {
		t.Fatal(err)
	}
	verdict := func(bank string) fleet.Verdict {
		t.Helper()
		n := nonce(t)
		e, err := d.Quote(n, bank, judge.Selection)
		if err != nil {
			t.Fatal(err)
		}
		a, err := quote.Verify(quote.Expect{AK: ak, Nonce: n, Bank: bank, PCRs: judge.Selection}, e.Quote, e.Signature, e.PCRs)
		if err != nil {
			t.Fatal(err)
		}
		return judge.Judge(judge.Input{
			Manifest: &manifest.Manifest{Measurements: f.Measurements}, Path: "disk", Stage: fleet.StageSystem,
			Bank: bank, PCRs: a.PCRs, Log: raw,
		})
	}
	for _, bank := range []string{"sha256", "sha384"} {
		if v := verdict(bank); !v.Accepted {
			t.Errorf("%s: refused: %s", bank, v.Summary)
		}
	}
	if err := d.Extend(4, []byte("hidden")); err != nil {
		t.Fatal(err)
	}
	v := verdict("sha256")
	if v.Accepted || !slices.ContainsFunc(v.Findings, func(f fleet.Finding) bool { return f.Kind == judge.KindReplay && f.PCR == 4 }) {
		t.Errorf("a hidden event: %+v", v)
	}
}

// Logs of other machines, through a TPM: what it quotes is what they replay
// to. Logs that start PCR 0 elsewhere cannot be played from locality 0.
func TestFirmwareLogs(t *testing.T) {
	logs, err := filepath.Glob(filepath.Join("..", "judge", "testdata", "ovmf-*", "eventlog.bin"))
	if err != nil || len(logs) == 0 {
		t.Fatal("no logs", err)
	}
	others, err := filepath.Glob(filepath.Join(module(t, "github.com/google/go-eventlog@v0.0.2"), "testdata", "eventlogs", "tpm", "*.bin"))
	if err != nil || len(others) == 0 {
		t.Fatal("no logs of real machines", err)
	}
	s := swtpm.Start(t)
	for _, file := range append(logs, others...) {
		t.Run(filepath.Base(filepath.Dir(file))+"/"+filepath.Base(file), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			log, err := eventlog.Parse(raw)
			if err != nil {
				t.Fatal(err)
			}
			if log.Locality != 0 || !log.Has("sha256") {
				t.Skip("starts PCR 0 at another locality")
			}
			s.Reset(t)
			d := open(t, s)
			replayFirmware(t, d, log)
			want := log.Replay("sha256")
			pcrs := slices.Sorted(maps.Keys(want))
			ak, err := d.AK()
			if err != nil {
				t.Fatal(err)
			}
			n := nonce(t)
			e, err := d.Quote(n, "sha256", pcrs)
			if err != nil {
				t.Fatal(err)
			}
			a, err := quote.Verify(quote.Expect{AK: ak, Nonce: n, Bank: "sha256", PCRs: pcrs}, e.Quote, e.Signature, e.PCRs)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range pcrs {
				if !bytes.Equal(a.PCRs[p], want[p]) {
					t.Errorf("PCR %d = %x; the log replays to %x", p, a.PCRs[p], want[p])
				}
			}
		})
	}
}

// module returns the folder of a Go module that is no dependency, only a
// source of real event logs.
func module(t *testing.T, nameVersion string) string {
	t.Helper()
	cmd := exec.Command("go", "mod", "download", "-json", nameVersion)
	cmd.Dir = t.TempDir() // outside of this module, so that go.sum stays as it is
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
