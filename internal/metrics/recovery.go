package metrics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/turnout-project/turnout/internal/alert"
	"github.com/turnout-project/turnout/internal/recovery"
	"github.com/turnout-project/turnout/internal/store"
)

var (
	troubleDesc = desc("turnout_recovery_nodes", "Nodes that recovery looks after now, by trouble.", "trouble")
	stormsDesc  = desc("turnout_recovery_storms", "Groups (a pool, a domain, the fleet) of which too many nodes fell silent at once.")
	stepsDesc   = desc("turnout_recovery_steps", "Steps of the last hour that took nodes from their work.", "step")
	bmcsDesc    = desc("turnout_bmcs", "Nodes whose BMC is known.")
	hooksDesc   = desc("turnout_alert_failed_tries", "Failed tries of the delivery that is due to a webhook.", "hook")
	droppedDesc = desc("turnout_alert_dropped_events", "Events that a webhook was not told of, since ever.", "hook")
)

// recoveryCollector reads what recovery and alerts keep in the store.
type recoveryCollector struct {
	store store.Reader
	now   func() time.Time
}

// Describe implements prometheus.Collector.
func (*recoveryCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{troubleDesc, stormsDesc, stepsDesc, bmcsDesc, hooksDesc, droppedDesc} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *recoveryCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	if err := errors.Join(c.recovery(ctx, out), c.alerts(ctx, out)); err != nil {
		out <- prometheus.NewInvalidMetric(troubleDesc, err)
	}
}

func gauge(d *prometheus.Desc, v float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (c *recoveryCollector) recovery(ctx context.Context, out chan<- prometheus.Metric) error {
	var st recovery.State
	rec, err := c.store.Record(ctx, "recovery", "state")
	switch {
	case errors.Is(err, store.ErrNotFound):
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(rec.Doc, &st); err != nil {
			return fmt.Errorf("state of recovery: %w", err)
		}
	}
	by := map[recovery.Trouble]int{}
	for _, n := range st.Nodes {
		if n.Calm.IsZero() {
			by[n.Trouble]++
		}
	}
	for _, t := range []recovery.Trouble{recovery.Silent, recovery.Software, recovery.Stuck, recovery.Hardware, recovery.Environment} {
		out <- gauge(troubleDesc, float64(by[t]), string(t))
	}
	out <- gauge(stormsDesc, float64(len(st.Storms)))
	steps := map[recovery.Step]int{}
	for _, d := range st.Log {
		if c.now().Sub(d.At) < time.Hour {
			steps[d.Step]++
		}
	}
	for _, s := range []recovery.Step{recovery.Flip, recovery.PowerCycle, recovery.Reinstall, recovery.Quarantine} {
		out <- gauge(stepsDesc, float64(steps[s]), string(s))
	}
	bmcs, err := c.store.Records(ctx, "bmc", "", "")
	out <- gauge(bmcsDesc, float64(len(bmcs)))
	return err
}

func (c *recoveryCollector) alerts(ctx context.Context, out chan<- prometheus.Metric) error {
	recs, err := c.store.Records(ctx, alert.Kind, "", "")
	for _, r := range recs {
		var p alert.Progress
		if err := json.Unmarshal(r.Doc, &p); err != nil {
			return fmt.Errorf("webhook %s: %w", r.Key, err)
		}
		out <- gauge(hooksDesc, float64(p.Tries), r.Key)
		out <- gauge(droppedDesc, float64(p.Dropped), r.Key)
	}
	return err
}
