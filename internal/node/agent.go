package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/efivar"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/health"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/node/bootinfo"
	"github.com/turnout-project/turnout/internal/node/gauges"
	"github.com/turnout-project/turnout/internal/node/session"
)

// Config is what an Agent works with. All fields but the times are required.
type Config struct {
	Info     *bootinfo.Info
	Trust    *manifest.Trust
	Identity *manifest.Identity // of the running image, from its verified root
	Slots    *abslot.Machine
	// TPM opens the machine's TPM; it is called again after an error.
	TPM func(context.Context) (session.TPM, error)
	// EventLog reads the firmware's log; nil means the kernel's file.
	EventLog func() ([]byte, error)
	// Servers returns the addresses under which to look for the server.
	Servers func() []string
	// KeepServers writes down the servers of the fleet, as one of them said,
	// for the next boot; nil: nobody does.
	KeepServers func(ctx context.Context, urls []string) error
	// Inventory takes stock; it is called once per boot.
	Inventory func() *fleet.Inventory
	// Gauges measures the node; it may take long or hang. nil: nobody measures.
	Gauges func(context.Context) (gauges.Sample, error)
	Checks *health.Runner
	Dir    string // the agent's folder below /var
	// BootEntry looks for the firmware's boot entry of this disk, and with
	// write makes it where it is missing; nil: nobody looks after it.
	BootEntry func(write bool) (found efivar.EntryState, number uint16, err error)
	Orders    string // unix socket for a technician's orders, usually OrderSocket; "" for none
	ReportTo  string // file that shows the last report to `nodeagent status`; "" for none
	// Reboot starts a reboot and returns.
	Reboot func(reason string) error
	Log    func(format string, args ...any)

	Grace      time.Duration // how long a trial may be unhealthy; 0 means DefaultGrace or the soak, whichever is longer
	CheckEvery time.Duration // between health runs of a trial; 0 means 5 s; confirmed slots are checked six times less often
	Tick       time.Duration // between two looks at everything; 0 means 2 s
	GaugeEvery time.Duration // between two measurements; 0 means a minute
}

// DefaultGrace is how long a trial may fail its checks before it is given up:
// services that are still starting are no failure.
const DefaultGrace = 30 * time.Second

// quickly bounds what is told to the server just before a reset.
const quickly = 10 * time.Second

// Agent is the service. Use Run.
type Agent struct {
	cfg     Config
	records records
	wake    chan struct{} // something that Decide looks at has changed
	beat    chan struct{} // the server should hear something now
	recheck chan struct{} // the checks should run now
	again   chan struct{} // the agent should end, to be started anew

	attesting sync.Mutex // one nonce at a time

	mu        sync.Mutex
	local     local
	soak      health.Soak
	checkedAt time.Time // when the last health run ended
	desired   fleet.Desired
	verdict   *fleet.Verdict
	attested  time.Time        // when it was last tried
	prove     bool             // the server asks for an attestation, a whole one, now
	pace      time.Duration    // between accepted attestations, 0: one per boot
	session   *session.Session // open, or nil
	began     time.Time
	reached   bool // a server was, in this boot's agent
	cameUp    bool // the checks passed once
	activity  string
	lastWhy   string // reason of the last decision, logged when it changes
	events    []api.NodeEvent
	busy      bool      // an action is being carried out
	hold      time.Time // no action before that
	holdFor   time.Duration
	facts     facts // newest
	gauges    gauges.Sample
	gaugedAt  time.Time // when gauges were taken; zero: never
}

// New prepares an Agent.
func New(cfg Config) (*Agent, error) {
	keys, err := manifest.ParsePublicKeys([]byte(cfg.Trust.ImageKeys))
	if err != nil {
		return nil, err
	}
	soak := time.Duration(cfg.Identity.Health.Soak)
	if cfg.Grace == 0 {
		cfg.Grace = max(DefaultGrace, soak)
	}
	if cfg.CheckEvery == 0 {
		cfg.CheckEvery = 5 * time.Second
	}
	if cfg.Tick == 0 {
		cfg.Tick = 2 * time.Second
	}
	if cfg.GaugeEvery == 0 {
		cfg.GaugeEvery = time.Minute
	}
	return &Agent{
		cfg: cfg, records: records{keys: keys}, local: readLocal(cfg.Dir), activity: "starting",
		began: time.Now(), soak: health.Soak{Need: soak}, wake: make(chan struct{}, 1), beat: make(chan struct{}, 1),
		recheck: make(chan struct{}, 1), again: make(chan struct{}, 1),
	}, nil
}

// Run works until ctx ends. It returns early only when it cannot go on.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	a.keepEntry(ctx)
	wg.Go(func() { a.healthLoop(ctx) })
	wg.Go(func() { a.serverLoop(ctx) })
	if a.cfg.Gauges != nil {
		go a.gaugeLoop(ctx) // nobody waits for it: what it asks may hang
	}
	if a.cfg.Orders != "" {
		wg.Go(func() { a.orderLoop(ctx) })
	}
	notify("READY=1")
	defer notify("STOPPING=1")
	return a.mainLoop(ctx, &wg)
}

// mainLoop looks, decides and acts.
func (a *Agent) mainLoop(ctx context.Context, wg *sync.WaitGroup) error {
	every := watchdogEvery()
	var fed time.Time
	for {
		if every > 0 && time.Since(fed) >= every && a.alive() {
			notify("WATCHDOG=1")
			fed = time.Now()
		}
		a.step(ctx, wg)
		select {
		case <-ctx.Done():
			return nil
		case <-a.again:
			return errAgain
		case <-a.wake:
		case <-time.After(a.cfg.Tick):
		}
	}
}

// alive reports whether health is still being looked at: systemd's watchdog
// is fed by that, not by a loop that only feeds it.
func (a *Agent) alive() bool {
	limit := time.Minute
	for _, c := range a.cfg.Identity.Health.Checks { // all may hang, one after the other
		limit += max(time.Duration(c.Timeout), health.DefaultTimeout) + health.Overtime
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.checkedAt.IsZero() || time.Since(a.checkedAt) < limit+6*a.cfg.CheckEvery
}

// step makes one decision and starts carrying it out.
func (a *Agent) step(ctx context.Context, wg *sync.WaitGroup) {
	now := time.Now()
	f, err := a.look(ctx)
	s := a.state(f, err, now)
	act := Decide(s)
	a.mu.Lock()
	if err == nil {
		a.facts = f
	}
	start := act.Kind != Wait && !a.busy && now.After(a.hold)
	if start {
		a.busy = true
	}
	if !a.busy {
		a.activity = activityOf(act, a.local)
	}
	isNews := act.Reason != a.lastWhy
	a.lastWhy = act.Reason
	a.mu.Unlock()
	if isNews {
		a.cfg.Log("%s: %s", act.Kind, act.Reason)
		notify("STATUS=" + act.Reason)
	}
	if start {
		wg.Go(func() { a.finish(act, a.do(ctx, act, f)) })
	}
}

// activityOf words what a node does while it does nothing.
func activityOf(act Action, l local) string {
	switch {
	case act.Kind == Wait && act.Reason == "idle" && l.Refused != "":
		return "refused: " + l.Refused
	default:
		return act.Reason
	}
}

// The pause after a failed action, and its growth.
const (
	firstHold = 5 * time.Second
	maxHold   = 5 * time.Minute
)

// finish ends an action: after a failure the next one waits, longer each
// time.
func (a *Agent) finish(act Action, err error) {
	a.mu.Lock()
	a.busy = false
	if err == nil {
		a.holdFor, a.hold = 0, time.Time{}
	} else {
		a.holdFor = min(max(2*a.holdFor, firstHold), maxHold)
		a.hold = time.Now().Add(a.holdFor)
	}
	wait := a.holdFor
	a.mu.Unlock()
	if err != nil {
		a.cfg.Log("error: %s: %v; next try in %s", act.Kind, err, wait)
		a.tell(string(act.Kind)+".failed", "%v", err)
	}
	poke(a.wake)
	poke(a.beat)
}

// tell adds a line to the node's story. It is sent with the next heartbeat;
// the oldest are dropped when the server is away for long.
func (a *Agent) tell(kind, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.writeStory(kind, message); err != nil {
		a.cfg.Log("warning: the story is not kept: %v", err)
	}
	const most = 200
	a.events = append(a.events, api.NodeEvent{Kind: kind, Message: message})
	if n := len(a.events) - most; n > 0 {
		a.events = a.events[n:]
	}
}

func (a *Agent) setActivity(format string, args ...any) {
	a.mu.Lock()
	a.activity = fmt.Sprintf(format, args...)
	a.mu.Unlock()
	poke(a.beat)
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
