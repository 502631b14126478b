package judge

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/turnout-project/turnout/internal/tpm/eventlog"
)

// The order of Secure Boot settings is held against logs of machines that
// nobody doubts: none of them may be refused.
func TestPCR7OfRealLogs(t *testing.T) {
	cmd := exec.Command("go", "mod", "download", "-json", "github.com/google/go-eventlog@v0.0.2")
	cmd.Dir = t.TempDir()
	out, err := cmd.Output()
	var m struct{ Dir string }
	json.Unmarshal(out, &m) //nolint:errcheck // an empty Dir is handled below
	if err != nil || m.Dir == "" {
		if os.Getenv("CI") != "" {
			t.Fatalf("fetching the logs: %v", err)
		}
		t.Skipf("fetching the logs: %v", err)
	}
	files, err := filepath.Glob(filepath.Join(m.Dir, "testdata", "eventlogs", "tpm", "*.bin"))
	if err != nil || len(files) < 5 {
		t.Fatalf("%d logs, %v", len(files), err)
	}
	settingsSeen := 0
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		log, err := eventlog.Parse(raw)
		if err != nil || !log.Has("sha256") {
			continue
		}
		c := &court{in: Input{Bank: "sha256"}, log: log, proven: map[int]bool{7: true}}
		c.judgePCR7()
		for _, x := range c.verdict.Findings {
			t.Errorf("%s: %+v", filepath.Base(f), x)
		}
		for _, e := range log.Events {
			if e.PCR == 7 && settings[variableName(e.Data)] {
				settingsSeen++
			}
		}
	}
	if settingsSeen < 20 {
		t.Errorf("only %d Secure Boot settings were recognised", settingsSeen)
	}
}
