package sqlstore

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// Keys of advisory locks, which are the database's own.
const (
	lockWrite = 0x7475726e01 // whose turn it is to write, for a transaction
	lockLead  = 0x7475726e02 // who carries rollouts on, for a session
)

// serverName tells this process from others on the database.
func serverName() string {
	host, _ := os.Hostname() //nolint:errcheck // the rest is unique
	return host + "/" + rand.Text()[:8]
}

// oneCall lets many callers share one call of a function that began after
// each of them had asked.
type oneCall struct {
	mu            sync.Mutex
	running, next *call
}

type call struct {
	done chan struct{}
	err  error
}

func (o *oneCall) wait(ctx context.Context, do func() error) error {
	o.mu.Lock()
	c := o.next
	if c == nil {
		c = &call{done: make(chan struct{})}
		if o.running == nil {
			o.running = c
			go o.run(c, do)
		} else {
			o.next = c
		}
	}
	o.mu.Unlock()
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (o *oneCall) run(c *call, do func() error) {
	for c != nil {
		c.err = do()
		close(c.done)
		o.mu.Lock()
		o.running, o.next = o.next, nil
		c = o.running
		o.mu.Unlock()
	}
}

// freshIn bounds how long a reader waits for the database.
const freshIn = 15 * time.Second

// fresh returns when the cache holds all that was committed, by whatever
// process, before it was called.
func (s *Store) fresh(ctx context.Context) error {
	if !s.b.Shared {
		return nil
	}
	return s.check.wait(ctx, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), freshIn)
		defer cancel()
		var rev int64
		if err := s.b.Read.QueryRowContext(ctx, "SELECT rev FROM revision").Scan(&rev); err != nil {
			return fmt.Errorf("%s: %w", s.b.Name, err)
		}
		if rev == s.c.revision() {
			return nil
		}
		t, err := s.b.Read.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
		if err != nil {
			return fmt.Errorf("%s: %w", s.b.Name, err)
		}
		defer t.Rollback() //nolint:errcheck // it has only read
		if err := s.loadChanges(ctx, tx{q: t, c: s.c, numbered: true}); err != nil {
			return fmt.Errorf("%s: %w", s.b.Name, err)
		}
		return nil
	})
}

// turnToWrite waits until no other process writes, brings the cache up to
// date and returns the revision that this transaction makes.
func (s *Store) turnToWrite(ctx context.Context, t *sql.Tx) (int64, error) {
	if _, err := t.ExecContext(ctx, "SELECT pg_advisory_xact_lock($1)", int64(lockWrite)); err != nil {
		return 0, fmt.Errorf("waiting for the turn to write: %w", err)
	}
	var text string
	if err := t.QueryRowContext(ctx, "SELECT set_config('turnout.rev', (rev + 1)::text, true) FROM revision").Scan(&text); err != nil {
		return 0, err
	}
	next, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, err
	}
	if next-1 != s.c.revision() {
		err = s.loadChanges(ctx, tx{q: t, c: s.c, numbered: true})
	}
	return next, err
}

// loadChanges brings into the cache what is newer than it. t reads as of one
// moment.
func (s *Store) loadChanges(ctx context.Context, t tx) error {
	old, live := s.c.known()
	n := &loaded{nodes: map[string]*fleet.Node{}, rollouts: map[string]*fleet.Rollout{}}
	if err := t.queryRow(ctx, "SELECT rev FROM revision").Scan(&n.rev); err != nil {
		return fmt.Errorf("reading the revision: %w", err)
	}
	err := t.each(ctx, "SELECT node FROM gone WHERE rev > ?", []any{old}, func(r *sql.Rows) error {
		var name string
		err := r.Scan(&name)
		n.nodes[name] = nil
		return err
	})
	if err != nil {
		return fmt.Errorf("reading nodes: %w", err)
	}
	err = t.each(ctx, "SELECT doc, coalesce(at, 0) FROM node LEFT JOIN seen ON node = name WHERE rev > ?", []any{old}, func(r *sql.Rows) error {
		node, err := scanNode(r)
		if err == nil {
			n.nodes[node.Name] = node
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("reading nodes: %w", err)
	}
	heads, err := many[fleet.Rollout](ctx, t, "rollouts", "SELECT doc FROM rollout WHERE rev > ? ORDER BY id", old)
	if err != nil {
		return err
	}
	for _, r := range heads {
		if err := t.newMoves(ctx, r, live[r.ID], old); err != nil {
			return err
		}
		n.rollouts[r.ID] = r
		if !r.Live() {
			n.rollouts[r.ID] = nil
		}
	}
	s.c.take(n)
	return nil
}

// newMoves fills in the moves of a rollout: those of before, if it is known,
// and those that have changed since the revision old.
func (t tx) newMoves(ctx context.Context, r, before *fleet.Rollout, old int64) error {
	if before == nil {
		return t.loadMoves(ctx, r)
	}
	r.Nodes = slices.Clone(before.Nodes)
	err := t.each(ctx, "SELECT seq, doc FROM move WHERE rollout = ? AND rev > ? ORDER BY seq", []any{number(r.ID), old}, func(rows *sql.Rows) error {
		var seq int
		var doc sql.RawBytes
		if err := rows.Scan(&seq, &doc); err != nil {
			return err
		}
		for len(r.Nodes) <= seq {
			r.Nodes = append(r.Nodes, fleet.Move{})
		}
		r.Nodes[seq] = fleet.Move{}
		return json.Unmarshal(doc, &r.Nodes[seq])
	})
	if err != nil {
		return fmt.Errorf("reading moves of rollout %s: %w", r.ID, err)
	}
	var count int
	if err := t.queryRow(ctx, "SELECT count(*) FROM move WHERE rollout = ?", number(r.ID)).Scan(&count); err != nil {
		return fmt.Errorf("reading moves of rollout %s: %w", r.ID, err)
	}
	r.Nodes = r.Nodes[:count]
	return nil
}

// Nodes are written in one order, so that two servers never wait for each
// other, and those that are gone are left out.
const (
	tellSeen = "INSERT INTO seen (node, at) SELECT u.name, u.at" +
		" FROM unnest($1::text[], $2::bigint[]) AS u(name, at) JOIN node USING (name) ORDER BY name" +
		" ON CONFLICT (node) DO UPDATE SET at = excluded.at WHERE seen.at < excluded.at"
	tellSaid = "INSERT INTO said (node, at, server, turn, doc) SELECT u.name, u.at, $4, n.turn, u.doc" +
		" FROM unnest($1::text[], $2::bigint[], $3::bytea[]) AS u(name, at, doc) JOIN node USING (name)" +
		" CROSS JOIN (SELECT nextval('said_turns') AS turn) AS n ORDER BY name" +
		" ON CONFLICT (node) DO UPDATE SET at = excluded.at, server = excluded.server, turn = excluded.turn, doc = excluded.doc" +
		" WHERE said.at < excluded.at"
)

// tell writes what was seen of nodes for the other servers, and when, for
// the next start.
func (s *Store) tell(ctx context.Context, names []string) error {
	at, docs := make([]int64, 0, len(names)), make([][]byte, 0, len(names))
	here := names[:0]
	for _, name := range names {
		n := s.tx.node(name)
		if n == nil {
			continue
		}
		doc, err := json.Marshal(n.Reported)
		if err != nil {
			return fmt.Errorf("report of node %q: %w", name, err)
		}
		here, at, docs = append(here, name), append(at, n.LastSeen.UnixNano()), append(docs, doc)
	}
	t, err := s.b.Write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer t.Rollback() //nolint:errcheck // no-op after Commit
	if _, err = t.ExecContext(ctx, tellSeen, here, at); err == nil {
		_, err = t.ExecContext(ctx, tellSaid, here, at, docs, s.server)
	}
	if err != nil {
		return fmt.Errorf("telling what nodes have said: %w", err)
	}
	return t.Commit()
}

// hear takes in what nodes have said to other servers.
func (s *Store) hear(ctx context.Context) error {
	turn := s.turn
	err := s.each(ctx, "SELECT node, at, turn, doc FROM said WHERE turn > ? AND server <> ?", []any{s.turn, s.server}, func(r *sql.Rows) error {
		var name string
		var at, n int64
		var doc sql.RawBytes
		rep := &fleet.Report{}
		if err := r.Scan(&name, &at, &n, &doc); err != nil {
			return err
		}
		if err := json.Unmarshal(doc, rep); err != nil {
			return fmt.Errorf("node %q: %w", name, err)
		}
		turn = max(turn, n)
		s.c.seen(name, rep, time.Unix(0, at).UTC())
		return nil
	})
	if err != nil {
		return fmt.Errorf("hearing what nodes have said: %w", err)
	}
	s.turn = turn
	return nil
}

// loaded is what is newer than the cache, as of a revision. A nil node is
// gone, a nil rollout not live.
type loaded struct {
	rev      int64
	nodes    map[string]*fleet.Node
	rollouts map[string]*fleet.Rollout
}

func (c *cache) revision() int64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.rev
}

// known returns the revision of the cache and its live rollouts, which must
// not be changed.
func (c *cache) known() (int64, map[string]*fleet.Rollout) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.rev, maps.Clone(c.rollouts)
}

// take takes in what was loaded, unless the cache is newer by now.
func (c *cache) take(n *loaded) {
	c.enrolments.forget(maps.Keys(n.nodes)) // an enrolment is written with its node, see tx.enrolled
	c.mu.Lock()
	defer c.mu.Unlock()
	if n.rev <= c.rev {
		return
	}
	c.apply(n.nodes, n.rollouts)
	c.rev = n.rev
}
