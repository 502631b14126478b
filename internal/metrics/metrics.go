// Package metrics says how a fleet stands in Prometheus's words. It is the
// only user of client_golang. What it tells of nodes and rollouts is read
// from the store when it is asked; names and labels are in docs/metrics.md.
package metrics

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/turnout-project/turnout/internal/store"
)

// Metrics counts, and answers scrapes. Make one with New.
type Metrics struct {
	registry *prometheus.Registry
	beats    *prometheus.CounterVec
	took     prometheus.Histogram
}

// New returns the metrics of a server over a store. now is the server's
// clock, version its own.
func New(st store.Reader, now func() time.Time, version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		beats: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "turnout_heartbeats_total", Help: "Heartbeats taken in, by whether they brought news.",
		}, []string{"news"}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "turnout_heartbeat_duration_seconds", Help: "Time from a heartbeat's arrival to its answer.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5},
		}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "turnout_build_info", Help: "1, with the version of the server.", ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	m.registry.MustRegister(m.beats, m.took, build, &fleetCollector{st, now}, &recoveryCollector{st, now},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Heartbeat counts one that was taken in. It is quick and safe for concurrent
// use.
func (m *Metrics) Heartbeat(news bool) {
	label := "no"
	if news {
		label = "yes"
	}
	m.beats.WithLabelValues(label).Inc()
}

// HeartbeatTook notes how long one took, from when its request was read to
// its answer. It is quick and safe for concurrent use.
func (m *Metrics) HeartbeatTook(d time.Duration) { m.took.Observe(d.Seconds()) }

// Handler answers scrapes. Who may ask is the caller's to say.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Timeout: scrapeTimeout})
}

const scrapeTimeout = 10 * time.Second

// Collect implements prometheus.Collector. A store that fails is told as an
// invalid metric, so that the scrape fails rather than shows an empty fleet.
func (c *fleetCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	if err := c.collect(ctx, out); err != nil {
		out <- prometheus.NewInvalidMetric(nodesDesc, err)
	}
}
