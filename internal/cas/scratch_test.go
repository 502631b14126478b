package cas

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestKilled: what a killed process left is removed by the next result, what
// another process is just making is not.
func TestKilled(t *testing.T) {
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(s.Dir(), "tmp", scratchPrefix+"left")
	if err := os.MkdirAll(filepath.Join(left, "result", "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	outer, err := s.PutKey("outer", func(path string) error {
		if err := os.WriteFile(path, []byte("outer"), 0o644); err != nil {
			return err
		}
		_, err := s.PutKey("inner", func(path string) error { return os.WriteFile(path, []byte("inner"), 0o644) })
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(outer); err != nil || string(b) != "outer" {
		t.Errorf("the outer result is %q, %v", b, err)
	}
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what a killed process left is still there: %v", err)
	}
	if names, err := os.ReadDir(filepath.Join(s.Dir(), "tmp")); err != nil || len(names) > 0 {
		t.Errorf("%d things are left in tmp, %v", len(names), err)
	}
}
