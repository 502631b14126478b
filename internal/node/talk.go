package node

import (
	"context"
	"errors"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/node/inventory"
	"github.com/turnout-project/turnout/internal/node/session"
	"github.com/turnout-project/turnout/internal/pause"
)

// Pauses of the conversation with the server.
const (
	beatDefault = 10 * time.Second // where the server wishes none
	beatSoonest = time.Second      // between two heartbeats, however much there is to say
	retryFirst  = 2 * time.Second
	retryMost   = time.Minute
	lostAfter   = 3                // failed heartbeats in a row before the server is looked for anew
	attestAgain = 30 * time.Second // while a verdict is not accepted
)

// serverLoop keeps a session with the server, for as long as it takes to
// find one. Nothing that goes wrong here demotes anything.
func (a *Agent) serverLoop(ctx context.Context) {
	next := retryFirst
	for ctx.Err() == nil {
		began := time.Now()
		err := a.converse(ctx)
		a.mu.Lock()
		a.session = nil
		a.mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > time.Minute {
			next = retryFirst
		}
		a.cfg.Log("server: %v; trying again in %s", err, next)
		a.show(a.report())
		_ = pause.For(ctx, next) // the loop looks at ctx
		next = min(2*next, retryMost)
	}
}

// converse finds the server, opens a session, attests, and heartbeats until
// something breaks.
func (a *Agent) converse(ctx context.Context) error {
	tpm, err := a.cfg.TPM(ctx)
	if err != nil {
		return err
	}
	inv := a.cfg.Inventory()
	s, err := a.find(ctx, tpm, inv)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.session, a.reached = s, true
	a.mu.Unlock()
	return a.keep(ctx, s, inv)
}

var errNoAddress = errors.New("no address known: neither trust.json nor a DHCP lease (option 224) nor the installer names one")

// find opens a session with the first server that answers.
func (a *Agent) find(ctx context.Context, tpm session.TPM, inv *fleet.Inventory) (*session.Session, error) {
	var errs []error
	for _, url := range a.cfg.Servers() {
		s, err := session.New(session.Config{
			Server: url, CA: []byte(a.cfg.Trust.ServerCA), TPM: tpm, Stage: fleet.StageSystem, EventLog: a.cfg.EventLog,
			BootID: a.cfg.Info.BootID, MACs: inventory.MACs(), Inventory: inv, Log: a.cfg.Log,
		})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for {
			wait, err := s.Open(ctx)
			if err != nil {
				errs = append(errs, err)
				break
			}
			if wait == 0 {
				return s, nil
			}
			if pause.For(ctx, wait) != nil {
				return nil, ctx.Err()
			}
		}
	}
	if len(errs) == 0 {
		return nil, errNoAddress
	}
	return nil, errors.Join(errs...)
}

// keep attests and heartbeats. It returns when the session is over.
func (a *Agent) keep(ctx context.Context, s *session.Session, inv *fleet.Inventory) error {
	failed := 0
	var beaten time.Time
	every := beatDefault
	for {
		if err := s.Renew(ctx); err != nil {
			a.cfg.Log("%v", err)
		}
		if a.dueToAttest() {
			if err := a.attest(ctx, s); err != nil {
				a.cfg.Log("attestation: %v", err)
				if api.Unauthorized(err) {
					return err
				}
			}
		}
		next, err := a.heartbeat(ctx, s, inv)
		beaten = time.Now()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			inv, failed = nil, 0
			if next > 0 {
				every = next
			}
		case api.Unauthorized(err):
			return err
		default:
			a.cfg.Log("heartbeat: %v", err)
			if failed++; failed >= lostAfter {
				return err
			}
		}
		a.pauseBeat(ctx, every, beaten)
	}
}

// pauseBeat waits for the next heartbeat: for every, or until there is
// something to tell.
func (a *Agent) pauseBeat(ctx context.Context, every time.Duration, beaten time.Time) {
	if pause.For(ctx, time.Until(beaten.Add(min(every, beatSoonest)))) != nil {
		return
	}
	t := time.NewTimer(time.Until(beaten.Add(every)))
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-a.beat:
	case <-t.C:
	}
}

// dueToAttest reports whether it is time to attest: soon again while this boot is not
// accepted, then at the server's pace.
func (a *Agent) dueToAttest() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.prove {
		a.attested = time.Now()
		return true
	}
	pace := attestAgain
	if a.verdict != nil && a.verdict.Accepted {
		if pace = a.pace; pace <= 0 {
			return false
		}
	}
	if time.Since(a.attested) < pace {
		return false
	}
	a.attested = time.Now()
	return true
}

// attest gets a verdict on this boot.
func (a *Agent) attest(ctx context.Context, s *session.Session) error {
	a.attesting.Lock()
	defer a.attesting.Unlock()
	f, err := a.look(ctx)
	if err != nil {
		return err
	}
	a.mu.Lock()
	prove := a.prove
	a.prove = false
	a.mu.Unlock()
	if prove {
		s.Whole()
	}
	image := f.slots[a.cfg.Info.Slot.Index()].Image
	v, err := s.Attest(ctx, image, a.cfg.Info.BootPath)
	if err != nil {
		return err
	}
	a.mu.Lock()
	isNews := a.verdict == nil || a.verdict.Accepted != v.Accepted || a.verdict.Summary != v.Summary
	a.verdict, a.pace = v, s.Every()
	a.mu.Unlock()
	word := "refused"
	if v.Accepted {
		word = "accepted"
	}
	if isNews {
		a.cfg.Log("attestation %s: %s", word, v.Summary)
	}
	poke(a.wake)
	return nil
}
