// Package sqlite keeps fleet state in one SQLite file (with its -wal and
// -shm companions while open). It is the only user of modernc.org/sqlite.
//
// Durability: write-ahead log with synchronous=FULL, so that a committed
// update survives SIGKILL and power loss. Updates that wait for one another
// are committed together, each under its own savepoint: one fsync serves
// many heartbeats.
package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"

	_ "modernc.org/sqlite" // driver "sqlite"

	"github.com/turnout-project/turnout/internal/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Store is a fleet state file. Make one with Open.
type Store struct {
	tx    // reads, over a pool of connections that cannot write
	read  *sql.DB
	write *sql.DB // one connection
	jobs  chan *job
	stop  chan struct{}
	done  chan struct{} // the writer has ended
	saved chan struct{} // the saver has ended
	once  sync.Once
}

// Open opens or creates the state file and brings its tables up to date. A
// file of a newer program is refused, untouched.
func Open(ctx context.Context, path string) (*Store, error) {
	write, err := connect(path, "_txlock=immediate", 1)
	if err != nil {
		return nil, err
	}
	if err := migrate(ctx, write); err != nil {
		write.Close()
		return nil, fmt.Errorf("fleet state %q: %w", path, err)
	}
	read, err := connect(path, "_pragma=query_only(1)", 4)
	if err != nil {
		write.Close()
		return nil, err
	}
	s := &Store{
		tx: tx{q: read, c: &cache{}}, read: read, write: write,
		jobs: make(chan *job, 1024), stop: make(chan struct{}), done: make(chan struct{}), saved: make(chan struct{}),
	}
	if err := s.c.load(ctx, s.tx); err != nil {
		write.Close()
		read.Close()
		return nil, fmt.Errorf("fleet state %q: %w", path, err)
	}
	go s.writer()
	go s.saver()
	return s, nil
}

func connect(path, extra string, conns int) (*sql.DB, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	u := url.URL{Scheme: "file", Path: abs, RawQuery: "_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)" +
		"&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)&" + extra}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return nil, fmt.Errorf("fleet state %q: %w", path, err)
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db, nil
}

// migrate applies the embedded files above the file's user_version, each in
// a transaction of its own.
func migrate(ctx context.Context, db *sql.DB) error {
	have, know, err := versions(ctx, db)
	if err != nil {
		return err
	}
	if have > know {
		return newerError(have, know)
	}
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return err
	}
	sort.Strings(files)
	for i, f := range files[have:] {
		if err := apply(ctx, db, f, have+i+1); err != nil {
			return fmt.Errorf("migration %s: %w", filepath.Base(f), err)
		}
	}
	return nil
}

// versions returns that of the file and the newest this program knows.
func versions(ctx context.Context, db *sql.DB) (have, know int, err error) {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil || len(files) == 0 {
		return 0, 0, fmt.Errorf("no migrations in this program: %w", err)
	}
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil {
		return 0, 0, fmt.Errorf("reading its version: %w", err)
	}
	return have, len(files), nil
}

func newerError(have, know int) error {
	return fmt.Errorf("written by a newer pxeserver (version %d, this one knows %d): use that one", have, know)
}

func apply(ctx context.Context, db *sql.DB, file string, version int) error {
	text, err := migrations.ReadFile(file)
	if err != nil {
		return err
	}
	t, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer t.Rollback() //nolint:errcheck // no-op after Commit
	for _, q := range []string{string(text), "PRAGMA user_version = " + strconv.Itoa(version)} {
		if _, err := t.ExecContext(ctx, q); err != nil {
			return err
		}
	}
	return t.Commit()
}

// Close implements store.Store.
func (s *Store) Close() error {
	var err error
	s.once.Do(func() {
		err = s.saveSeen()
		close(s.stop)
	})
	<-s.done
	<-s.saved
	return errors.Join(err, s.read.Close(), s.write.Close())
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
	err := func() error {
		t, err := s.write.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer t.Rollback() //nolint:errcheck // no-op after Commit
		written := newChanges(nil)
		for _, j := range js {
			if err := s.run(ctx, t, j, written); err != nil {
				return err
			}
		}
		if err := t.Commit(); err != nil {
			return err
		}
		s.c.commit(written)
		return nil
	}()
	for _, j := range js {
		if err != nil && j.err == nil {
			j.err = fmt.Errorf("writing fleet state: %w", err)
		}
		close(j.done)
	}
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
	j.err = protect(func() error { return j.fn(tx{t, s.c, d}) })
	end := "RELEASE job"
	if j.err != nil {
		end = "ROLLBACK TO job; RELEASE job"
	}
	if _, err := t.ExecContext(ctx, end); err != nil {
		return err
	}
	if j.err == nil {
		written.add(d)
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

// unique reports whether err is a violated UNIQUE or PRIMARY KEY constraint.
func unique(err error) bool {
	return err != nil && strings.Contains(err.Error(), "constraint failed") &&
		(strings.Contains(err.Error(), "UNIQUE") || strings.Contains(err.Error(), "PRIMARY KEY"))
}
