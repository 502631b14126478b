package rollout

import (
	"slices"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// NextGeneration returns the generation for a new wish: above every one the
// server gave the node and every one the node has seen, so that the loader
// tries the new image first even after the server's state was lost.
func NextGeneration(n *fleet.Node) uint64 {
	g := n.Desired.Generation
	if r := n.Reported; r != nil {
		g = max(g, r.Acted)
		for _, s := range r.Slots {
			g = max(g, s.Generation)
		}
	}
	return g + 1
}

// Want gives the node a new wish under the next generation. d.Generation is
// ignored. If an operator has lifted the image's ban here, the node is told.
func Want(n *fleet.Node, d fleet.Desired) {
	d.Generation = NextGeneration(n)
	if i := slices.Index(n.Forgiven, d.Image); i >= 0 {
		d.Retry = true
		n.Forgiven = slices.Delete(n.Forgiven, i, i+1)
	}
	n.Desired = d
}

// Unban lifts the ban of an image on a node, by an operator's word: the next
// wish for it tells the node to lift its own. "" lifts all. It returns how
// many there were.
func Unban(n *fleet.Node, image string) int {
	count := len(n.Banned)
	n.Banned = slices.DeleteFunc(n.Banned, func(b fleet.Ban) bool {
		if image != "" && b.Image != image {
			return false
		}
		if !slices.Contains(n.Forgiven, b.Image) {
			n.Forgiven = append(n.Forgiven, b.Image)
		}
		return true
	})
	if image == "" || n.Failure != nil && n.Failure.Image == image {
		n.Failure = nil
	}
	return count - len(n.Banned)
}

// Banned returns the ban of an image on a node, or nil.
func Banned(n *fleet.Node, image string) *fleet.Ban {
	for i := range n.Banned {
		if n.Banned[i].Image == image {
			return &n.Banned[i]
		}
	}
	return nil
}

// Ban bans an image on a node, once, and if the node is still wanted to run
// it, wants what it can fall back to instead: the confirmed image it runs,
// else the one in its other slot, else otherwise (which may be "").
func Ban(n *fleet.Node, image, reason, otherwise string, now time.Time) {
	if Banned(n, image) == nil {
		n.Banned = append(n.Banned, fleet.Ban{Image: image, Reason: reason, At: now})
	}
	if n.Desired.Image != image {
		return
	}
	back := otherwise
	if s, ok := confirmed(n.Reported, image); ok {
		back = s.Image
	}
	Want(n, fleet.Desired{Image: back, Reason: "image " + Short(image) + " failed: " + reason})
}

// confirmed finds a good slot that holds something else than not: the booted
// one first.
func confirmed(r *fleet.Report, not string) (fleet.SlotReport, bool) {
	if r == nil {
		return fleet.SlotReport{}, false
	}
	order := fleet.Slots
	if r.Booted == fleet.SlotB {
		order[0], order[1] = order[1], order[0]
	}
	for _, s := range order {
		if x := r.Slot(s); x.State == fleet.SlotGood && x.Image != "" && x.Image != not {
			return x, true
		}
	}
	return fleet.SlotReport{}, false
}

// slotOf finds the slot that holds an image.
func slotOf(r *fleet.Report, image string) (fleet.SlotReport, bool) {
	if r != nil && image != "" {
		for _, s := range r.Slots {
			if s.Image == image {
				return s, true
			}
		}
	}
	return fleet.SlotReport{}, false
}

// Runs reports whether the node, as an installed system, runs the image from
// a confirmed slot, and that slot or what the node has acted on is of at
// least the generation (a wish for what already runs changes no slot).
func Runs(n *fleet.Node, image string, generation uint64) bool {
	r := n.Reported
	if r == nil || r.Stage != fleet.StageSystem || r.Booted == fleet.NoSlot {
		return false
	}
	s := r.Slot(r.Booted)
	return s.State == fleet.SlotGood && s.Image == image && max(s.Generation, r.Acted) >= generation
}

// Fell says why an image of at least the generation did not stay on a node,
// or "" if nothing shows that it fell.
func Fell(n *fleet.Node, image string, generation uint64) string {
	if n.Reported == nil {
		return ""
	}
	for _, s := range n.Reported.Slots {
		if s.State != fleet.SlotBad || s.Generation < generation || s.Image != image && s.Image != "" {
			continue
		}
		why := "slot " + string(s.Slot) + " was given up"
		switch f := n.Failure; {
		case s.Reason != "": // the node's own word, from the moment it gave up
			why = s.Reason
		case f != nil && f.Image == image && f.Generation >= generation:
			why = f.String()
		case s.TriesDone > 0 && s.TriesLeft == 0:
			why = "slot " + string(s.Slot) + " used up its trial boots without being confirmed"
		}
		return why
	}
	return gaveUp(n, image, generation)
}

// CheckInstall is the name under which a refused installation is kept among
// failed checks.
const CheckInstall = "installation"

// gaveUp says why a node did not even try an image: it refused to install it
// (a signature that does not hold, a slot too small), and said so.
func gaveUp(n *fleet.Node, image string, generation uint64) string {
	f := n.Failure
	if f == nil || f.Check != CheckInstall || f.Image != image || f.Generation < generation || n.Reported.Acted < generation {
		return ""
	}
	if s, ok := slotOf(n.Reported, image); ok && s.State != fleet.SlotEmpty && s.State != fleet.SlotWriting {
		return ""
	}
	return f.String()
}

// Short is the first 12 hexadecimal digits of a digest, as operators see it.
func Short(digest string) string {
	const prefix = "sha256:"
	if len(digest) >= len(prefix)+12 && digest[:len(prefix)] == prefix {
		return digest[len(prefix) : len(prefix)+12]
	}
	return digest
}
