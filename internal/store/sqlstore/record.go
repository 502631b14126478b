package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/turnout-project/turnout/internal/store"
)

func (t tx) Record(ctx context.Context, kind, key string) (*store.Record, error) {
	r := &store.Record{Kind: kind, Key: key}
	err := t.queryRow(ctx, "SELECT node, doc FROM record WHERE kind = ? AND key = ?", kind, key).Scan(&r.Node, &r.Doc)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, store.NotFound(kind, key)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s %q: %w", kind, key, err)
	}
	return r, nil
}

func (t tx) Records(ctx context.Context, kind, from, to string) ([]store.Record, error) {
	query, args := "SELECT key, node, doc FROM record WHERE kind = ? AND key >= ?", []any{kind, from}
	if to != "" {
		query, args = query+" AND key < ?", append(args, to)
	}
	rows, err := t.query(ctx, query+" ORDER BY key", args...)
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", kind, err)
	}
	defer rows.Close()
	var out []store.Record
	for rows.Next() {
		r := store.Record{Kind: kind}
		if err := rows.Scan(&r.Key, &r.Node, &r.Doc); err != nil {
			return nil, fmt.Errorf("listing %s: %w", kind, err)
		}
		out = append(out, r)
	}
	return out, rows.Err()
}

func (t tx) PutRecord(ctx context.Context, r store.Record) error {
	doc := r.Doc
	if doc == nil {
		doc = []byte{}
	}
	if _, err := t.exec(ctx, "INSERT INTO record(kind, key, node, doc) VALUES (?, ?, ?, ?) ON CONFLICT (kind, key) DO UPDATE SET node = excluded.node, doc = excluded.doc", r.Kind, r.Key, r.Node, doc); err != nil {
		return fmt.Errorf("writing %s %q: %w", r.Kind, r.Key, err)
	}
	return nil
}

func (t tx) DeleteRecord(ctx context.Context, kind, key string) error {
	hits, err := t.exec(ctx, "DELETE FROM record WHERE kind = ? AND key = ?", kind, key)
	if err != nil {
		return fmt.Errorf("removing %s %q: %w", kind, key, err)
	}
	if hits == 0 {
		return store.NotFound(kind, key)
	}
	return nil
}
