package judge_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/tpm/eventlog"
	"github.com/turnout-project/turnout/internal/tpm/judge"
)

// A dbx update, foretold from a baseline, is what the same boot with that dbx
// measures.
func TestWithDBX(t *testing.T) {
	model := fleet.Model{Vendor: "A", Product: "B", BIOSVersion: "1"}
	for _, name := range []string{"ovmf-stub252-disk", "ovmf-stub257-disk"} {
		raw, err := os.ReadFile(filepath.Join("testdata", name, "eventlog.bin"))
		if err != nil {
			t.Fatal(err)
		}
		for _, bank := range []string{"sha256", "sha384"} {
			w := newWorld(t, name)
			before, err := judge.BaselineFromLog(model, bank, raw)
			if err != nil {
				t.Fatal(err)
			}
			list := signatureList(3)
			after, err := judge.WithDBX(before, append([]byte{0x27, 0, 0, 0}, list...)) // as efivarfs shows it
			if err != nil {
				t.Fatal(err)
			}
			// The same boot with that dbx.
			n := 0
			for i, e := range w.seen {
				if e.PCR == 7 && strings.Contains(e.String(), `dbx`) {
					x := event(7, e.Type, variableOf(e.Data[:16], "dbx", list))
					w.seen[i], n = x, n+1
				}
			}
			if n != 1 {
				t.Fatalf("%s: %d events of dbx", name, n)
			}
			log, err := eventlog.Parse(w.encode(w.seen))
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range judge.BaselinePCRs {
				if want := hexString(log.Replay(bank)[p]); after.PCRs[p] != want {
					t.Errorf("%s %s PCR %d is foretold as %s; the machine measures %s", name, bank, p, after.PCRs[p], want)
				}
			}
			if after.PCRs[7] == before.PCRs[7] || after.ID == before.ID {
				t.Errorf("%s: the announced baseline is the old one", name)
			}
		}
	}
}

// What cannot be foretold is an error, never a wrong value.
func TestWithDBXRefuses(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("testdata", "ovmf-stub252-disk", "eventlog.bin"))
	if err != nil {
		t.Fatal(err)
	}
	good := func() *fleet.Baseline {
		b, err := judge.BaselineFromLog(fleet.Model{Vendor: "A"}, "sha256", raw)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	reordered, told := good(), good()
	e := reordered.Events[7]
	e[0], e[1] = e[1], e[0]
	told.Events = nil
	for name, c := range map[string]struct {
		b    *fleet.Baseline
		dbx  []byte
		want string
	}{
		"events do not lead to the value": {reordered, signatureList(1), "one by one"},
		"no events":                       {told, signatureList(1), "one by one"},
		"an update file":                  {good(), append(make([]byte, 40), signatureList(1)...), "signature lists"},
		"cut list":                        {good(), signatureList(2)[:70], "signature lists"},
	} {
		if _, err := judge.WithDBX(c.b, c.dbx); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
}

// signatureList is an EFI_SIGNATURE_LIST of n SHA-256 digests.
func signatureList(n int) []byte {
	b := []byte{0x26, 0x16, 0xc4, 0xc1, 0x4c, 0x50, 0x92, 0x40, 0xac, 0xa9, 0x41, 0xf9, 0x36, 0x93, 0x43, 0x28}
	size := 28 + 48*n
	b = append(b, byte(size), byte(size>>8), 0, 0, 0, 0, 0, 0, 48, 0, 0, 0)
	for i := range n {
		b = append(b, make([]byte, 16)...)
		b = append(b, eventlog.Hash("sha256", []byte{byte(i)})...)
	}
	return b
}

// variableOf is a UEFI_VARIABLE_DATA.
func variableOf(guid []byte, name string, data []byte) string {
	b := append([]byte(nil), guid...)
	b = append(b, byte(len(name)), 0, 0, 0, 0, 0, 0, 0)
	b = append(b, byte(len(data)), byte(len(data)>>8), 0, 0, 0, 0, 0, 0)
	for _, c := range name {
		b = append(b, byte(c), 0)
	}
	return string(append(b, data...))
}
