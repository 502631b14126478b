package node

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/buildinfo"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/node/session"
)

// report builds a heartbeat from what is known now.
func (a *Agent) report() *fleet.Report {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := a.cfg.Info
	r := &fleet.Report{
		Stage: fleet.StageSystem, BootID: i.BootID, Booted: i.Slot, BootPath: i.BootPath,
		Slots: append([]fleet.SlotReport(nil), a.facts.slots[:]...), Acted: a.acted(a.facts),
		Activity: a.activity, Kernel: kernelRelease(),
		Versions: map[string]string{"nodeagent": buildinfo.Version()},
		Health:   a.soak.Results(), Time: time.Now(),
	}
	a.measured(r)
	r.Healthy = fleet.Passed(r.Health) && a.verdict != nil && a.verdict.Accepted
	return r
}

func kernelRelease() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// speak sends the story and a report, and takes in what is wanted.
func (a *Agent) speak(ctx context.Context, s *session.Session) error {
	_, err := a.heartbeat(ctx, s, nil)
	return err
}

// heartbeat is speak with an inventory; it returns the pause the server
// wishes before the next one.
func (a *Agent) heartbeat(ctx context.Context, s *session.Session, inv *fleet.Inventory) (time.Duration, error) {
	if err := a.sendEvents(ctx, s); err != nil {
		return 0, err
	}
	f, err := a.look(ctx)
	if err == nil {
		a.mu.Lock()
		a.facts = f
		a.mu.Unlock()
	}
	r := a.report()
	r.Inventory = inv
	a.show(r)
	resp, err := s.Client().Heartbeat(ctx, r)
	if err != nil {
		return 0, err
	}
	a.mu.Lock()
	changed := a.desired != resp.Desired
	a.desired = resp.Desired
	if changed { // a new wish is no reason to wait for an old failure
		a.hold, a.holdFor = time.Time{}, 0
	}
	a.mu.Unlock()
	if changed {
		poke(a.wake)
	}
	a.favour(resp.Ask)
	a.meet(ctx, s, resp.Servers)
	s.Client().UseCache(resp.Cache)
	return time.Duration(resp.Interval) * time.Second, nil
}

// meet learns the servers of the fleet: the others are asked when this one
// does not answer.
func (a *Agent) meet(ctx context.Context, s *session.Session, urls []string) {
	if len(urls) == 0 {
		return
	}
	s.Client().UseServers(urls)
	if a.cfg.KeepServers == nil {
		return
	}
	if err := a.cfg.KeepServers(ctx, urls); err != nil {
		a.cfg.Log("warning: the servers of the fleet are not kept for the next boot: %v", err)
	}
}

// eventsAtOnce is how many lines go into one request.
const eventsAtOnce = 50

func (a *Agent) sendEvents(ctx context.Context, s *session.Session) error {
	for {
		a.mu.Lock()
		some := append([]api.NodeEvent(nil), a.events[:min(len(a.events), eventsAtOnce)]...)
		a.events = a.events[len(some):]
		a.mu.Unlock()
		if len(some) == 0 {
			return nil
		}
		if err := s.Client().Events(ctx, some...); err != nil {
			a.mu.Lock()
			a.events = append(some, a.events...)
			a.mu.Unlock()
			return err
		}
	}
}

// View is what the service shows to `nodeagent status`.
type View struct {
	Report  *fleet.Report  `json:"report"`
	Server  string         `json:"server,omitempty"` // "" while there is no session
	Verdict *fleet.Verdict `json:"verdict,omitempty"`
	Desired fleet.Desired  `json:"desired"`
}

// show leaves the report where `nodeagent status` finds it. It is only shown.
func (a *Agent) show(r *fleet.Report) {
	if a.cfg.ReportTo == "" {
		return
	}
	a.mu.Lock()
	v := View{Report: r, Verdict: a.verdict, Desired: a.desired}
	if a.session != nil {
		v.Server = a.session.Client().Server()
	}
	a.mu.Unlock()
	b, err := json.MarshalIndent(v, "", " ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(a.cfg.ReportTo), 0o755)
	}
	if err == nil {
		err = renameio.WriteFile(a.cfg.ReportTo, b, 0o644)
	}
	if err != nil {
		a.cfg.Log("warning: %v", err)
	}
}
