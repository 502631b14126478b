package pulse

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
)

// MinPeers is how many nodes must have a number before one can stand out.
const MinPeers = 5

// Outlier is one number of one node that stands out from its peers'.
type Outlier struct {
	Node, Metric string
	Value        float64
	Median       float64 // of all peers, the node with them
	Score        float64 // how many usual deviations it is off; negative below the median
}

// String says it to a person.
func (o Outlier) String() string {
	return fmt.Sprintf("%s is %.4g, its peers' median is %.4g (%+.1f usual deviations)", o.Metric, o.Value, o.Median, o.Score)
}

// Outliers compares each number with the same number of all peers: by node,
// then by metric. The usual deviation is 1.4826 times the median absolute
// deviation (MAD), which for normal data is the standard deviation, and is
// moved by half of the peers at least; but never less than floor times the
// median, so that peers which all agree make nobody suspect for a trifle.
// Numbers that are not finite stand for "not known". The result is sorted by
// node and metric.
func Outliers(peers map[string]map[string]float64, limit, floor float64) []Outlier {
	byMetric := map[string]map[string]float64{}
	for node, ms := range peers {
		for m, v := range ms {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				continue
			}
			if byMetric[m] == nil {
				byMetric[m] = map[string]float64{}
			}
			byMetric[m][node] = v
		}
	}
	var out []Outlier
	for m, vs := range byMetric {
		if len(vs) < MinPeers {
			continue
		}
		med, usual := spread(slices.Collect(maps.Values(vs)), floor)
		for node, v := range vs {
			if score := (v - med) / usual; usual > 0 && math.Abs(score) > limit {
				out = append(out, Outlier{node, m, v, med, score})
			}
		}
	}
	slices.SortFunc(out, func(a, b Outlier) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Metric, b.Metric))
	})
	return out
}

// spread returns the median and the usual deviation from it.
func spread(vs []float64, floor float64) (med, usual float64) {
	med = median(vs)
	dev := make([]float64, len(vs))
	for i, v := range vs {
		dev[i] = math.Abs(v - med)
	}
	return med, max(1.4826*median(dev), floor*math.Abs(med))
}

// median sorts vs.
func median(vs []float64) float64 {
	slices.Sort(vs)
	n := len(vs)
	if n%2 == 1 {
		return vs[n/2]
	}
	return (vs[n/2-1] + vs[n/2]) / 2
}
