package main

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/turnout-project/turnout/internal/vmtest/redfish"
)

// switched is a machine that is only a switch.
type switched struct{ on, network atomic.Bool }

func (s *switched) Running() bool       { return s.on.Load() }
func (s *switched) PowerOn() error      { s.on.Store(true); return nil }
func (s *switched) PowerOff() error     { s.on.Store(false); return nil }
func (s *switched) Reset() error        { return nil }
func (s *switched) Shutdown() error     { s.on.Store(false); return nil }
func (s *switched) NetworkOnce(is bool) { s.network.Store(is) }

// TestPowerStory is docs/bmc.md against a real server and a BMC.
func TestPowerStory(t *testing.T) {
	m := &switched{}
	b := redfish.New(m, "turnout", "s3cret", redfish.Manners{})
	ts := httptest.NewTLSServer(b)
	defer ts.Close()
	l := newLab(t)
	l.start()
	pw := filepath.Join(t.TempDir(), "pw")
	if err := os.WriteFile(pw, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l.must("node", "add", "n1", "--pool", "rack", "--mac", "52:54:00:77:00:01")
	l.must("node", "add", "n2", "--pool", "rack", "--mac", "52:54:00:77:00:02")
	set := []string{"bmc", "set", "n1", "--address", ts.URL, "--user", "turnout", "--password-file", pw}
	r := l.do(set...)
	pin := regexp.MustCompile(`--pin ([0-9a-f]{64})`).FindStringSubmatch(r.errOut)
	if r.code != exitRefused || pin == nil {
		t.Fatalf("bmc set without a pin: %+v", r)
	}
	l.must(append(set, "--pin", pin[1])...)
	for _, tt := range []struct {
		args string
		code int
		want string
	}{
		{"power status n1", exitOK, "Off"},
		{"power on n1 --reason maintenance", exitOK, "On"},
		{"power cycle n1", exitRefused, "say --yes"},
		{"bmc boot n1 pxe", exitOK, ""},
		{"power cycle n1 --yes", exitOK, "On"},
		{"power off n1 n2 --yes -o json", exitFailure, `"state": "Off"`},
		{"power status --pool rack", exitFailure, "1 of 2 nodes failed: n2"},
		{"power status n2", exitRefused, "pxeserver bmc set n2"},
		{"power status", exitUsage, "either nodes or --pool"},
		{"bmc list", exitOK, "turnout"},
		{"bmc inventory n1", exitOK, "7e57ab1e-0000-4000-8000-525400770001"},
		{"bmc firmware n1", exitOK, "96.00.5E.00.01"},
		{"bmc sensors n1", exitOK, "24.5 °C"},
		{"bmc boot n1 floppy", exitUsage, "pxe, http, disk or none"},
		{"events --node n1 --kind bmc.", exitOK, "maintenance"},
		{"bmc update n1 --file " + pw, exitRefused, "No slot flip takes that back"},
		{"bmc update n1 --yes --file " + pw, exitOK, "Completed"},
		{"bmc remove n1", exitOK, ""},
		{"bmc show n1", exitRefused, "no BMC is set"},
	} {
		r := l.do(strings.Fields(tt.args)...)
		if r.code != tt.code || !strings.Contains(r.out+r.errOut, tt.want) {
			t.Errorf("pxeserver %s: status %d, want %d and %q\n%s%s", tt.args, r.code, tt.code, tt.want, r.out, r.errOut)
		}
	}
	if !m.network.Load() {
		t.Error("the machine was not sent to the network")
	}
	if open, _ := b.Sessions(); open != 0 {
		t.Errorf("%d sessions are open", open)
	}
	if st, err := os.Stat(filepath.Join(l.dir, "data", "bmc.key")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("bmc.key: %v, %v", st, err)
	}
}
