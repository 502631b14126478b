package rollout

import (
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// alreadyThere is the one reason to take no part that needs nobody's
// attention.
const alreadyThere = "runs the image already"

// unfit says why a waiting node cannot take part, or "".
func unfit(now time.Time, r *fleet.Rollout, n *fleet.Node) string {
	switch {
	case n == nil:
		return "removed"
	case n.State == fleet.NodeCordoned:
		return "cordoned"
	case n.State != fleet.NodeApproved:
		return string(n.State) + because(n.Reason)
	case Runs(n, r.Image, 0) && n.Reported.Healthy && (n.Desired.Image == r.Image || n.Reported.Acted >= n.Desired.Generation):
		return alreadyThere
	case Banned(n, r.Image) != nil && !r.Policy.Retry:
		return "image is banned here: " + Banned(n, r.Image).Reason
	case n.Reported == nil || n.Reported.Stage != fleet.StageSystem || n.Reported.Booted == fleet.NoSlot:
		return "not installed yet"
	case now.Sub(n.LastSeen) > LostAfter:
		return "not seen since " + n.LastSeen.UTC().Format(time.RFC3339)
	case n.Reported.Slot(n.Reported.Booted).State != fleet.SlotGood:
		return "its booted slot " + string(n.Reported.Booted) + " is not confirmed"
	}
	return ""
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}
