package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// importTables are all that hold fleet state, what is referred to first.
var importTables = []string{"node", "node_mac", "pool", "image", "rollout", "move", "event", "enrolment", "ticket", "lease", "baseline", "seen", "record"}

// Import fills an empty database with what another has: one whose tables
// package schema made, at the same version. All of it is taken over, or
// nothing. It returns how many rows there were by table.
func Import(ctx context.Context, url, password string, from *sql.DB) (map[string]int, error) {
	c, name, err := parse(url, password)
	if err != nil {
		return nil, err
	}
	delete(c.RuntimeParams, "idle_in_transaction_session_timeout") // the other side may take its time
	db := pool(c, 1)
	defer db.Close()
	counts, err := importAll(ctx, db, from)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return counts, nil
}

func importAll(ctx context.Context, db, from *sql.DB) (map[string]int, error) {
	if err := migrate(ctx, db); err != nil {
		return nil, err
	}
	t, err := db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer t.Rollback() //nolint:errcheck // no-op after Commit
	for _, q := range []string{"LOCK TABLE node, rollout, event IN EXCLUSIVE MODE", "SELECT set_config('turnout.rev', '1', true)"} {
		if _, err := t.ExecContext(ctx, q); err != nil {
			return nil, err
		}
	}
	counts := map[string]int{}
	for _, table := range importTables {
		var isUsed bool
		if err := t.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM "+table+")").Scan(&isUsed); err != nil {
			return nil, err
		}
		if isUsed {
			return nil, errors.New("it holds a fleet already; import into an empty database")
		}
	}
	for _, table := range importTables {
		if counts[table], err = importTable(ctx, t, from, table); err != nil {
			return nil, fmt.Errorf("table %s: %w", table, err)
		}
	}
	for _, q := range []string{
		"SELECT setval(pg_get_serial_sequence('event', 'id'), (SELECT coalesce(max(id), 0) + 1 FROM event), false)",
		"UPDATE revision SET rev = 1",
	} {
		if _, err := t.ExecContext(ctx, q); err != nil {
			return nil, err
		}
	}
	return counts, t.Commit()
}

func importTable(ctx context.Context, t *sql.Tx, from *sql.DB, table string) (int, error) {
	rows, err := from.QueryContext(ctx, "SELECT * FROM "+table)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	cols, err := rows.Columns()
	if err != nil {
		return 0, err
	}
	places := make([]string, len(cols))
	for i := range cols {
		places[i] = "$" + strconv.Itoa(i+1)
	}
	put, err := t.PrepareContext(ctx, "INSERT INTO "+table+" ("+strings.Join(cols, ", ")+") VALUES ("+strings.Join(places, ", ")+")")
	if err != nil {
		return 0, err
	}
	defer put.Close()
	vals, at := make([]any, len(cols)), make([]any, len(cols))
	for i := range vals {
		at[i] = &vals[i]
	}
	n := 0
	for rows.Next() {
		if err := rows.Scan(at...); err != nil {
			return n, err
		}
		for i, v := range vals {
			if s, ok := v.(string); ok {
				vals[i] = strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", " ")
			}
		}
		if _, err := put.ExecContext(ctx, vals...); err != nil {
			return n, err
		}
		n++
	}
	return n, rows.Err()
}
