package pulse

import (
	"fmt"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// hotShare is the part of a domain's nodes that must have trouble with heat
// or power, and at least two, for the whole of it to count as hot.
const hotShare = 0.5

// Domain is what a node fails together with: its domain, else the rack that
// its name tells ("r7-n03" stands in "r7"), else "".
func Domain(n *fleet.Node) string {
	if n.Domain != "" {
		return n.Domain
	}
	if i := strings.LastIndexByte(n.Name, '-'); i > 0 {
		return n.Name[:i]
	}
	return ""
}

// Hot returns the domains that count as hot as a whole, and why, among the
// nodes that report a system of theirs. What fails there meanwhile is no
// image's fault.
func Hot(now time.Time, nodes []*fleet.Node) map[string]string {
	present, cooking := map[string]int{}, map[string]int{}
	for _, n := range nodes {
		d := Domain(n)
		if d == "" || n.Reported == nil || n.Reported.Stage != fleet.StageSystem || !n.LastSeen.IsZero() && now.Sub(n.LastSeen) > LostAfter {
			continue
		}
		present[d]++
		if fleet.Diagnose(n.Reported.Health) == fleet.DiagnosisEnvironment {
			cooking[d]++
		}
	}
	out := map[string]string{}
	for d, k := range cooking {
		if k >= 2 && float64(k) >= hotShare*float64(present[d]) {
			out[d] = fmt.Sprintf("%d of %d nodes of %s have trouble with heat or power", k, present[d], d)
		}
	}
	return out
}
