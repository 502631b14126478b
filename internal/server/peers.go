package server

import (
	"context"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/pulse"
	"github.com/turnout-project/turnout/internal/store"
)

// How nodes are compared with the others of their pool: each minute, and one
// that stands out in a number for five minutes is told of, once, until it
// did not for as long.
const (
	peersEvery  = time.Minute
	peersRounds = 5
	peersLimit  = 6    // usual deviations
	peersFloor  = 0.02 // of the median: what is closer is no difference
)

// outlying is how long a number of a node stands out.
type outlying struct {
	rounds int // up to peersRounds, down to 0
	told   bool
}

// WatchPeers names nodes whose numbers stand out in their pool, until ctx
// ends. Nothing is done about them.
func (s *Server) WatchPeers(ctx context.Context) {
	t := time.NewTicker(peersEvery)
	defer t.Stop()
	seen := map[[2]string]*outlying{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if err := s.ComparePeers(ctx, seen); err != nil && ctx.Err() == nil {
			s.log.Error("comparing nodes with their pools", "err", err)
		}
	}
}

// ComparePeers is one round. seen, by node and metric, is what earlier ones
// have found; start with an empty map.
func (s *Server) ComparePeers(ctx context.Context, seen map[[2]string]*outlying) error {
	nodes, err := s.Store.Nodes(ctx)
	if err != nil {
		return err
	}
	now := map[[2]string]pulse.Outlier{}
	for _, peers := range byPool(nodes, s.now()) {
		for _, o := range pulse.Outliers(peers, peersLimit, peersFloor) {
			now[[2]string{o.Node, o.Metric}] = o
		}
	}
	for k := range now {
		if seen[k] == nil {
			seen[k] = &outlying{}
		}
	}
	for k, x := range seen {
		o, isOut := now[k]
		kind, msg := x.round(isOut)
		if kind == "" && x.rounds == 0 {
			delete(seen, k)
		}
		if kind == "" {
			continue
		}
		msg = k[1] + msg
		if isOut {
			msg = o.String()
		}
		if err := s.update(ctx, func(tx store.Tx) error { return s.note(ctx, tx, "server", k[0], kind, msg) }); err != nil {
			return err
		}
	}
	return nil
}

// round takes in whether the number stands out now, and returns the event of
// it, "" for none.
func (x *outlying) round(isOut bool) (kind, msg string) {
	if isOut {
		x.rounds = min(x.rounds+1, peersRounds)
	} else {
		x.rounds = max(x.rounds-1, 0)
	}
	switch {
	case x.rounds == peersRounds && !x.told:
		x.told = true
		return "node.outlier", ""
	case x.rounds == 0 && x.told:
		x.told = false
		return "node.inlier", " is among its peers' again"
	}
	return "", ""
}

// byPool returns the numbers of nodes that are there, by pool and node.
func byPool(nodes []*fleet.Node, now time.Time) map[string]map[string]map[string]float64 {
	out := map[string]map[string]map[string]float64{}
	for _, n := range nodes {
		if n.Reported == nil || len(n.Reported.Metrics) == 0 || now.Sub(n.LastSeen) > pulse.LostAfter {
			continue
		}
		if out[n.Pool] == nil {
			out[n.Pool] = map[string]map[string]float64{}
		}
		out[n.Pool][n.Name] = n.Reported.Metrics
	}
	return out
}
