package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/pulse"
	"github.com/turnout-project/turnout/internal/store"
)

var (
	nodesDesc     = desc("turnout_nodes", "Nodes by standing.", "pool", "state")
	diagnosisDesc = desc("turnout_nodes_diagnosis", "Nodes that run a system and are not silent, by what their checks point to.", "pool", "diagnosis")
	silentDesc    = desc("turnout_nodes_silent", "Nodes not heard of for 5 minutes, pending ones left out.", "pool")
	attestedDesc  = desc("turnout_nodes_attestation", "Nodes by their last attestation: accepted, refused, none.", "pool", "verdict")
	verifiedDesc  = desc("turnout_nodes_oldest_verification_seconds", "Age of the last accepted attestation of the node that has the oldest, of those that have proven a TPM.", "pool")
	imageDesc     = desc("turnout_nodes_image", "Nodes by the image they run, none for an empty disk.", "pool", "image")
	offDesc       = desc("turnout_nodes_off_pool_image", "Approved nodes that do not run their pool's image.", "pool")
	bannedDesc    = desc("turnout_nodes_banned", "Nodes on which an image is banned.", "pool")
	rolloutDesc   = desc("turnout_rollouts", "Rollouts by state.", "state")
	movesDesc     = desc("turnout_rollout_nodes", "Nodes of the rollouts that can still have steps, and of the newest, by state.", "rollout", "state")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// fleetCollector counts the fleet at each scrape.
type fleetCollector struct {
	store store.Reader
	now   func() time.Time
}

// Describe implements prometheus.Collector.
func (*fleetCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{nodesDesc, diagnosisDesc, silentDesc, attestedDesc, verifiedDesc, imageDesc, offDesc, bannedDesc, rolloutDesc, movesDesc} {
		out <- d
	}
}

// counts are gauges in the making, by description and labels.
type counts map[*prometheus.Desc]map[[2]string]float64

func (c counts) add(d *prometheus.Desc, a, b string, v float64) {
	if c[d] == nil {
		c[d] = map[[2]string]float64{}
	}
	c[d][[2]string{a, b}] += v
}

func (c counts) atLeast(d *prometheus.Desc, a string, v float64) {
	if old, ok := c[d][[2]string{a}]; !ok || old < v {
		c.add(d, a, "", v-old)
	}
}

func (c *fleetCollector) collect(ctx context.Context, out chan<- prometheus.Metric) error {
	n := counts{}
	if err := c.nodes(ctx, n); err != nil {
		return err
	}
	if err := c.rollouts(ctx, n); err != nil {
		return err
	}
	for d, vs := range n {
		for l, v := range vs {
			labels := []string{l[0], l[1]}
			if d == silentDesc || d == verifiedDesc || d == offDesc || d == bannedDesc || d == rolloutDesc {
				labels = labels[:1]
			}
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
		}
	}
	return nil
}

func (c *fleetCollector) nodes(ctx context.Context, n counts) error {
	nodes, err := c.store.Nodes(ctx)
	if err != nil {
		return err
	}
	pools, err := c.store.Pools(ctx)
	if err != nil {
		return err
	}
	images, err := c.store.Images(ctx)
	if err != nil {
		return err
	}
	wants, names := map[string]string{}, map[string]string{"": "none"}
	for _, p := range pools {
		wants[p.Name] = p.Image
	}
	for _, i := range images {
		names[i.Digest] = i.Name + " " + i.Version
	}
	for _, x := range nodes {
		c.node(n, x, wants[x.Pool], names)
	}
	return nil
}

// node counts one node. Gauges that alerts compare with 0 are there for each
// pool that has nodes.
func (c *fleetCollector) node(n counts, x *fleet.Node, want string, names map[string]string) {
	n.add(nodesDesc, x.Pool, string(x.State), 1)
	isSilent := x.State != fleet.NodePending && !x.LastSeen.IsZero() && c.now().Sub(x.LastSeen) > pulse.LostAfter
	n.add(silentDesc, x.Pool, "", one(isSilent))
	n.add(bannedDesc, x.Pool, "", one(len(x.Banned) > 0))
	n.add(offDesc, x.Pool, "", one(x.State == fleet.NodeApproved && want != "" && x.Reported.BootedImage() != want))
	if r := x.Reported; r != nil && r.Stage == fleet.StageSystem && !isSilent {
		n.add(diagnosisDesc, x.Pool, string(fleet.Diagnose(r.Health)), 1)
	}
	verdict := "none"
	switch {
	case x.Verdict != nil && x.Verdict.Accepted:
		verdict = "accepted"
	case x.Verdict != nil:
		verdict = "refused"
	}
	n.add(attestedDesc, x.Pool, verdict, 1)
	if x.State != fleet.NodePending && x.EKHash != "" {
		n.atLeast(verifiedDesc, x.Pool, c.now().Sub(x.LastVerified()).Seconds())
	}
	image := x.Reported.BootedImage()
	name := names[image]
	if name == "" {
		name = "unknown"
	}
	n.add(imageDesc, x.Pool, name, 1)
}

func (c *fleetCollector) rollouts(ctx context.Context, n counts) error {
	rs, err := c.store.RolloutHeads(ctx) // the nodes of old ones are many
	if err != nil {
		return err
	}
	for _, s := range []fleet.RolloutState{fleet.RolloutRunning, fleet.RolloutPaused, fleet.RolloutHalted, fleet.RolloutDone, fleet.RolloutAborted} {
		n.add(rolloutDesc, string(s), "", 0)
	}
	for i, r := range rs {
		n.add(rolloutDesc, string(r.State), "", 1)
		if !r.Live() && i < len(rs)-1 {
			continue
		}
		if r, err = c.store.Rollout(ctx, r.ID); err != nil {
			return err
		}
		for _, m := range r.Nodes {
			n.add(movesDesc, r.ID, string(m.State), 1)
		}
	}
	return nil
}

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
