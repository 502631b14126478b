package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/turnout-project/turnout/internal/fleet"
)

// askedFile holds the ID of the last favour that was done. It is written
// first: an agent that is asked to start anew must not be asked again by the
// same answer.
const askedFile = "asked"

// errAgain ends an agent that was asked to start anew. The service manager
// does the rest.
var errAgain = errors.New("the server asked the agent to start anew")

// favour does what the server asks for, once. One that the node works on
// something is not restarted.
func (a *Agent) favour(ask *fleet.Ask) {
	if ask == nil || ask.ID <= a.asked() {
		return
	}
	a.mu.Lock()
	busy := a.busy
	a.mu.Unlock()
	if ask.Act == fleet.AskRestart && busy {
		return // asked again with the next heartbeat
	}
	err := os.MkdirAll(a.cfg.Dir, 0o700)
	if err == nil {
		err = renameio.WriteFile(filepath.Join(a.cfg.Dir, askedFile), []byte(strconv.FormatUint(ask.ID, 10)+"\n"), 0o600)
	}
	if err != nil {
		a.cfg.Log("warning: %v; what the server asks for is not done", err)
		return
	}
	switch ask.Act {
	case fleet.AskRecheck:
		a.tell("agent.recheck", "the server asked for it")
		poke(a.recheck)
	case fleet.AskAttest:
		a.tell("agent.attest", "the server asked for it")
		a.mu.Lock()
		a.prove = true
		a.mu.Unlock()
		poke(a.beat)
	case fleet.AskRestart:
		a.cfg.Log("the server asked the agent to start anew")
		poke(a.again)
	}
}

// asked is the ID of the last favour; 0 if none is known.
func (a *Agent) asked() uint64 {
	b, err := os.ReadFile(filepath.Join(a.cfg.Dir, askedFile))
	if err != nil {
		return 0
	}
	id, _ := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return id
}

// pause is sleep that ends early when the checks should run now.
func (a *Agent) pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
	case <-a.recheck:
	}
	return ctx.Err() == nil
}
