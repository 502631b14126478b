// Package postgres keeps fleet state in a PostgreSQL database that several
// servers share. It is the only user of pgx.
//
// Writers take turns by an advisory lock, so that an update is isolated from
// those of all servers. Each server keeps nodes and live rollouts in memory;
// before it reads them it asks for the number of the newest revision, and for
// what has changed since the one it knows.
package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/turnout-project/turnout/internal/store/schema"
	"github.com/turnout-project/turnout/internal/store/sqlstore"
)

// Store is a fleet state database. Make one with Open.
type Store = sqlstore.Store

// lockMigrate is the advisory lock of who changes tables.
const lockMigrate = 0x7475726e00

// How many connections a server holds: readers, and the writer, the teller
// and the leader's session.
const (
	readConns  = 4
	writeConns = 4
)

// Settings of each session. A server that hangs, or whose machine is gone,
// must not keep its turn to write, nor the lead.
var session = map[string]string{
	"application_name":                    "pxeserver",
	"statement_timeout":                   "60s",
	"idle_in_transaction_session_timeout": "10s",
	"tcp_keepalives_idle":                 "5",
	"tcp_keepalives_interval":             "2",
	"tcp_keepalives_count":                "3",
	"synchronous_commit":                  "on",
}

// Open connects to the database that a URL (postgres://user@host/name) names
// and brings its tables up to date. password, if not empty, is the user's.
// Tables of a newer program are refused, untouched.
func Open(ctx context.Context, url, password string) (*Store, error) {
	c, name, err := parse(url, password)
	if err != nil {
		return nil, err
	}
	write := pool(c, writeConns)
	if err := migrate(ctx, write); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), write.Close())
	}
	return sqlstore.New(ctx, sqlstore.Backend{Name: name, Read: pool(c, readConns), Write: write, Shared: true})
}

// parse returns how to connect, and what to call it.
func parse(url, password string) (c *pgx.ConnConfig, name string, err error) {
	c, err = pgx.ParseConfig(url)
	if err != nil {
		return nil, "", fmt.Errorf("store: %w", err) // pgx shows no password in it
	}
	if password != "" {
		c.Password = password
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = 5 * time.Second
	}
	for k, v := range session {
		if _, ok := c.RuntimeParams[k]; !ok {
			c.RuntimeParams[k] = v
		}
	}
	return c, fmt.Sprintf("fleet state in database %q at %s", c.Database, c.Host), nil
}

// Check reports what keeps a server from a database. Nothing is changed: one
// without tables is good.
func Check(ctx context.Context, url, password string) error {
	c, name, err := parse(url, password)
	if err != nil {
		return err
	}
	db := pool(c, 1)
	defer db.Close()
	var isThere bool
	if err := db.QueryRowContext(ctx, "SELECT to_regclass('migration') IS NOT NULL").Scan(&isThere); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if !isThere {
		return nil
	}
	know, err := schema.Postgres()
	if err != nil {
		return err
	}
	have := 0
	if err := db.QueryRowContext(ctx, "SELECT coalesce(max(version), 0) FROM migration").Scan(&have); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if have > len(know) {
		return fmt.Errorf("%s: %w", name, newerError(have, len(know)))
	}
	return nil
}

func newerError(have, know int) error {
	return fmt.Errorf("written by a newer pxeserver (version %d, this one knows %d): use that one", have, know)
}

func pool(c *pgx.ConnConfig, conns int) *sql.DB {
	db := stdlib.OpenDB(*c)
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db
}

// migrate applies the migrations that the database has not had, all or none.
// Servers that start at once do it one after the other.
func migrate(ctx context.Context, db *sql.DB) error {
	know, err := schema.Postgres()
	if err != nil {
		return err
	}
	t, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer t.Rollback() //nolint:errcheck // no-op after Commit
	if _, err := t.ExecContext(ctx, "SELECT pg_advisory_xact_lock($1)", int64(lockMigrate)); err != nil {
		return err
	}
	if _, err := t.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS migration (version INT PRIMARY KEY, name TEXT NOT NULL)"); err != nil {
		return fmt.Errorf("making tables: %w", err)
	}
	var have int
	if err := t.QueryRowContext(ctx, "SELECT coalesce(max(version), 0) FROM migration").Scan(&have); err != nil {
		return fmt.Errorf("reading its version: %w", err)
	}
	if have > len(know) {
		return newerError(have, len(know))
	}
	for i, m := range know[have:] {
		if _, err := t.ExecContext(ctx, m.SQL); err != nil {
			return fmt.Errorf("migration %s: %w", m.Name, err)
		}
		if _, err := t.ExecContext(ctx, "INSERT INTO migration (version, name) VALUES ($1, $2)", have+i+1, m.Name); err != nil {
			return fmt.Errorf("migration %s: %w", m.Name, err)
		}
	}
	return t.Commit()
}
