package node

import (
	"context"
	"maps"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/pause"
)

// gaugeRounds is for how many rounds a measurement counts: a node whose
// nvidia-smi hangs has no numbers, instead of old ones.
const gaugeRounds = 4

// gaugeLoop measures the node now and then, never two at once.
func (a *Agent) gaugeLoop(ctx context.Context) {
	said := ""
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, a.cfg.GaugeEvery*gaugeRounds/2)
		s, err := a.cfg.Gauges(limited)
		cancel()
		a.mu.Lock()
		isFirst := a.gaugedAt.IsZero()
		for k, v := range a.gauges.Versions { // what does not answer now has not changed
			if _, ok := s.Versions[k]; !ok {
				s.Versions[k] = v
			}
		}
		a.gauges, a.gaugedAt = s, time.Now()
		a.mu.Unlock()
		if isFirst {
			poke(a.beat)
		}
		why := ""
		if err != nil {
			why = err.Error()
		}
		if why != said && why != "" && ctx.Err() == nil {
			a.cfg.Log("warning: measuring the GPUs: %s", why)
		}
		said = why
		if pause.For(ctx, a.cfg.GaugeEvery) != nil {
			return
		}
	}
}

// measured puts the newest numbers into a report. a.mu is held.
func (a *Agent) measured(r *fleet.Report) {
	if a.gaugedAt.IsZero() {
		return
	}
	maps.Copy(r.Versions, a.gauges.Versions)
	if time.Since(a.gaugedAt) < gaugeRounds*a.cfg.GaugeEvery {
		r.Metrics, r.Usage = maps.Clone(a.gauges.Metrics), a.gauges.Uses
	}
}
