package server_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/bmc"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/server"
	"github.com/turnout-project/turnout/internal/vmtest/redfish"
)

// powered is a machine that is only a switch.
type powered struct{ on, network atomic.Bool }

func (p *powered) Running() bool       { return p.on.Load() }
func (p *powered) PowerOn() error      { p.on.Store(true); return nil }
func (p *powered) PowerOff() error     { p.on.Store(false); return nil }
func (p *powered) Reset() error        { return nil }
func (p *powered) Shutdown() error     { p.on.Store(false); return nil }
func (p *powered) NetworkOnce(is bool) { p.network.Store(is) }

// withKeys gives a server the key of BMC passwords.
func withKeys(t *testing.T) func(*server.Options) {
	t.Helper()
	k, err := bmc.NewKeys(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	return func(o *server.Options) { o.BMC = k }
}

// newBMC starts a BMC and returns what sets it.
func newBMC(t *testing.T, m *powered) (*redfish.BMC, api.BMCRequest) {
	t.Helper()
	b := redfish.New(m, "root", "s3cret", redfish.Manners{})
	ts := httptest.NewTLSServer(b)
	t.Cleanup(ts.Close)
	h := sha256.Sum256(ts.Certificate().Raw)
	return b, api.BMCRequest{URL: ts.URL, User: "root", Password: "s3cret", Pin: hex.EncodeToString(h[:])}
}

func TestBMC(t *testing.T) {
	l := newLab(t, withKeys(t))
	l.ready(1, "rack", "sha256:"+strings.Repeat("1", 64))
	m := &powered{}
	b, req := newBMC(t, m)

	_, err := l.op.SetBMC(ctx, "n1", req)
	wantStatus(t, "set by an operator", err, http.StatusForbidden)
	_, err = l.op.SetPower(ctx, "n1", api.PowerRequest{Act: fleet.PowerOn})
	wantStatus(t, "power without a BMC", err, http.StatusConflict)

	unpinned := req
	unpinned.Pin = ""
	_, err = l.admin.SetBMC(ctx, "n1", unpinned)
	if api.StatusOf(err) != http.StatusConflict || !strings.Contains(err.Error(), "--pin "+req.Pin) {
		t.Errorf("set without a pin: %v; want it to say which certificate was seen", err)
	}
	wrong := req
	wrong.Password = "guess"
	_, err = l.admin.SetBMC(ctx, "n1", wrong)
	wantStatus(t, "a wrong password", err, http.StatusBadGateway)

	set, err := l.admin.SetBMC(ctx, "n1", req)
	l.must(err)
	if text, _ := json.Marshal(set); strings.Contains(string(text), "s3cret") || strings.Contains(string(text), "sealed") {
		t.Errorf("the password is shown: %s", text)
	}
	rec, err := l.store.Record(ctx, "bmc", "n1")
	l.must(err)
	if strings.Contains(string(rec.Doc), "s3cret") {
		t.Errorf("the password is in the store: %s", rec.Doc)
	}
	elsewhere := api.BMCRequest{URL: "https://10.0.0.99"}
	_, err = l.admin.SetBMC(ctx, "n1", elsewhere)
	wantStatus(t, "the kept password for another address", err, http.StatusBadRequest)

	_, err = l.view.SetPower(ctx, "n1", api.PowerRequest{Act: fleet.PowerOn})
	wantStatus(t, "power by a viewer", err, http.StatusForbidden)
	_, err = l.op.SetPower(ctx, "n1", api.PowerRequest{Act: "explode"})
	wantStatus(t, "an act that is none", err, http.StatusBadRequest)
	p, err := l.op.SetPower(ctx, "n1", api.PowerRequest{Act: fleet.PowerOn, Reason: "after work on the rack"})
	l.must(err)
	if p.State != "On" || !m.Running() {
		t.Errorf("power after on: %+v", p)
	}
	l.must(l.op.BootOnce(ctx, "n1", fleet.BootPXE))
	_, err = l.op.SetPower(ctx, "n1", api.PowerRequest{Act: fleet.PowerCycle})
	l.must(err)
	if !m.network.Load() {
		t.Error("the machine was not sent to the network")
	}
	machine, err := l.view.Machine(ctx, "n1")
	l.must(err)
	fw, err := l.view.Firmware(ctx, "n1")
	l.must(err)
	sensors, err := l.view.Sensors(ctx, "n1")
	l.must(err)
	if machine.BMC.Firmware != "2.10" || len(fw) != 3 || len(sensors) != 2 {
		t.Errorf("machine %+v, firmware %+v, sensors %+v", machine, fw, sensors)
	}
	_, err = l.op.UpdateFirmware(ctx, "n1", "bios.bin", nil, strings.NewReader("BIOS=2.0"))
	wantStatus(t, "an update by an operator", err, http.StatusForbidden)
	task, err := l.admin.UpdateFirmware(ctx, "n1", "bios.bin", nil, strings.NewReader("BIOS=2.0"))
	l.must(err)
	task, err = l.view.BMCTask(ctx, "n1", task.Path)
	l.must(err)
	if !task.Done || len(b.Uploads()) != 1 {
		t.Errorf("task %+v, %d uploads", task, len(b.Uploads()))
	}
	want := "bmc.set n1: " + req.URL + " as root|bmc.power n1: on: after work on the rack|bmc.boot n1: next boot from pxe, once|bmc.power n1: cycle|bmc.update n1: bios.bin, 8 bytes, SHA-256 "
	if got := strings.Join(l.events("bmc."), "|"); !strings.HasPrefix(got, want) {
		t.Errorf("events:\n%s\nwant\n%s", got, want)
	}
	if open, ever := b.Sessions(); open != 0 || ever == 0 {
		t.Errorf("%d of %d sessions are open", open, ever)
	}
	l.must(l.op.RemoveNode(ctx, "n1"))
	if all, err := l.view.BMCs(ctx); err != nil || len(all) != 0 {
		t.Errorf("after the node is removed: %+v, %v", all, err)
	}
}

// A BMC that looks after another machine is refused: whoever cycles a node's
// power must not hit its neighbour.
func TestBMCOfAnotherMachine(t *testing.T) {
	l := newLab(t, withKeys(t))
	n := l.ready(2, "rack", "sha256:"+strings.Repeat("1", 64))
	_, req := newBMC(t, &powered{})
	for _, c := range []struct {
		uuid, serial string
		status       int
	}{
		{"00000000-0000-4000-8000-000000000002", "V2", http.StatusConflict},
		{"00000000-0000-4000-8000-000000000002", "V1", 0},
		{"7e57ab1e-0000-4000-8000-525400770001", "", 0},
		{"1eab577e-0000-0040-8000-525400770001", "", 0}, // SMBIOS byte order
		{"", "", 0},
	} {
		n.report.Inventory = &fleet.Inventory{UUID: c.uuid, Serial: c.serial}
		n.beat()
		_, err := l.admin.SetBMC(ctx, "n2", req)
		wantStatus(t, c.uuid+" "+c.serial, err, c.status)
	}
	n.report.Inventory = &fleet.Inventory{UUID: "00000000-0000-4000-8000-000000000002"}
	n.beat()
	req.NoCheck = true
	_, err := l.admin.SetBMC(ctx, "n2", req)
	wantStatus(t, "without a check", err, 0)
}
