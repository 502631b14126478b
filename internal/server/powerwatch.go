package server

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/bmc"
	"github.com/turnout-project/turnout/internal/fleet"
)

// How the power of nodes is known: one that sends heartbeats is on, and
// nobody has to be asked. The BMCs of silent ones are asked now and then, a
// few at a time, so that a rack without power and a rack that hangs look
// different, and a fleet that is well costs nothing.
const (
	powerEvery = time.Minute
	powerOld   = 5 * time.Minute // then an answer says nothing any more
	powerTurns = 8
)

// powers are the last answers of BMCs. The zero value knows nothing.
type powers struct {
	mu sync.Mutex
	of map[string]powerSeen
}

type powerSeen struct {
	state string // as the BMC says it: "On", "Off", "PoweringOn"
	at    time.Time
}

func (p *powers) see(node, state string, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil {
		p.of = map[string]powerSeen{}
	}
	p.of[node] = powerSeen{state, at}
}

// power returns api.PowerOn, api.PowerOff or "" for not known.
func (p *powers) power(n *fleet.Node, silentAfter time.Duration, now time.Time) string {
	if n.Reported != nil && now.Sub(n.LastSeen) <= silentAfter {
		return api.PowerOn
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	x, known := p.of[n.Name]
	switch {
	case !known, now.Sub(x.at) > powerOld, x.at.Before(n.LastSeen):
		return ""
	case strings.EqualFold(x.state, "off"), strings.EqualFold(x.state, "poweringoff"):
		return api.PowerOff
	case x.state == "":
		return ""
	}
	return api.PowerOn
}

// WatchPower asks the BMCs of silent nodes for their power until ctx ends.
func (s *Server) WatchPower(ctx context.Context) {
	t := time.NewTicker(powerEvery)
	defer t.Stop()
	for {
		if err := s.AskPower(ctx); err != nil && ctx.Err() == nil {
			s.log.Error("asking BMCs for power", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// AskPower is one round. A BMC that does not answer leaves the power of its
// node unknown; that is no error.
func (s *Server) AskPower(ctx context.Context) error {
	recs, err := s.Store.Records(ctx, kindBMC, "", "")
	if err != nil {
		return err
	}
	turns := make(chan struct{}, powerTurns)
	var all sync.WaitGroup
	defer all.Wait()
	for _, rec := range recs {
		n, err := s.Store.Node(ctx, rec.Key)
		if err != nil || n.Reported != nil && s.now().Sub(n.LastSeen) <= s.silentAfter() {
			continue
		}
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		all.Go(func() {
			defer func() { <-turns }()
			err := s.withBMC(ctx, n.Name, func(_ context.Context, c *bmc.Session) error {
				state, err := c.Power()
				if err == nil {
					s.powers.see(n.Name, state, s.now())
				}
				return err
			})
			if err != nil {
				s.log.Debug("power is not known", "node", n.Name, "err", err)
			}
		})
	}
	return nil
}
