package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/rollout"
	"github.com/turnout-project/turnout/internal/store"
)

// timed measures a handler of heartbeats, whoever asks and whatever it says.
func (s *Server) timed(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		h(w, r)
		s.metrics.HeartbeatTook(time.Since(began))
	}
}

// heartbeat takes in a report and answers with what is wanted.
func (s *Server) heartbeat(w http.ResponseWriter, r *http.Request, known *fleet.Node) (any, error) {
	rep, err := body[fleet.Report](w, r)
	if err != nil {
		return nil, err
	}
	if len(rep.Slots) > len(fleet.Slots) {
		return nil, problem(http.StatusBadRequest, "", "a node has two slots, the report has %d", len(rep.Slots))
	}
	s.handouts.heard(known.MACs)
	var n *fleet.Node
	var notes []note
	now := s.now()
	isQuiet := false
	defer func() { s.metrics.Heartbeat(!isQuiet) }()
	m := s.mood(known.Name, rep)
	if m == nil {
		if isQuiet, err = s.quiet(r.Context(), known, rep, now); err != nil || isQuiet {
			return s.wanted(known), err
		}
	}
	err = s.Store.Update(r.Context(), func(tx store.Tx) (err error) {
		n, notes, err = s.takeIn(r.Context(), tx, known.Name, rep, m, now)
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(notes) > 0 {
		s.news.tell()
	}
	s.poke()
	return s.wanted(n), nil
}

// wanted is the answer to a heartbeat.
func (s *Server) wanted(n *fleet.Node) *api.HeartbeatResponse {
	return &api.HeartbeatResponse{Desired: n.Desired, Interval: int(s.Heartbeat.Seconds()), Ask: n.Ask, Servers: s.live().Servers, Cache: s.cacheOf(n)}
}

func (s *Server) takeIn(ctx context.Context, tx store.Tx, name string, rep *fleet.Report, m *note, now time.Time) (*fleet.Node, []note, error) {
	n, err := tx.Node(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	if err := fillIn(ctx, tx, rep); err != nil {
		return nil, nil, err
	}
	pool := &fleet.Pool{Name: n.Pool} // as one nobody has set anything for
	if isFresh(n, rep) {
		if p, err := tx.Pool(ctx, n.Pool); err == nil {
			pool = p
		}
	}
	notes := observe(n, rep, pool, now)
	if m != nil {
		notes = append(notes, *m)
	}
	if err := tx.PutNode(ctx, n); err != nil {
		return nil, nil, err
	}
	for _, e := range notes {
		if err := tx.AppendEvent(ctx, &fleet.Event{At: now, Actor: "server", Node: n.Name, Kind: e.kind, Message: e.msg}); err != nil {
			return nil, nil, err
		}
	}
	return n, notes, nil
}

// inFull replaces image digests of which a node knows the first digits only
// (they are what a file name on its ESP holds) by the whole.
func inFull(rep *fleet.Report, images []*fleet.Image) {
	for i := range rep.Slots {
		s := &rep.Slots[i]
		short := strings.TrimPrefix(s.Image, "sha256:")
		if len(short) < 12 || len(short) == 64 && s.Image != short {
			continue
		}
		for _, im := range images {
			if strings.HasPrefix(im.Digest, "sha256:"+short) {
				s.Image = im.Digest
				break
			}
		}
	}
}

// note is an event in the making.
type note struct{ kind, msg string }

// observe puts a report into the node and draws the conclusions that need no
// rollout: what failed is banned, what is fresh gets its pool's image. It is
// pure, and doing it twice with the same report changes nothing more.
func observe(n *fleet.Node, rep *fleet.Report, pool *fleet.Pool, now time.Time) []note {
	var notes []note
	add := func(kind, format string, a ...any) { notes = append(notes, note{kind, fmt.Sprintf(format, a...)}) }
	old := n.Reported
	if old != nil && old.BootID == rep.BootID && rep.Inventory == nil {
		rep.Inventory = old.Inventory // sent once a boot
	}
	n.Reported, n.LastSeen = rep, now

	if old == nil || old.BootID != rep.BootID {
		add("node.booted", "%s", bootText(rep))
		if d := now.Sub(rep.Time); !rep.Time.IsZero() && (d > maxSkew || d < -maxSkew) {
			add("node.clock-skew", "its clock shows %s, ours %s", rep.Time.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
		}
	}
	for _, x := range rep.Slots {
		if was := old.Slot(x.Slot); was.State != x.State && (x.State == fleet.SlotGood || x.State == fleet.SlotBad) {
			add("node.slot-"+string(x.State), "slot %s: %s -> %s, %s, generation %d%s", x.Slot, was.State, x.State, imageText(x), x.Generation, dash(x.Reason))
		}
	}
	if f := failing(n, now); f != nil {
		if n.Failure == nil || n.Failure.Generation != f.Generation || n.Failure.Check != f.Check {
			add("node.trial-failing", "%s", f)
		}
		n.Failure = f
	} else if f := n.Failure; f != nil && f.Check != checkAttestation && recovered(n, f) {
		n.Failure = nil
	}
	reason := rollout.Fell(n, n.Desired.Image, n.Desired.Generation)
	if n.Desired.Image != "" && reason != "" && rep.Stage != fleet.StageInstaller {
		image := n.Desired.Image
		if f := n.Failure; f != nil && f.Image == image && f.Generation == n.Desired.Generation && old != nil && old.BootID == rep.BootID {
			reason = f.String() // seen in this boot; the node may not have written its own words down yet
		}
		rollout.Ban(n, image, reason, "", now)
		add("image.banned", "image %s: %s", rollout.Short(image), reason)
	}
	if d, ok := first(n, pool); ok {
		rollout.Want(n, d)
		add("node.wanted", "image %s: %s", rollout.Short(d.Image), d.Reason)
	}
	if n.Desired.Reinstall && rollout.Runs(n, n.Desired.Image, n.Desired.Generation) {
		n.Desired.Reinstall = false
	}
	return notes
}

// maxSkew is how far a node's clock may be off before it is told.
const maxSkew = 5 * time.Minute

// failing returns what keeps the booted trial from being confirmed, if a
// required check fails.
func failing(n *fleet.Node, now time.Time) *fleet.Failure {
	r := n.Reported
	if r.Stage != fleet.StageSystem || r.Booted == fleet.NoSlot {
		return nil
	}
	s := r.Slot(r.Booted)
	c, isFailing := fleet.FirstFailure(r.Health)
	if s.State != fleet.SlotTrying || !isFailing || c.Status != fleet.CheckFailed {
		return nil
	}
	return &fleet.Failure{Image: s.Image, Generation: s.Generation, Check: c.Name, Detail: c.Detail, At: now}
}

// recovered reports whether the trial that a failure was seen in passes all
// its checks by now: what ends it later has another reason.
func recovered(n *fleet.Node, f *fleet.Failure) bool {
	r := n.Reported
	return r.Booted != fleet.NoSlot && r.Slot(r.Booted).Generation == f.Generation && fleet.Passed(r.Health)
}

// isFresh reports whether a node is to install what its pool installs: the
// pool needs to be known of no other.
func isFresh(n *fleet.Node, rep *fleet.Report) bool {
	return n.State == fleet.NodeApproved && n.Desired.Image == "" && rep.BootedImage() == ""
}

// first says what a node that has never had an image should install: its
// pool's, unless that failed here before.
func first(n *fleet.Node, pool *fleet.Pool) (fleet.Desired, bool) {
	ok := isFresh(n, n.Reported) && pool.Image != "" && rollout.Banned(n, pool.Image) == nil
	return fleet.Desired{Image: pool.Image, Reason: "first installation, image of pool " + n.Pool}, ok
}

func bootText(r *fleet.Report) string {
	if r.Booted == fleet.NoSlot {
		return string(r.Stage)
	}
	s := r.Slot(r.Booted)
	return fmt.Sprintf("slot %s (%s), %s, generation %d, from %s", r.Booted, s.State, imageText(s), s.Generation, r.BootPath)
}

func imageText(s fleet.SlotReport) string {
	if s.Name != "" {
		return s.Name + " (" + rollout.Short(s.Image) + ")"
	}
	return "image " + rollout.Short(s.Image)
}

func dash(s string) string {
	if s == "" {
		return ""
	}
	return ": " + s
}

// nodeEvents appends a node's own lines to the history.
func (s *Server) nodeEvents(w http.ResponseWriter, r *http.Request, n *fleet.Node) (any, error) {
	req, err := body[api.EventsRequest](w, r)
	if err != nil {
		return nil, err
	}
	if len(req.Events) > maxNodeEvents {
		return nil, problem(http.StatusBadRequest, "send them in parts", "%d events, at most %d at once", len(req.Events), maxNodeEvents)
	}
	now := s.now()
	return nil, s.update(r.Context(), func(tx store.Tx) error {
		for _, e := range req.Events {
			ev := &fleet.Event{At: now, Actor: "node:" + n.Name, Node: n.Name, Kind: clip(e.Kind, 64), Message: clip(e.Message, 2000)}
			if err := tx.AppendEvent(r.Context(), ev); err != nil {
				return err
			}
			if e.Kind == eventInstallRefused {
				if err := keepRefusal(r.Context(), tx, n.Name, ev); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// eventInstallRefused is the event by which a node says that it will not
// install what it is asked to, now or later.
const eventInstallRefused = "install.refused"

// keepRefusal remembers why a node does not install what is wanted.
func keepRefusal(ctx context.Context, tx store.Tx, name string, e *fleet.Event) error {
	n, err := tx.Node(ctx, name)
	if err != nil || n.Desired.Image == "" {
		return err
	}
	n.Failure = &fleet.Failure{Image: n.Desired.Image, Generation: n.Desired.Generation, Check: rollout.CheckInstall, Detail: e.Message, At: e.At}
	return tx.PutNode(ctx, n)
}

const maxNodeEvents = 256

// clip cuts text that is too long, and control characters out of it: it will
// be printed on an operator's terminal.
func clip(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > limit {
		return strings.ToValidUTF8(s[:limit], "") + "…"
	}
	return s
}
