package server

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

// board keeps the fleet in short for those who watch it, and when each row
// changed. It is looked up in the store only while somebody watches, and not
// more often than the look-up is worth.
type board struct {
	s *Server

	mu   sync.Mutex
	rows map[string]*boardRow
	rev  uint64
	at   time.Time     // of the last look, monotonic
	cost time.Duration // of the last look
}

type boardRow struct {
	api.FleetRow
	rev  uint64
	gone bool
}

func newBoard(s *Server) *board { return &board{s: s, rows: map[string]*boardRow{}} }

// boardAtLeast and boardShare bound the work of looking: at most once in
// boardAtLeast, and at most one part in boardShare of the time.
const (
	boardAtLeast = 500 * time.Millisecond
	boardShare   = 10
)

// since returns what changed after a revision (0: everything there is), by
// name, and the revision it is now.
func (b *board) since(ctx context.Context, rev uint64) (rows []api.FleetRow, gone []string, now uint64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.at.IsZero() || time.Since(b.at) > max(boardAtLeast, boardShare*b.cost) {
		if err := b.look(ctx); err != nil {
			return nil, nil, rev, err
		}
	}
	for name, r := range b.rows {
		switch {
		case r.rev <= rev:
		case !r.gone:
			rows = append(rows, r.FleetRow)
		case rev > 0:
			gone = append(gone, name)
		}
	}
	slices.SortFunc(rows, func(a, b api.FleetRow) int { return strings.Compare(a.Name, b.Name) })
	slices.Sort(gone)
	return rows, gone, b.rev, nil
}

func (b *board) look(ctx context.Context) error {
	begun := time.Now()
	nodes, err := b.s.Store.Nodes(ctx)
	if err != nil {
		return err
	}
	images, err := b.s.Store.Images(ctx)
	if err != nil {
		return err
	}
	labels := make(map[string]string, len(images))
	for _, i := range images {
		labels[i.Digest] = i.Name + " " + i.Version
	}
	b.rev++
	seen := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		seen[n.Name] = true
		row := rowOf(n, labels, b.s.silentAfter(), b.s.now())
		row.Power = b.s.powers.power(n, b.s.silentAfter(), b.s.now())
		if old := b.rows[n.Name]; old == nil || old.gone || !sameRow(old.FleetRow, row) {
			b.rows[n.Name] = &boardRow{row, b.rev, false}
		}
	}
	for name, r := range b.rows {
		if !seen[name] && !r.gone {
			b.rows[name] = &boardRow{rev: b.rev, gone: true}
		}
	}
	b.at, b.cost = time.Now(), time.Since(begun)
	return nil
}

func sameRow(a, b api.FleetRow) bool {
	x, y := a.Silent, b.Silent
	a.Silent, b.Silent = nil, nil
	return a == b && (x == nil) == (y == nil) && (x == nil || x.Equal(*y))
}

// silentAfter is when a node counts as silent: three heartbeats, and time
// for one more try.
func (s *Server) silentAfter() time.Duration {
	return max(3*s.Heartbeat, 15*time.Second) + s.Heartbeat/2
}

// rowOf is pure. labels are "name version" by image digest.
func rowOf(n *fleet.Node, labels map[string]string, silentAfter time.Duration, now time.Time) api.FleetRow {
	f := api.FleetRow{Name: n.Name, Pool: n.Pool, Rack: rackOf(n.Name), State: n.State, Reason: n.Reason}
	if !n.LastSeen.IsZero() && now.Sub(n.LastSeen) > silentAfter {
		at := n.LastSeen
		f.Silent = &at
	}
	r := n.Reported
	if r == nil {
		return f
	}
	f.Stage, f.Activity, f.Kernel, f.Driver = r.Stage, r.Activity, r.Kernel, r.Versions["driver"]
	f.Attest = attestOf(n)
	if w := n.Desired; w.Image != "" && (r.Acted < w.Generation || r.BootedImage() != w.Image) {
		f.Wanted, f.Rollout = w.Image, w.Rollout
	}
	if r.Booted == fleet.NoSlot {
		return f
	}
	b := r.Slot(r.Booted)
	f.Slot, f.SlotState, f.Image, f.ImageName, f.Other = r.Booted, b.State, b.Image, b.Name, r.Slot(r.Booted.Other()).Image
	if l := labels[b.Image]; l != "" {
		f.ImageName = l
	}
	if r.Stage != fleet.StageSystem {
		return f
	}
	c, isBad := fleet.FirstFailure(r.Health)
	switch {
	case isBad && c.Status == fleet.CheckFailed:
		f.Health, f.Check = api.HealthFailing, c.Name+": "+c.Detail
	case r.Healthy || fleet.Passed(r.Health):
		f.Health = api.HealthGood
	default:
		f.Health, f.Check = api.HealthUnknown, strings.TrimSuffix(c.Name+": "+c.Detail, ": ")
	}
	return f
}

func attestOf(n *fleet.Node) string {
	switch v := n.Verdict; {
	case v == nil:
		return api.AttestNone
	case !v.Accepted:
		return api.AttestRefused
	case n.Reported != nil && v.BootID != n.Reported.BootID:
		return api.AttestOld
	}
	return api.AttestAccepted
}

// rackOf is where a node stands, as far as its name says: "r7-n03" stands in
// "r7".
func rackOf(name string) string {
	if i := strings.LastIndexByte(name, '-'); i > 0 {
		return name[:i]
	}
	return ""
}
