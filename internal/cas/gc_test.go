package cas

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestEntriesAndRemove(t *testing.T) {
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	blob := []byte("a package")
	h := sha256.Sum256(blob)
	sum := hex.EncodeToString(h[:])
	if err := s.Put(t.Context(), sum, int64(len(blob)), bytes.NewReader(blob)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutKey("a folder", func(p string) error {
		if err := os.MkdirAll(filepath.Join(p, "sub"), 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(p, "sub", "f"), make([]byte, 1000), 0o644)
	}); err != nil {
		t.Fatal(err)
	}
	path, _ := s.GetKey("a folder")
	old := time.Now().Add(-100 * 24 * time.Hour)
	for _, p := range []string{path, path + usedSuffix} {
		if err := os.Chtimes(p, old, old); err != nil {
			t.Fatal(err)
		}
	}
	find := func() map[bool]Entry {
		t.Helper()
		es, err := s.Entries()
		if err != nil {
			t.Fatal(err)
		}
		out := map[bool]Entry{}
		for _, e := range es {
			out[e.Blob] = e
		}
		return out
	}
	es := find()
	if b, k := es[true], es[false]; len(es) != 2 || b.Sum != sum || b.Size != int64(len(blob)) || k.Size != 1000 || time.Since(k.Used) < 99*24*time.Hour {
		t.Fatalf("entries %+v", es)
	}
	if _, ok := s.GetKey("a folder"); !ok || time.Since(find()[false].Used) > time.Hour {
		t.Errorf("a result that was used is as old as before: %+v", find()[false])
	}
	for _, e := range find() {
		if err := s.Remove(e); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := s.GetKey("a folder"); ok || s.Has(sum) || len(find()) != 0 {
		t.Errorf("left: %+v", find())
	}
	left, err := os.ReadDir(filepath.Join(s.Dir(), "tmp"))
	if err != nil || len(left) != 0 {
		t.Errorf("left in tmp: %v, %v", left, err)
	}
}
