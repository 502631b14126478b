package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/doctor"
)

// The doctor looks at a server that runs without disturbing it, and finds
// what was broken.
func TestDoctor(t *testing.T) {
	l := newLab(t)
	if r := l.do("doctor", "--wait", "0"); r.code != exitOK || !strings.Contains(r.out, "none yet") || !strings.Contains(r.out, "API and console: free") {
		t.Fatalf("before the first start: %+v", r)
	}
	l.start()
	find := func() map[string]doctor.Finding {
		t.Helper()
		var fs []doctor.Finding
		r := l.do("doctor", "--wait", "0", "-o", "json")
		if err := json.Unmarshal([]byte(r.out), &fs); err != nil {
			t.Fatalf("%v: %+v", err, r)
		}
		out := map[string]doctor.Finding{}
		for _, f := range fs {
			out[f.Check] = f
		}
		return out
	}
	fs := find()
	for _, check := range []string{"interface", "fleet state", "image store", "CA key", "tokens", "CA certificate"} {
		if fs[check].Level != doctor.OK {
			t.Errorf("%s of a good server: %+v", check, fs[check])
		}
	}
	if err := os.Chmod(filepath.Join(l.dir, "data", "ca.key"), 0o644); err != nil {
		t.Fatal(err)
	}
	if f := find()["CA key"]; f.Level != doctor.Failure || !strings.HasPrefix(f.Fix, "chmod 600 ") {
		t.Errorf("a CA key for everybody: %+v", f)
	}
	if r := l.do("doctor", "--wait", "0", "--quiet"); r.code != exitFailure || strings.Contains(r.out, "✓") || !strings.Contains(r.out, "→ chmod 600") {
		t.Errorf("doctor --quiet: %+v", r)
	}
}
