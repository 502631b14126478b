package eventlog

import (
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
)

// notLogs are files of log-like names that hold something else.
var notLogs = map[string]bool{"CCEL.bin": true, "cos-113-intel-tdx.table.bin": true}

// TestEveryRealLog parses every real log there is, and replays each bank of
// it: to what tpm2_eventlog says where that program can read the log (it
// crashes on option_rom_eventlog, and refuses logs of TDX guests).
func TestEveryRealLog(t *testing.T) {
	tool, err := exec.LookPath("tpm2_eventlog")
	if err != nil && os.Getenv("CI") != "" {
		t.Fatal("tpm2_eventlog is missing: install tpm2-tools")
	}
	agreed := 0
	for _, m := range []string{"github.com/google/go-attestation@v0.6.4", "github.com/google/go-eventlog@v0.0.2", "github.com/google/go-tpm-tools@v0.4.7"} {
		for _, file := range logFiles(t, module(t, m)) {
			if notLogs[filepath.Base(file)] {
				continue
			}
			raw := rawLog(t, file)
			l, err := Parse(raw)
			if err != nil {
				t.Errorf("%s: %v", file, err)
				continue
			}
			sameOfOneBank(t, raw, l, nil)
			checkBanks(t, filepath.Base(file), l)
			if tool != "" && agrees(t, tool, raw, filepath.Base(file), l) {
				agreed++
			}
		}
	}
	if tool == "" {
		t.Skip("tpm2_eventlog is not installed: replays were not compared with its own")
	}
	if agreed < 20 {
		t.Errorf("only %d logs could be compared with tpm2_eventlog", agreed)
	}
	t.Logf("%d logs replay as tpm2_eventlog says", agreed)
}

// checkBanks holds the banks of a log against each other: an event whose
// digest is that of its data in one bank has the digest of its data in all,
// which shows that none was taken for another.
func checkBanks(t *testing.T, name string, l *Log) {
	for _, e := range l.Events {
		for _, a := range l.Algorithms {
			first := l.Algorithms[0].Bank()
			if e.Extends() && len(e.Digests) == len(l.Algorithms) && e.HashesData(first) != e.HashesData(a.Bank()) {
				t.Errorf("%s event %d: the digest is that of the data in one of %s and %s only", name, e.Index, first, a.Bank())
			}
		}
	}
}

// hasNotices reports whether the log has events of type EV_NO_ACTION besides
// its header. tpm2-tools 5.4 ignores StartupLocality, and extends PCR 0 with
// the notices of SP 800-155, which no TPM does.
func hasNotices(l *Log) bool {
	return slices.ContainsFunc(l.Events, func(e Event) bool { return e.Index > 0 && e.Type == NoAction && e.PCR == 0 })
}

var toolPCR = regexp.MustCompile(`(?m)^    (\d+) *: 0x([0-9a-f]+)$`)

// agrees compares all banks with what tpm2_eventlog replays.
func agrees(t *testing.T, tool string, raw []byte, name string, l *Log) bool {
	file := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tool, file).Output()
	if err != nil {
		t.Logf("tpm2_eventlog cannot read %s: %v", name, err)
		return false
	}
	n := 0
	for _, m := range toolPCR.FindAllStringSubmatch(string(out), -1) {
		bank := map[int]string{40: "sha1", 64: "sha256", 96: "sha384"}[len(m[2])]
		pcr, _ := strconv.Atoi(m[1])
		got, _ := l.ReplayPCR(bank, pcr, len(l.Events))
		if pcr == 0 && hasNotices(l) {
			continue // tpm2-tools 5.4 does not get the TPM's value: see TestPublishedPCRs, which does
		}
		if hex.EncodeToString(got) != m[2] {
			t.Errorf("%s: %s PCR %d replays to %x; tpm2_eventlog says %s", name, bank, pcr, got, m[2])
		}
		n++
	}
	if want := len(l.Algorithms); n < want {
		t.Errorf("%s: tpm2_eventlog says %d values for %d banks", name, n, want)
	}
	return n > 0
}
