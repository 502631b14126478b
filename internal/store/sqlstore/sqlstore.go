// Package sqlstore is what the stores on SQL databases have in common:
// documents in tables, nodes and live rollouts decoded in memory, one writer
// per process that commits waiting updates together, each under its own
// savepoint: one fsync serves many heartbeats. store/sqlite and
// store/postgres give it their connections.
package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/turnout-project/turnout/internal/store"
)

// Backend is a database whose tables are up to date.
type Backend struct {
	Name  string  // for errors: `fleet state "fleet.db"`
	Read  *sql.DB // connections that only read
	Write *sql.DB // one connection, or some more if Shared
	// Shared says that other processes write to the database too. It speaks
	// PostgreSQL then, else SQLite.
	Shared bool
	// Tend, if it is not nil, looks after the database until stop is closed.
	Tend func(stop <-chan struct{})
}

// Store keeps fleet state in a Backend. Make one with New.
type Store struct {
	tx     // reads
	b      Backend
	jobs   chan *job
	stop   chan struct{}
	done   chan struct{} // the writer has ended
	saved  chan struct{} // the saver has ended
	tended chan struct{} // Tend has
	once   sync.Once
	check  oneCall // is the cache fresh?
	server string  // this process among those that share the database
	turn   int64   // of what others have said, as far as it was read; the saver's
}

// New returns the store of a database, which it closes in the end.
func New(ctx context.Context, b Backend) (*Store, error) {
	s := &Store{
		tx: tx{q: b.Read, c: newCache(), numbered: b.Shared}, b: b,
		jobs: make(chan *job, 1024), stop: make(chan struct{}), done: make(chan struct{}), saved: make(chan struct{}), tended: make(chan struct{}),
		server: serverName(),
	}
	err := s.load(ctx, s.tx)
	if err == nil && b.Shared {
		err = s.hear(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", b.Name, err), b.Write.Close(), b.Read.Close())
	}
	go s.writer()
	go s.saver()
	go func() {
		defer close(s.tended)
		if b.Tend != nil {
			b.Tend(s.stop)
		}
	}()
	return s, nil
}

// load brings the cache up to date from the database.
func (s *Store) load(ctx context.Context, t tx) error {
	if s.b.Shared {
		return s.loadChanges(ctx, t)
	}
	return s.c.load(ctx, t)
}

// Close implements store.Store.
func (s *Store) Close() error {
	var err error
	s.once.Do(func() {
		err = s.saveSeen(context.Background())
		close(s.stop)
	})
	<-s.done
	<-s.saved
	<-s.tended
	return errors.Join(err, s.b.Read.Close(), s.b.Write.Close())
}

// job is one Update on its way.
type job struct {
	ctx  context.Context
	fn   func(store.Tx) error
	err  error
	done chan struct{}
}

var errClosed = errors.New("fleet state is closed")

// Update implements store.Store.
func (s *Store) Update(ctx context.Context, fn func(store.Tx) error) error {
	j := &job{ctx: ctx, fn: fn, done: make(chan struct{})}
	select {
	case s.jobs <- j:
	case <-s.stop:
		return errClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-j.done:
		return j.err
	case <-s.done: // the writer has gone, perhaps after this job
		select {
		case <-j.done:
			return j.err
		default:
			return errClosed
		}
	}
}

// maxBatch bounds how many updates share one commit.
const maxBatch = 256

// writer is the one goroutine that writes.
func (s *Store) writer() {
	defer close(s.done)
	for {
		select {
		case <-s.stop:
			return
		case j := <-s.jobs:
			s.commit(s.batch(j))
		}
	}
}

// batch adds the updates that already wait to the first.
func (s *Store) batch(first *job) []*job {
	js := []*job{first}
	for len(js) < maxBatch {
		select {
		case j := <-s.jobs:
			js = append(js, j)
		default:
			return js
		}
	}
	return js
}

// commit runs a batch in one transaction and answers all of it.
func (s *Store) commit(js []*job) {
	ctx := context.Background() // a batch is not one caller's to cancel
	err := s.transact(ctx, js)
	for _, j := range js {
		if err != nil && j.err == nil {
			j.err = fmt.Errorf("writing fleet state: %w", err)
		}
		close(j.done)
	}
}

func (s *Store) transact(ctx context.Context, js []*job) error {
	t, err := s.b.Write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer t.Rollback() //nolint:errcheck // no-op after Commit
	written := newChanges(nil)
	if s.b.Shared {
		if written.rev, err = s.turnToWrite(ctx, t); err != nil {
			return err
		}
	}
	for _, j := range js {
		if err := s.run(ctx, t, j, written); err != nil {
			return err
		}
	}
	if s.b.Shared && (len(written.nodes) > 0 || len(written.rollouts) > 0) {
		if _, err := t.ExecContext(ctx, "UPDATE revision SET rev = $1", written.rev); err != nil {
			return err
		}
	}
	if err := t.Commit(); err != nil {
		return err
	}
	s.c.commit(written)
	return nil
}

// run gives one update its savepoint. Only an error that spoils the whole
// transaction is returned; the update's own is kept in the job.
func (s *Store) run(ctx context.Context, t *sql.Tx, j *job, written *changes) error {
	if j.err = j.ctx.Err(); j.err != nil {
		return nil
	}
	if _, err := t.ExecContext(ctx, "SAVEPOINT job"); err != nil {
		return err
	}
	d := newChanges(written)
	j.err = protect(func() error { return j.fn(tx{q: t, c: s.c, d: d, numbered: s.b.Shared}) })
	if j.err == nil {
		if _, err := t.ExecContext(ctx, "RELEASE SAVEPOINT job"); err == nil {
			written.add(d)
			return nil
		} else {
			j.err = err
		}
	}
	for _, q := range []string{"ROLLBACK TO SAVEPOINT job", "RELEASE SAVEPOINT job"} {
		if _, err := t.ExecContext(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// protect turns a panic of an update into its error: one bad request must
// not end the only writer.
func protect(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("fleet state: update panicked: %v", p)
		}
	}()
	return fn()
}
