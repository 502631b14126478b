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
	for _, check := range []string{"interface", "fleet state", "image store", "CA key", "tokens", "CA certificate", "BMCs"} {
		if fs[check].Level != doctor.OK {
			t.Errorf("%s of a good server: %+v", check, fs[check])
		}
	}
	if r := l.do("node", "add", "n1", "--pool", "rack", "--mac", "52:54:00:12:34:56"); r.code != exitOK {
		t.Fatalf("node add: %+v", r)
	}
	password := filepath.Join(l.dir, "bmc.pw")
	if err := os.WriteFile(password, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := l.do("bmc", "set", "n1", "--address", "127.0.0.1:1", "--user", "root", "--password-file", password, "--pin", strings.Repeat("00", 32), "--no-check"); r.code != exitOK {
		t.Fatalf("bmc set: %+v", r)
	}
	if f := find()["BMCs"]; f.Level != doctor.Warning || !strings.Contains(f.Found, "1 of 1 do not answer; n1: ") {
		t.Errorf("a BMC that does not answer: %+v", f)
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
