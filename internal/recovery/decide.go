package recovery

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// Input is one look at the fleet. Nothing in it is changed.
type Input struct {
	Now    time.Time // server clock
	Config Config
	Nodes  []*fleet.Node
	Held   map[string]string // node -> rollout that moves it
	BMC    map[string]bool   // nodes whose BMC is known
	Images map[string]string // pool -> its image, "" for none
	State  State

	// Quiet is after how long a node counts as silent for a storm, well
	// before it is lost: three heartbeats or so. 0 means a minute.
	Quiet time.Duration
}

// Deed is a step to take now.
type Deed struct {
	Node   string
	Step   Step
	Reason string // for people: the trouble, and what was tried before
	Image  string // flip, reinstall: what is wanted
	Silent bool   // nothing but its BMC reaches the node
}

// Note is an event without a step.
type Note struct{ Node, Kind, Message string }

// How long without trouble counts as helped, and after which the ladder
// begins at its first rung again.
const (
	calmFor   = 5 * time.Minute
	forgetFor = time.Hour
	retryFor  = time.Minute // after a step that could not be carried out
)

// Decide is one look. The same look twice gives nothing the second time.
func Decide(in Input) (State, []Deed, []Note) {
	s := in.State.clone()
	s.Log = slices.DeleteFunc(s.Log, func(d Done) bool { return in.Now.Sub(d.At) >= 24*time.Hour })
	v := look(in)
	d := &decision{view: v, s: &s, sizes: map[string]int{}, pools: v.sickness()}
	d.notes = v.storms(&s)
	known := map[string]bool{}
	for _, n := range in.Nodes {
		known[n.Name] = true
		if n.State != fleet.NodePending {
			d.sizes[n.Pool]++
		}
	}
	maps.DeleteFunc(s.Nodes, func(name string, _ *NodeState) bool { return !known[name] })
	for _, n := range slices.SortedFunc(slices.Values(in.Nodes), func(a, b *fleet.Node) int { return cmp.Compare(a.Name, b.Name) }) {
		d.node(n)
	}
	return s, d.deeds, d.notes
}

// sickness counts the nodes of a pool that are heard, and of them those with
// trouble that a step might be taken against.
type sickness struct{ all, sick int }

func (v view) sickness() map[string]sickness {
	out := map[string]sickness{}
	for _, x := range v.in.Nodes {
		if x.State == fleet.NodePending || x.LastSeen.IsZero() || v.isSilent(x) {
			continue
		}
		c := out[x.Pool]
		c.all++
		if t, _ := v.trouble(x); t == Software || t == Stuck {
			c.sick++
		}
		out[x.Pool] = c
	}
	return out
}

type decision struct {
	view
	s     *State
	sizes map[string]int      // of pools
	pools map[string]sickness // by pool
	deeds []Deed
	notes []Note
}

func (d *decision) note(n *fleet.Node, kind, format string, a ...any) {
	d.notes = append(d.notes, Note{n.Name, kind, fmt.Sprintf(format, a...)})
}

// node looks at one.
func (d *decision) node(n *fleet.Node) {
	p := d.in.Config.Of(n.Pool)
	if p.Mode == Off || n.State != fleet.NodeApproved {
		delete(d.s.Nodes, n.Name) // whoever cordons it, or approves it again, begins anew
		return
	}
	ns := d.s.Nodes[n.Name]
	if d.in.Held[n.Name] != "" || d.busy(n, ns) {
		return
	}
	t, why := d.trouble(n)
	if t == None {
		d.calm(n, ns)
		return
	}
	ns = d.follow(n, ns, t, why)
	now := d.in.Now
	switch {
	case now.Sub(ns.Since) < settle[t]:
	case t == Environment:
		if ns.once("environment") {
			d.note(n, "recovery.environment", "%s. No step is taken: neither another image nor a restart cools a rack", why)
		}
	case sheltered(d.s, n): // the storm was told, once for all
	case ns.Step != "" && now.Sub(ns.At) < ns.patience():
	case p.Mode == Tell:
		d.tell(n, ns, p)
	default:
		d.climb(n, ns, p)
	}
}

func (n *NodeState) patience() time.Duration {
	if n.Failed != "" {
		return retryFor
	}
	return patience[n.Step]
}

// busy reports whether a node is on its way to what somebody else than
// recovery asked for. One that fell silent on that way is, for an hour.
func (v view) busy(n *fleet.Node, ns *NodeState) bool {
	w := n.Desired
	if w.Image == "" || ns != nil && ns.Generation == w.Generation && w.Generation != 0 {
		return false
	}
	r := n.Reported
	return (r == nil || r.Acted < w.Generation) && v.in.Now.Sub(n.LastSeen) < patience[Reinstall]
}

// calm follows a node without trouble.
func (d *decision) calm(n *fleet.Node, ns *NodeState) {
	switch now := d.in.Now; {
	case ns == nil:
	case ns.Calm.IsZero():
		ns.Calm = now
	case now.Sub(ns.Calm) >= forgetFor || ns.Step == "" && now.Sub(ns.Calm) >= calmFor:
		delete(d.s.Nodes, n.Name)
	case now.Sub(ns.Calm) >= calmFor && ns.once("recovered"):
		d.note(n, "recovery.recovered", "%s is over, after %s", ns.Trouble, ns.Step)
	}
}

// follow remembers a trouble. One of another kind is given time anew, but
// what was tried was tried.
func (d *decision) follow(n *fleet.Node, ns *NodeState, t Trouble, why string) *NodeState {
	if ns == nil {
		ns = &NodeState{}
		d.s.Nodes[n.Name] = ns
	}
	if ns.Trouble != t {
		ns.Trouble, ns.Since, ns.Told = t, d.in.Now, nil
	}
	if !ns.Calm.IsZero() {
		ns.Calm = time.Time{}
		ns.Told = slices.DeleteFunc(ns.Told, func(x string) bool { return x == "recovered" })
	}
	ns.Why = why
	return ns
}

// tell says once what would be done.
func (d *decision) tell(n *fleet.Node, ns *NodeState, p Policy) {
	if !ns.once("tell") {
		return
	}
	var would, not []string
	for _, step := range rungs[ns.Trouble] {
		if !slices.Contains(p.Steps, step) {
			continue
		}
		if why := d.cannot(n, ns, step); why != "" {
			not = append(not, string(step)+": "+why)
		} else {
			would = append(would, string(step))
		}
	}
	msg := ns.Why + "; recovery would try: " + strings.Join(would, ", ")
	if len(would) == 0 {
		msg = ns.Why + "; recovery could try nothing"
	}
	if len(not) > 0 {
		msg += "; not " + strings.Join(not, "; not ")
	}
	d.note(n, "recovery.would", "%s", msg)
}

// climb takes the next step that can be taken.
func (d *decision) climb(n *fleet.Node, ns *NodeState, p Policy) {
	steps := rungs[ns.Trouble]
	if k := d.disruptions(n.Name); k >= d.in.Config.Limits.PerNode && slices.Contains(steps, Quarantine) {
		steps = []Step{Quarantine}
		ns.Why += fmt.Sprintf("; %d steps in a day have not helped for long", k)
	}
	for _, step := range steps {
		if !slices.Contains(p.Steps, step) || slices.Contains(ns.Tried, step) {
			continue
		}
		if why := d.cannot(n, ns, step); why != "" {
			ns.Tried = append(ns.Tried, step)
			d.note(n, "recovery.skipped", "%s: %s", step, why)
			continue
		}
		if why := d.limit(n, p, step); why != "" {
			if ns.once("limit " + string(step)) {
				d.note(n, "recovery.held", "%s; %s waits: %s", ns.Why, step, why)
			}
			return
		}
		d.do(n, ns, step)
		return
	}
	if ns.once("exhausted") {
		d.note(n, "recovery.exhausted", "%s; nothing is left to try (tried: %s)", ns.Why, cmp.Or(join(ns.Tried), "nothing"))
	}
}

func (d *decision) do(n *fleet.Node, ns *NodeState, step Step) {
	reason := string(ns.Trouble) + ": " + ns.Why
	if ns.Step != "" {
		reason += fmt.Sprintf("; %s did not help", ns.Step)
		if ns.Failed != "" {
			reason += " (" + ns.Failed + ")"
		}
	}
	deed := Deed{Node: n.Name, Step: step, Reason: reason, Silent: ns.Trouble == Silent}
	switch step {
	case Flip:
		deed.Image = n.Reported.Slot(n.Reported.Booted.Other()).Image
	case Reinstall:
		deed.Image = d.in.Images[n.Pool]
	}
	ns.Step, ns.At, ns.Failed, ns.Tried = step, d.in.Now, "", append(ns.Tried, step)
	if step.disruptive() {
		d.s.Log = append(d.s.Log, Done{n.Name, n.Pool, step, d.in.Now})
	}
	d.deeds = append(d.deeds, deed)
}

// cannot says why a step makes no sense for a node, or "".
func (d *decision) cannot(n *fleet.Node, ns *NodeState, step Step) string {
	isBanned := func(image string) bool {
		return slices.ContainsFunc(n.Banned, func(b fleet.Ban) bool { return b.Image == image })
	}
	switch step {
	case Flip:
		other := n.Reported.Slot(n.Reported.Booted.Other())
		switch {
		case other.State != fleet.SlotGood || other.Image == "":
			return fmt.Sprintf("its other slot is %s, not good", other.State)
		case isBanned(other.Image):
			return "the image in its other slot is banned here"
		}
		if fine := d.fineElsewhere(n); fine != "" {
			return fine + ": another image would not help"
		}
	case PowerCycle:
		if !d.in.BMC[n.Name] {
			return "its BMC is not known"
		}
	case Reinstall:
		image := d.in.Images[n.Pool]
		switch {
		case image == "":
			return "pool " + n.Pool + " has no image"
		case isBanned(image):
			return "the image of pool " + n.Pool + " is banned here"
		case ns.Trouble == Silent && !d.in.BMC[n.Name]:
			return "it is silent, and its BMC is not known"
		}
	}
	return ""
}

// limit says why a disruptive step must wait, or "".
func (d *decision) limit(n *fleet.Node, p Policy, step Step) string {
	if !step.disruptive() {
		return ""
	}
	inPool, inFleet := 0, 0
	for _, x := range d.s.Log {
		if d.in.Now.Sub(x.At) < time.Hour {
			inFleet++
			if x.Pool == n.Pool {
				inPool++
			}
		}
	}
	if most := d.in.Config.Limits.PerHour; inFleet >= most {
		return fmt.Sprintf("%d steps in the last hour in the whole fleet, at most %d", inFleet, most)
	}
	if most := p.PerHour.AtLeastOne(d.sizes[n.Pool]); inPool >= most {
		return fmt.Sprintf("%d steps in the last hour in pool %s, at most %d", inPool, n.Pool, most)
	}
	going := 0
	for _, other := range d.in.Nodes {
		ns := d.s.Nodes[other.Name]
		if other.Pool == n.Pool && other.Name != n.Name && ns != nil && ns.Calm.IsZero() && ns.Step.disruptive() && ns.Step != Quarantine && d.in.Now.Sub(ns.At) < ns.patience() {
			going++
		}
	}
	if most := p.AtOnce.AtLeastOne(d.sizes[n.Pool]); going >= most {
		return fmt.Sprintf("%d nodes of pool %s are being recovered, at most %d at once", going, n.Pool, most)
	}
	return d.common(n)
}

// common says that many nodes of a pool fail at the same time: that is a
// matter of the image or of what they share, for a rollout or a human.
func (d *decision) common(n *fleet.Node) string {
	c, t := d.pools[n.Pool], d.s.Nodes[n.Name].Trouble
	if most := d.in.Config.Limits.Storm; (t == Software || t == Stuck) && c.sick >= stormLeast && c.sick*100 > most*c.all {
		return fmt.Sprintf("%d of %d nodes of pool %s fail at once, more than %d %%: that is not one node's", c.sick, c.all, n.Pool, most)
	}
	return ""
}

// disruptions counts those of a node in the last day.
func (d *decision) disruptions(node string) (k int) {
	for _, x := range d.s.Log {
		if x.Node == node {
			k++
		}
	}
	return k
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// few names some of many.
func few(names []string) string {
	const most = 8
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
}
