// Package sqlite keeps fleet state in one SQLite file (with its -wal and
// -shm companions while open). It is the only user of modernc.org/sqlite.
//
// Durability: write-ahead log with synchronous=FULL, so that a committed
// update survives SIGKILL and power loss.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"time"

	_ "modernc.org/sqlite" // driver "sqlite"

	"github.com/turnout-project/turnout/internal/store/schema"
	"github.com/turnout-project/turnout/internal/store/sqlstore"
)

// Store is a fleet state file. Make one with Open.
type Store = sqlstore.Store

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
	tend, err := connect(path, "", 1)
	if err != nil {
		return nil, errors.Join(err, read.Close(), write.Close())
	}
	return sqlstore.New(ctx, sqlstore.Backend{Name: fmt.Sprintf("fleet state %q", path), Read: read, Write: write,
		Tend: func(stop <-chan struct{}) { checkpoints(tend, stop) }})
}

// How often the write-ahead log is brought into the file. SQLite would do it
// at the end of the commit that makes the log too long, which then waits for
// the disk to take it all; this way no update waits.
const (
	checkpointEvery = 2 * time.Second
	checkpointPages = 8000 // of 4 KiB; a commit does it after all once the log has so many
)

func checkpoints(db *sql.DB, stop <-chan struct{}) {
	defer db.Close()
	t := time.NewTicker(checkpointEvery)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-t.C:
			db.Exec("PRAGMA wal_checkpoint(PASSIVE)") //nolint:errcheck // next time
		}
	}
}

func connect(path, extra string, conns int) (*sql.DB, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	u := url.URL{Scheme: "file", Path: abs, RawQuery: "_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)" +
		"&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)&_pragma=wal_autocheckpoint(" + strconv.Itoa(checkpointPages) + ")&_pragma=journal_size_limit(" + strconv.Itoa(checkpointPages<<12) + ")&" + extra}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return nil, fmt.Errorf("fleet state %q: %w", path, err)
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db, nil
}

// migrate applies the migrations above the file's user_version, each in a
// transaction of its own.
func migrate(ctx context.Context, db *sql.DB) error {
	have, know, err := versions(ctx, db)
	if err != nil {
		return err
	}
	if have > len(know) {
		return newerError(have, len(know))
	}
	for i, m := range know[have:] {
		if err := apply(ctx, db, m.SQL, have+i+1); err != nil {
			return fmt.Errorf("migration %s: %w", m.Name, err)
		}
	}
	return nil
}

// versions returns that of the file, and the migrations this program knows.
func versions(ctx context.Context, db *sql.DB) (have int, know []schema.Migration, err error) {
	if know, err = schema.SQLite(); err != nil {
		return 0, nil, err
	}
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil {
		return 0, nil, fmt.Errorf("reading its version: %w", err)
	}
	return have, know, nil
}

func newerError(have, know int) error {
	return fmt.Errorf("written by a newer pxeserver (version %d, this one knows %d): use that one", have, know)
}

func apply(ctx context.Context, db *sql.DB, text string, version int) error {
	t, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer t.Rollback() //nolint:errcheck // no-op after Commit
	for _, q := range []string{text, "PRAGMA user_version = " + strconv.Itoa(version)} {
		if _, err := t.ExecContext(ctx, q); err != nil {
			return err
		}
	}
	return t.Commit()
}
