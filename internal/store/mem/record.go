package mem

import (
	"context"

	"github.com/turnout-project/turnout/internal/store"
)

func (t *tx) Record(_ context.Context, kind, key string) (*store.Record, error) {
	r, err := get[store.Record](t, "record", kind+"\x00"+key)
	if err != nil {
		return nil, store.NotFound(kind, key)
	}
	return r, nil
}

func (t *tx) Records(_ context.Context, kind, from, to string) ([]store.Record, error) {
	all, err := list[store.Record](t, "record")
	var out []store.Record
	for _, r := range all {
		if r.Kind == kind && r.Key >= from && (to == "" || r.Key < to) {
			out = append(out, *r)
		}
	}
	return out, err
}

func (m *memory) Record(ctx context.Context, kind, key string) (*store.Record, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.tx.Record(ctx, kind, key)
}

func (m *memory) Records(ctx context.Context, kind, from, to string) ([]store.Record, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.tx.Records(ctx, kind, from, to)
}

func (t *tx) PutRecord(_ context.Context, r store.Record) error {
	return t.put("record", r.Kind+"\x00"+r.Key, r)
}

func (t *tx) DeleteRecord(_ context.Context, kind, key string) error {
	if _, ok := t.docs["record"][kind+"\x00"+key]; !ok {
		return store.NotFound(kind, key)
	}
	t.set("record", kind+"\x00"+key, nil)
	return nil
}
