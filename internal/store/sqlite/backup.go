package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
)

// Backup copies the state file at path to a file that is not there yet. It
// may be called while a server works on it, from another process too: what
// is copied is the state as of one moment, in one file.
func Backup(ctx context.Context, path, to string) error {
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("fleet state: %w", err)
	}
	db, err := connect(path, "", 1)
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, "VACUUM INTO ?", to); err != nil {
		return fmt.Errorf("copying fleet state %q: %w", path, err)
	}
	return nil
}

// Check reports what is wrong with a copy: damage, or that a newer program
// wrote it. The file is not changed.
func Check(ctx context.Context, path string) error {
	abs, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	u := url.URL{Scheme: "file", Path: abs, RawQuery: "mode=ro&immutable=1"} // a copy has no -wal, and nobody writes to it
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return fmt.Errorf("fleet state %q: %w", path, err)
	}
	defer db.Close()
	var verdict string
	if err := db.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&verdict); err != nil {
		return fmt.Errorf("fleet state %q: %w", path, err)
	}
	if verdict != "ok" {
		return fmt.Errorf("fleet state %q is damaged: %s", path, verdict)
	}
	have, know, err := versions(ctx, db)
	switch {
	case err != nil:
		return fmt.Errorf("fleet state %q: %w", path, err)
	case have == 0:
		return fmt.Errorf("fleet state %q: %w", path, errors.New("it holds no fleet"))
	case have > len(know):
		return fmt.Errorf("fleet state %q: %w", path, newerError(have, len(know)))
	}
	return nil
}

// Tables opens a state file for reading all its tables as they are, brought
// up to date first. No server may work on it.
func Tables(ctx context.Context, path string) (*sql.DB, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("fleet state: %w", err)
	}
	db, err := connect(path, "", 1)
	if err != nil {
		return nil, err
	}
	if err := migrate(ctx, db); err != nil {
		db.Close()
		return nil, fmt.Errorf("fleet state %q: %w", path, err)
	}
	return db, nil
}
