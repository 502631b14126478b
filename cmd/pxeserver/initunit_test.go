package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/config"
)

func TestUnit(t *testing.T) {
	text, err := unit("/opt/turnout/bin/pxeserver", "/opt/turnout/pxeserver.yaml", &config.Config{DataDir: "/srv/turnout"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ExecStart=/opt/turnout/bin/pxeserver serve --config /opt/turnout/pxeserver.yaml\n", "ConditionPathExists=/opt/turnout/pxeserver.yaml\n", "ReadWritePaths=/srv/turnout\n", "NoNewPrivileges=yes"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in:\n%s", want, text)
		}
	}
	if strings.Contains(text, "StateDirectory") {
		t.Error("a state directory besides the data folder")
	}
	packaged, err := unit("/usr/bin/pxeserver", "/etc/turnout/pxeserver.yaml", &config.Config{DataDir: "/var/lib/turnout"})
	if err != nil || !strings.Contains(packaged, "StateDirectory=turnout\n") {
		t.Errorf("the packaged places: %v\n%s", err, packaged)
	}
	if _, err := unit("/opt/a b/pxeserver", "c.yaml", &config.Config{DataDir: "/d"}); err == nil {
		t.Error("a path with a space was not refused")
	}
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		return
	}
	// systemd reads it without a complaint.
	f := filepath.Join(t.TempDir(), "pxeserver.service")
	text, err = unit("/bin/true", "/etc/turnout/pxeserver.yaml", &config.Config{DataDir: "/var/lib/turnout"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", f).CombinedOutput(); err != nil || strings.Contains(string(out), f) {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	// And finds it hardened: 2.0 of 10 is what port numbers and raw frames cost.
	if out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", f).CombinedOutput(); err != nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
}
