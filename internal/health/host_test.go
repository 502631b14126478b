package health

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestLinks(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{"eth0/operstate": "up\n", "eth0/device/x": "", "eth1/operstate": "down\n", "ib0/operstate": "unknown\n", "br0/operstate": "down\n"} {
		p := filepath.Join(root, "sys/class/net", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		names []string
		want  string // "" passes, "?" cannot tell
	}{
		{nil, ""}, {[]string{"eth0"}, ""}, {[]string{"eth0", "eth1"}, "eth1: expected up, seen down"}, {[]string{"eth9"}, "seen absent"}, {[]string{"ib0"}, "?"},
	} {
		seen, err := Links(root, tt.names...)
		switch {
		case tt.want == "" && (err != nil || seen == ""), tt.want == "?" && !errors.Is(err, ErrUnknown),
			len(tt.want) > 1 && (err == nil || errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("Links(%q) = %q, %v; want %q", tt.names, seen, err, tt.want)
		}
	}
	if _, err := Links(t.TempDir()); err == nil {
		t.Error("a machine without interfaces passes")
	}
}

func TestSpace(t *testing.T) {
	if seen, err := Space(t.TempDir(), 0); err != nil || seen == "" {
		t.Errorf("Space = %q, %v", seen, err)
	}
	if _, err := Space(t.TempDir(), 101); err == nil || !strings.Contains(err.Error(), "expected 101 % of space free") {
		t.Errorf("Space of more than all = %v", err)
	}
	if _, err := Space("/no/such/folder", 1); !errors.Is(err, ErrUnknown) {
		t.Errorf("Space of nothing = %v", err)
	}
	if _, err := Space("/sys", 0); err != nil && !strings.Contains(err.Error(), "read-only") {
		t.Errorf("Space(/sys) = %v", err)
	}
}

func TestClock(t *testing.T) {
	built := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		now    time.Time
		isSync bool
		want   string
	}{
		{built.Add(time.Hour), true, ""}, {built.Add(time.Hour), false, "running free"}, {time.Unix(0, 0).UTC(), true, "seen 1970-01-01"},
	} {
		if _, err := Clock(tt.now, built, tt.isSync); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Clock(%s, %v) = %v, want %q", tt.now, tt.isSync, err, tt.want)
		}
	}
	if _, err := IsSynchronised(); err != nil {
		t.Errorf("IsSynchronised: %v", err)
	}
}
