package bmc_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/bmc"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/vmtest/redfish"
)

// machine is a switch: what happened to it is remembered.
type machine struct {
	mu  sync.Mutex
	on  bool
	did []string
}

func (m *machine) do(what string, on bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if what == "on" && m.on {
		return errors.New("it is on already")
	}
	m.did, m.on = append(m.did, what), on
	return nil
}

func (m *machine) Running() bool   { m.mu.Lock(); defer m.mu.Unlock(); return m.on }
func (m *machine) PowerOn() error  { return m.do("on", true) }
func (m *machine) PowerOff() error { return m.do("off", false) }
func (m *machine) Reset() error    { return m.do("reset", true) }
func (m *machine) Shutdown() error { return m.do("shutdown", false) }
func (m *machine) NetworkOnce(is bool) {
	if is {
		_ = m.do("network once", m.Running())
	}
}

func (m *machine) story() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := strings.Join(m.did, ", ")
	m.did = nil
	return s
}

// lab is a BMC over HTTPS.
type lab struct {
	*redfish.BMC
	m      *machine
	target bmc.Target
	caPEM  string
}

func newLab(t *testing.T, manners redfish.Manners) *lab {
	t.Helper()
	m := &machine{}
	b := redfish.New(m, "root", "s3cret", manners)
	ts := httptest.NewTLSServer(b)
	t.Cleanup(func() {
		ts.Close()
		if open, ever := b.Sessions(); open != 0 {
			t.Errorf("%d of %d sessions were left open", open, ever)
		}
	})
	h := sha256.Sum256(ts.Certificate().Raw)
	return &lab{b, m, bmc.Target{URL: ts.URL, User: "root", Password: "s3cret", Pin: hex.EncodeToString(h[:])},
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ts.Certificate().Raw}))}
}

func (l *lab) with(t *testing.T, fn func(s *bmc.Session) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := bmc.Open(ctx, l.target)
	if err != nil {
		return err
	}
	defer s.Close()
	return fn(s)
}

func TestPower(t *testing.T) {
	for _, c := range []struct {
		name    string
		manners redfish.Manners
		on      bool
		act     fleet.PowerAct
		want    string
	}{
		{"on", redfish.Manners{}, false, fleet.PowerOn, "on"},
		{"on while it is on", redfish.Manners{}, true, fleet.PowerOn, ""},
		{"off", redfish.Manners{}, true, fleet.PowerOff, "off"},
		{"off while it is off", redfish.Manners{}, false, fleet.PowerOff, ""},
		{"shutdown", redfish.Manners{}, true, fleet.PowerShutdown, "shutdown"},
		{"shutdown by the button only", redfish.Manners{Resets: []string{"On", "PushPowerButton"}}, true, fleet.PowerShutdown, "shutdown"},
		{"cycle", redfish.Manners{}, true, fleet.PowerCycle, "off, on"},
		{"cycle while it is off", redfish.Manners{}, false, fleet.PowerCycle, "on"},
		{"cycle by restart", redfish.Manners{Resets: []string{"On", "ForceOff", "ForceRestart"}}, true, fleet.PowerCycle, "off, on"},
		{"busy at first", redfish.Manners{Busy: 3}, true, fleet.PowerOff, "off"},
		{"no sessions", redfish.Manners{NoSessions: true}, true, fleet.PowerOff, "off"},
		{"a baseboard beside it", redfish.Manners{Baseboard: true}, true, fleet.PowerOff, "off"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, c.manners)
			l.m.on = c.on
			err := l.with(t, func(s *bmc.Session) error { return s.Act(context.Background(), c.act) })
			if got := l.m.story(); err != nil || got != c.want {
				t.Errorf("it did %q, %v; want %q", got, err, c.want)
			}
		})
	}
}

// A BMC that offers neither PowerCycle nor ForceRestart is switched off and on.
func TestCycleInSteps(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for capacitors")
	}
	t.Parallel()
	l := newLab(t, redfish.Manners{Resets: []string{"On", "ForceOff"}})
	l.m.on = true
	err := l.with(t, func(s *bmc.Session) error { return s.Act(context.Background(), fleet.PowerCycle) })
	if got := l.m.story(); err != nil || got != "off, on" {
		t.Errorf("it did %q, %v", got, err)
	}
	l.Manners.Resets = []string{"On"}
	err = l.with(t, func(s *bmc.Session) error { return s.Act(context.Background(), fleet.PowerOff) })
	if err == nil || !strings.Contains(err.Error(), "ForceOff") {
		t.Errorf("an act that is not offered: %v", err)
	}
}

func TestBootOnce(t *testing.T) {
	for _, c := range []struct {
		name    string
		manners redfish.Manners
		target  fleet.BootTarget
		want    string // Redfish's word, or what the error says
	}{
		{"pxe", redfish.Manners{}, fleet.BootPXE, "Once Pxe"},
		{"http", redfish.Manners{}, fleet.BootHTTP, "Once UefiHttp"},
		{"disk", redfish.Manners{}, fleet.BootDisk, "Once Hdd"},
		{"none", redfish.Manners{}, fleet.BootNone, "Disabled None"},
		{"supermicro wants the mode", redfish.Manners{Vendor: "Supermicro", NeedMode: true}, fleet.BootPXE, "Once Pxe"},
		{"hpe refuses the mode", redfish.Manners{Vendor: "HPE", RefuseMode: true}, fleet.BootPXE, "Once Pxe"},
		{"hpe has no HTTP boot", redfish.Manners{Vendor: "HPE"}, fleet.BootHTTP, "use pxe"},
		{"dell wants the settings resource", redfish.Manners{Vendor: "Dell Inc.", Settings: true}, fleet.BootPXE, "Once Pxe"},
		{"an older dell has none", redfish.Manners{Vendor: "Dell Inc."}, fleet.BootPXE, "Once Pxe"},
		{"ami wants an ETag", redfish.Manners{Vendor: "AMI", NeedETag: true}, fleet.BootPXE, "Once Pxe"},
		{"somebody else refuses the mode", redfish.Manners{RefuseMode: true}, fleet.BootPXE, "BootSourceOverrideMode is read-only"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, c.manners)
			err := l.with(t, func(s *bmc.Session) error { return s.BootOnce(c.target) })
			enabled, target := l.Boot()
			got := enabled + " " + target
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if err != nil || c.target != fleet.BootPXE {
				return
			}
			if err := l.with(t, func(s *bmc.Session) error { return s.Act(context.Background(), fleet.PowerCycle) }); err != nil {
				t.Fatal(err)
			}
			if got := l.m.story(); got != "network once, on" {
				t.Errorf("the next start: %q", got)
			}
			if enabled, _ := l.Boot(); enabled != "Disabled" {
				t.Errorf("the override is %s after it was used", enabled)
			}
		})
	}
}

func TestMachine(t *testing.T) {
	for _, old := range []bool{false, true} {
		l := newLab(t, redfish.Manners{Vendor: "Supermicro", Baseboard: true, OldSensors: old})
		err := l.with(t, func(s *bmc.Session) error {
			m, err := s.Machine()
			if err != nil {
				return err
			}
			if m.System != "1" || m.Power != "Off" || m.BMC.Firmware != "2.10" || m.BIOSVersion != "1.0" || len(m.Processors) != 2 ||
				!slices.Equal(m.MACs, []fleet.MAC{"52:54:00:77:00:01"}) || !slices.Equal(m.Quirks, []string{"supermicro-mode"}) {
				t.Errorf("machine: %+v", m)
			}
			fw, err := s.Firmware()
			if err != nil {
				return err
			}
			if len(fw) != 3 || fw[0] != (fleet.Firmware{ID: "BIOS", Name: "BIOS", Version: "1.0", Updateable: true}) {
				t.Errorf("firmware: %+v", fw)
			}
			sensors, err := s.Sensors()
			if err != nil {
				return err
			}
			i := slices.IndexFunc(sensors, func(x fleet.Sensor) bool { return x.Kind == "temperature" })
			if i < 0 || sensors[i].Reading != 24.5 || sensors[i].Unit != "°C" || sensors[i].Critical == nil || *sensors[i].Critical != 45 {
				t.Errorf("sensors: %+v", sensors)
			}
			if slices.ContainsFunc(sensors, func(x fleet.Sensor) bool { return x.Name == "GPU 9" }) {
				t.Error("a sensor without a reading is shown")
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func TestUpdate(t *testing.T) {
	l := newLab(t, redfish.Manners{})
	err := l.with(t, func(s *bmc.Session) error {
		task, err := s.Update(`bios "2".bin`, strings.NewReader("BIOS=2.0"), 8, nil)
		if err != nil {
			return err
		}
		if task, err = s.Task(task.Path); err != nil || !task.Done || task.Failed {
			t.Errorf("task: %+v, %v", task, err)
		}
		fw, err := s.Firmware()
		if err == nil && fw[0].Version != "2.0" {
			t.Errorf("firmware afterwards: %+v", fw)
		}
		if _, err := s.Task("/etc/../redfish"); err == nil {
			t.Error("a task outside /redfish was asked for")
		}
		return err
	})
	if u := l.Uploads(); err != nil || len(u) != 1 || string(u[0]) != "BIOS=2.0" {
		t.Errorf("uploads %q, %v", u, err)
	}
}

func TestTrust(t *testing.T) {
	l := newLab(t, redfish.Manners{})
	nothing := func(*bmc.Session) error { return nil }
	good := l.target
	for _, c := range []struct {
		name   string
		change func(*bmc.Target)
		want   string
	}{
		{"pinned", func(*bmc.Target) {}, ""},
		{"by CA", func(x *bmc.Target) { x.Pin, x.CA = "", l.caPEM }, ""},
		{"pin wins over CA", func(x *bmc.Target) { x.Pin, x.CA = strings.Repeat("0", 64), l.caPEM }, "it was replaced, or this is not the BMC"},
		{"neither", func(x *bmc.Target) { x.Pin = "" }, "certificate's SHA-256 is " + good.Pin},
		{"wrong password", func(x *bmc.Target) { x.Password = "guess" }, "user or password refused"},
		{"wrong system", func(x *bmc.Target) { x.System = "9" }, "no system"},
		{"unreachable", func(x *bmc.Target) { x.URL = "https://127.0.0.1:1" }, "refused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l.target = good
			c.change(&l.target)
			err := l.with(t, nothing)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v; want %q", err, c.want)
			}
			var unknown *bmc.UnknownCertificateError
			if c.name == "neither" && (!errors.As(err, &unknown) || unknown.Seen != good.Pin) {
				t.Errorf("%v does not say which certificate was seen", err)
			}
		})
	}
	l.target = good
}

// A session is closed even when its context is over.
func TestSessionIsClosed(t *testing.T) {
	l := newLab(t, redfish.Manners{})
	ctx, cancel := context.WithCancel(context.Background())
	s, err := bmc.Open(ctx, l.target)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := s.Power(); !errors.Is(err, context.Canceled) {
		t.Errorf("a call after the end: %v", err)
	}
	s.Close()
	if open, _ := l.Sessions(); open != 0 {
		t.Error("the session is open still")
	}
}

func TestParse(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.7": "https://10.0.0.7", "https://bmc7:8443/": "https://bmc7:8443", "[fd00::7]": "https://[fd00::7]",
		"http://10.0.0.7": "", "https://u:p@10.0.0.7": "", "https://10.0.0.7/redfish": "", "https://": "", "": "", "https://a?x=1": "",
	} {
		if got, err := bmc.ParseURL(in); got != want || (err == nil) != (want != "") {
			t.Errorf("ParseURL(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	hex64 := strings.Repeat("ab", 32)
	if got, err := bmc.ParsePin("SHA256:x"); err == nil {
		t.Errorf("pin %q", got)
	}
	if got, err := bmc.ParsePin("sha256:" + strings.ToUpper(hex64)); err != nil || got != hex64 {
		t.Errorf("pin %q, %v", got, err)
	}
}

func TestKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bmc.key")
	k, err := bmc.LoadKeys(file)
	if err != nil {
		t.Fatal(err)
	}
	sealed := k.Seal("n1", "s3cret")
	if strings.Contains(string(sealed), "s3cret") {
		t.Fatal("it is not sealed")
	}
	again, err := bmc.LoadKeys(file)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := again.Open("n1", sealed); err != nil || got != "s3cret" {
		t.Errorf("Open = %q, %v", got, err)
	}
	if _, err := again.Open("n2", sealed); err == nil {
		t.Error("it opens for another node")
	}
	other, _ := bmc.NewKeys(make([]byte, 32))
	if _, err := other.Open("n1", sealed); err == nil || !strings.Contains(err.Error(), "bmc set") {
		t.Errorf("with another key: %v", err)
	}
	if st, _ := os.Stat(file); st.Mode().Perm() != 0o600 {
		t.Errorf("the key file has mode %s", st.Mode())
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := bmc.LoadKeys(file); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a key that others can read: %v", err)
	}
}

// Every row of the table says what it matches, does something, and where it
// is from.
func TestQuirks(t *testing.T) {
	names := map[string]bool{}
	for _, q := range bmc.Quirks() {
		acts := q.BootMode != "" || q.BootSettings || q.BootETag || q.NoHTTPBoot
		if q.Name == "" || names[q.Name] || len(q.Match) == 0 || !acts || q.What == "" || !strings.HasPrefix(q.Source, "https://") {
			t.Errorf("row %+v", q)
		}
		if q.BootMode != "" && q.BootMode != "send" && q.BootMode != "omit" {
			t.Errorf("row %s: boot_mode %q", q.Name, q.BootMode)
		}
		names[q.Name] = true
	}
}
