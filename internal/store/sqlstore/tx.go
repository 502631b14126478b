package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
)

// querier is what *sql.DB and *sql.Tx share.
type querier interface {
	ExecContext(ctx context.Context, q string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, q string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, q string, args ...any) *sql.Row
}

// tx implements store.Tx on a transaction, and the readers on a pool (then
// without changes).
type tx struct {
	q        querier
	c        *cache
	d        *changes
	numbered bool // parameters are $1, $2, … rather than ?
}

// detach keeps a caller that goes away from breaking the transaction that
// its update shares with others.
func (t tx) detach(ctx context.Context) context.Context {
	if t.d != nil {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

func (t tx) query(ctx context.Context, q string, args ...any) (*sql.Rows, error) {
	return t.q.QueryContext(t.detach(ctx), t.text(q), args...)
}

func (t tx) queryRow(ctx context.Context, q string, args ...any) *sql.Row {
	return t.q.QueryRowContext(t.detach(ctx), t.text(q), args...)
}

// each calls fn for each row.
func (t tx) each(ctx context.Context, q string, args []any, fn func(*sql.Rows) error) error {
	rows, err := t.query(ctx, q, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := fn(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// numberedTexts remembers queries with numbered parameters, by query.
var numberedTexts sync.Map

// text writes a query in the words of the database.
func (t tx) text(q string) string {
	if !t.numbered {
		return q
	}
	if known, ok := numberedTexts.Load(q); ok {
		return known.(string)
	}
	parts := strings.Split(q, "?")
	var b strings.Builder
	for i, p := range parts {
		if i > 0 {
			b.WriteString("$" + strconv.Itoa(i))
		}
		b.WriteString(p)
	}
	numberedTexts.Store(q, b.String())
	return b.String()
}

func one[T any](ctx context.Context, t tx, what, name, query string, args ...any) (*T, error) {
	var doc []byte
	err := t.queryRow(ctx, query, args...).Scan(&doc)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, store.NotFound(what, name)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s %q: %w", what, name, err)
	}
	v := new(T)
	if err := json.Unmarshal(doc, v); err != nil {
		return nil, fmt.Errorf("reading %s %q: %w", what, name, err)
	}
	return v, nil
}

func many[T any](ctx context.Context, t tx, what, query string, args ...any) ([]*T, error) {
	rows, err := t.query(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", what, err)
	}
	defer rows.Close()
	out := []*T{}
	for rows.Next() {
		var doc sql.RawBytes
		if err := rows.Scan(&doc); err != nil {
			return nil, fmt.Errorf("listing %s: %w", what, err)
		}
		v := new(T)
		if err := json.Unmarshal(doc, v); err != nil {
			return nil, fmt.Errorf("listing %s: %w", what, err)
		}
		out = append(out, v)
	}
	return out, rows.Err()
}

// exec runs one statement and returns the number of rows it touched.
func (t tx) exec(ctx context.Context, query string, args ...any) (int64, error) {
	r, err := t.q.ExecContext(t.detach(ctx), t.text(query), args...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

func (t tx) Node(_ context.Context, name string) (*fleet.Node, error) {
	if n := t.node(name); n != nil {
		return n.Clone(), nil
	}
	return nil, store.NotFound("node", name)
}

// nodeBy finds a node through an index.
func (t tx) nodeBy(ctx context.Context, what, value, query string) (*fleet.Node, error) {
	var name string
	err := t.queryRow(ctx, query, value).Scan(&name)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, store.NotFound(what, value)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s %q: %w", what, value, err)
	}
	return t.Node(ctx, name)
}

func (t tx) NodeByEK(ctx context.Context, ek string) (*fleet.Node, error) {
	return t.nodeBy(ctx, "node with TPM", ek, "SELECT name FROM node WHERE ek = ?")
}

func (t tx) NodeByMAC(ctx context.Context, mac fleet.MAC) (*fleet.Node, error) {
	return t.nodeBy(ctx, "node with MAC", string(mac), "SELECT node FROM node_mac WHERE mac = ?")
}

func (t tx) Nodes(context.Context) ([]*fleet.Node, error) {
	out := t.allNodes()
	for i := range out {
		out[i] = out[i].Clone()
	}
	return out, nil
}

func (t tx) CreateNode(ctx context.Context, n *fleet.Node) error {
	if t.node(n.Name) != nil {
		return store.Taken("node", n.Name)
	}
	return t.saveNode(ctx, n, "INSERT INTO node(ek, doc, name) VALUES (?, ?, ?)", &fleet.Node{})
}

func (t tx) PutNode(ctx context.Context, n *fleet.Node) error {
	old := t.node(n.Name)
	if old == nil {
		return store.NotFound("node", n.Name)
	}
	return t.saveNode(ctx, n, "UPDATE node SET ek = ?, doc = ? WHERE name = ?", old)
}

// saveNode looks who has the node's TPM and MACs before it writes: an error
// of the database would end the transaction of all who share it.
func (t tx) saveNode(ctx context.Context, n *fleet.Node, query string, old *fleet.Node) error {
	doc, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("node %q: %w", n.Name, err)
	}
	if n.EKHash != "" && n.EKHash != old.EKHash {
		if err := t.isFree(ctx, n, "TPM", n.EKHash, "SELECT name FROM node WHERE ek = ?"); err != nil {
			return err
		}
	}
	hits, err := t.exec(ctx, query, sql.NullString{String: n.EKHash, Valid: n.EKHash != ""}, doc, n.Name)
	switch {
	case err != nil:
		return fmt.Errorf("writing node %q: %w", n.Name, err)
	case hits == 0:
		return store.NotFound("node", n.Name)
	}
	if !slices.Equal(old.MACs, n.MACs) {
		if err := t.saveMACs(ctx, n); err != nil {
			return err
		}
	}
	t.d.nodes[n.Name] = n.Clone()
	return nil
}

// isFree fails if a node other than n has what is unique.
func (t tx) isFree(ctx context.Context, n *fleet.Node, what, value, query string) error {
	var owner string
	err := t.queryRow(ctx, query, value).Scan(&owner)
	switch {
	case errors.Is(err, sql.ErrNoRows) || err == nil && owner == n.Name:
		return nil
	case err != nil:
		return fmt.Errorf("reading %s %q: %w", what, value, err)
	}
	return store.Conflict(what, value, owner)
}

// saveMACs makes node_mac say what n says.
func (t tx) saveMACs(ctx context.Context, n *fleet.Node) error {
	var have []string
	err := t.each(ctx, "SELECT mac FROM node_mac WHERE node = ? ORDER BY mac", []any{n.Name}, func(r *sql.Rows) error {
		var m string
		err := r.Scan(&m)
		have = append(have, m)
		return err
	})
	if err != nil {
		return fmt.Errorf("reading the MACs of node %q: %w", n.Name, err)
	}
	want := map[fleet.MAC]bool{}
	for _, m := range n.MACs {
		want[m] = true
	}
	for _, m := range have {
		if want[fleet.MAC(m)] {
			delete(want, fleet.MAC(m))
			continue
		}
		if _, err := t.exec(ctx, "DELETE FROM node_mac WHERE mac = ?", m); err != nil {
			return fmt.Errorf("writing the MACs of node %q: %w", n.Name, err)
		}
	}
	for m := range want {
		if err := t.isFree(ctx, n, "MAC", string(m), "SELECT node FROM node_mac WHERE mac = ?"); err != nil {
			return err
		}
		if _, err := t.exec(ctx, "INSERT INTO node_mac(mac, node) VALUES (?, ?)", string(m), n.Name); err != nil {
			return fmt.Errorf("writing the MACs of node %q: %w", n.Name, err)
		}
	}
	return nil
}

func (t tx) DeleteNode(ctx context.Context, name string) error {
	if _, err := t.exec(ctx, "DELETE FROM ticket WHERE node = ?", name); err != nil {
		return fmt.Errorf("removing node %q: %w", name, err)
	}
	if _, err := t.exec(ctx, "DELETE FROM record WHERE node = ? AND node <> ''", name); err != nil {
		return fmt.Errorf("removing node %q: %w", name, err)
	}
	hits, err := t.exec(ctx, "DELETE FROM node WHERE name = ?", name) // MACs and enrolment follow
	if err == nil && hits == 0 {
		return store.NotFound("node", name)
	}
	if err == nil {
		t.d.nodes[name], t.d.enrolled[name] = nil, true
	}
	return err
}

func (t tx) Pool(ctx context.Context, name string) (*fleet.Pool, error) {
	return one[fleet.Pool](ctx, t, "pool", name, "SELECT doc FROM pool WHERE name = ?", name)
}

func (t tx) Pools(ctx context.Context) ([]*fleet.Pool, error) {
	return many[fleet.Pool](ctx, t, "pools", "SELECT doc FROM pool ORDER BY name")
}

// put writes a document under its key.
func (t tx) put(ctx context.Context, what string, v any, query string, args ...any) error {
	doc, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if _, err := t.exec(ctx, query, append([]any{doc}, args...)...); err != nil {
		return fmt.Errorf("writing %s: %w", what, err)
	}
	return nil
}

func (t tx) PutPool(ctx context.Context, p *fleet.Pool) error {
	return t.put(ctx, "pool "+p.Name, p, "INSERT INTO pool(doc, name) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET doc = excluded.doc", p.Name)
}

func (t tx) Image(ctx context.Context, digest string) (*fleet.Image, error) {
	return one[fleet.Image](ctx, t, "image", digest, "SELECT doc FROM image WHERE digest = ?", digest)
}

func (t tx) Images(ctx context.Context) ([]*fleet.Image, error) {
	return many[fleet.Image](ctx, t, "images", "SELECT doc FROM image ORDER BY published DESC, digest")
}

func (t tx) PutImage(ctx context.Context, i *fleet.Image) error {
	return t.put(ctx, "image "+i.Digest, i, "INSERT INTO image(doc, digest, published) VALUES (?, ?, ?) ON CONFLICT (digest) DO UPDATE SET doc = excluded.doc, published = excluded.published",
		i.Digest, i.Published.UnixNano())
}

func (t tx) DeleteImage(ctx context.Context, digest string) error {
	hits, err := t.exec(ctx, "DELETE FROM image WHERE digest = ?", digest)
	if err == nil && hits == 0 {
		return store.NotFound("image", digest)
	}
	return err
}

func (t tx) AppendEvent(ctx context.Context, e *fleet.Event) error {
	err := t.queryRow(ctx, "INSERT INTO event(at, actor, node, kind, message) VALUES (?, ?, ?, ?, ?) RETURNING id",
		e.At.UnixNano(), e.Actor, e.Node, e.Kind, plain(e.Message)).Scan(&e.ID)
	if err != nil {
		return fmt.Errorf("writing an event: %w", err)
	}
	return nil
}

// plain cuts out what is no text, which a database may refuse.
func plain(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", " ")
}

func (t tx) PruneEvents(ctx context.Context, before time.Time, keep, most int) (int64, error) {
	// What is looked at is bounded too: there is no index by time.
	hits, err := t.exec(ctx, "DELETE FROM event WHERE id IN (SELECT id FROM (SELECT id, at FROM event ORDER BY id LIMIT ?) AS e WHERE at < ?)", most, before.UnixNano())
	if err != nil || keep <= 0 || hits >= int64(most) {
		return hits, err
	}
	var span int64 // no fewer than there are
	if err := t.queryRow(ctx, "SELECT coalesce(max(id) - min(id) + 1, 0) FROM event").Scan(&span); err != nil || span <= int64(keep) {
		return hits, err
	}
	more, err := t.exec(ctx, "DELETE FROM event WHERE id IN (SELECT id FROM event WHERE id <= (SELECT id FROM event ORDER BY id DESC LIMIT 1 OFFSET ?) ORDER BY id LIMIT ?)", keep, int64(most)-hits)
	return hits + more, err
}

func (t tx) Events(ctx context.Context, q store.EventQuery) ([]fleet.Event, error) {
	query := "SELECT id, at, actor, node, kind, message FROM event WHERE id > ? AND substr(kind, 1, ?) = ?"
	args := []any{q.After, len(q.Kind), q.Kind}
	if q.Node != "" {
		query, args = query+" AND node = ?", append(args, q.Node)
	}
	if q.Last {
		query += " ORDER BY id DESC LIMIT " + strconv.Itoa(q.Max())
		query = "SELECT * FROM (" + query + ") AS e ORDER BY id"
	} else {
		query += " ORDER BY id LIMIT " + strconv.Itoa(q.Max())
	}
	rows, err := t.query(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("listing events: %w", err)
	}
	defer rows.Close()
	var out []fleet.Event
	for rows.Next() {
		var e fleet.Event
		var at int64
		if err := rows.Scan(&e.ID, &at, &e.Actor, &e.Node, &e.Kind, &e.Message); err != nil {
			return nil, fmt.Errorf("listing events: %w", err)
		}
		e.At = time.Unix(0, at).UTC()
		out = append(out, e)
	}
	return out, rows.Err()
}

func (t tx) PutTicket(ctx context.Context, k *store.Ticket) error {
	_, err := t.exec(ctx, "INSERT INTO ticket(kind, key, node, expires, payload) VALUES (?, ?, ?, ?, ?) ON CONFLICT (kind, key) DO UPDATE SET node = excluded.node, expires = excluded.expires, payload = excluded.payload",
		k.Kind, k.Key, k.Node, k.Expires.UnixNano(), k.Payload)
	return err
}

func (t tx) TakeTicket(ctx context.Context, kind, key, node string, now time.Time) (*store.Ticket, error) {
	if _, err := t.exec(ctx, "DELETE FROM ticket WHERE expires <= ?", now.UnixNano()); err != nil {
		return nil, fmt.Errorf("dropping expired tickets: %w", err)
	}
	k := &store.Ticket{Kind: kind, Key: key, Node: node}
	var at int64
	err := t.queryRow(ctx, "DELETE FROM ticket WHERE kind = ? AND key = ? AND node = ? RETURNING expires, payload",
		kind, key, node).Scan(&at, &k.Payload)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, store.NotFound(kind, "…")
	}
	k.Expires = time.Unix(0, at).UTC()
	return k, err
}

func (t tx) Leases(ctx context.Context) ([]store.Lease, error) {
	rows, err := t.query(ctx, "SELECT ip, doc FROM lease ORDER BY ip")
	if err != nil {
		return nil, fmt.Errorf("listing leases: %w", err)
	}
	defer rows.Close()
	var out []store.Lease
	for rows.Next() {
		var l store.Lease
		if err := rows.Scan(&l.IP, &l.Doc); err != nil {
			return nil, fmt.Errorf("listing leases: %w", err)
		}
		out = append(out, l)
	}
	return out, rows.Err()
}

func (t tx) PutLease(ctx context.Context, l store.Lease) error {
	if _, err := t.exec(ctx, "INSERT INTO lease(ip, doc) VALUES (?, ?) ON CONFLICT (ip) DO UPDATE SET doc = excluded.doc", l.IP, l.Doc); err != nil {
		return fmt.Errorf("writing lease of %s: %w", l.IP, err)
	}
	return nil
}
