package cas

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func open(t *testing.T) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func sumOf(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// left returns what is below the store's tmp folder.
func left(t *testing.T, s *Store) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(s.Dir(), "tmp", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestPut(t *testing.T) {
	ctx := context.Background()
	b := []byte("a package")
	sum := sumOf(b)
	tests := []struct {
		name string
		sum  string
		size int64
		ok   bool
	}{
		{"right", sum, int64(len(b)), true},
		{"size unknown", sum, -1, true},
		{"with prefix", "sha256:" + sum, int64(len(b)), true},
		{"wrong hash", strings.Repeat("0", 64), int64(len(b)), false},
		{"too short", sum, int64(len(b)) + 1, false},
		{"too long", sum, int64(len(b)) - 1, false},
		{"no hash", "", -1, false},
		{"path for a hash", "../../" + sum[6:], -1, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := open(t)
			err := s.Put(ctx, tt.sum, tt.size, bytes.NewReader(b))
			if (err == nil) != tt.ok || s.Has(tt.sum) != tt.ok {
				t.Fatalf("Put = %v, Has = %v; want success %v", err, s.Has(tt.sum), tt.ok)
			}
			if got := left(t, s); len(got) != 0 {
				t.Errorf("Put left %v", got)
			}
			if !tt.ok {
				return
			}
			got, err := os.ReadFile(s.Path(tt.sum))
			if err != nil || !bytes.Equal(got, b) {
				t.Errorf("the blob is %q, %v", got, err)
			}
			if err := s.Verify(tt.sum, int64(len(b))); err != nil {
				t.Errorf("Verify = %v", err)
			}
		})
	}
}

func TestPutCancelled(t *testing.T) {
	s := open(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	b := []byte("x")
	if err := s.Put(ctx, sumOf(b), 1, bytes.NewReader(b)); !errors.Is(err, context.Canceled) {
		t.Errorf("Put = %v, want %v", err, context.Canceled)
	}
	if s.Has(sumOf(b)) || len(left(t, s)) != 0 {
		t.Errorf("a cancelled Put left a blob or %v", left(t, s))
	}
}

func TestVerifyRemovesBadBlob(t *testing.T) {
	s := open(t)
	b := []byte("good")
	if err := s.Put(context.Background(), sumOf(b), 4, bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(s.Path(sumOf(b)), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.Path(sumOf(b)), []byte("evil"), 0o644); err != nil {
		t.Fatal(err)
	}
	var mismatch *MismatchError
	if err := s.Verify(sumOf(b), 4); !errors.As(err, &mismatch) || mismatch.GotSHA256 != sumOf([]byte("evil")) {
		t.Errorf("Verify of a changed blob = %v", err)
	}
	if s.Has(sumOf(b)) {
		t.Error("the bad blob is still there")
	}
}

func TestKeys(t *testing.T) {
	s := open(t)
	if p, ok := s.GetKey("k"); ok {
		t.Fatalf("GetKey of an empty store = %s", p)
	}
	failed := errors.New("failed")
	if _, err := s.PutKey("k", func(p string) error {
		if err := os.WriteFile(p, []byte("half"), 0o644); err != nil {
			return err
		}
		return failed
	}); !errors.Is(err, failed) {
		t.Errorf("PutKey = %v, want %v", err, failed)
	}
	if _, ok := s.GetKey("k"); ok || len(left(t, s)) != 0 {
		t.Errorf("a failed PutKey left a result or %v", left(t, s))
	}
	first, err := s.PutKey("k", func(p string) error {
		if err := os.MkdirAll(filepath.Join(p, "sub"), 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(p, "sub", "f"), []byte("1"), 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.PutKey("k", func(p string) error {
		if err := os.Mkdir(p, 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(p, "g"), nil, 0o644)
	})
	if err != nil || second != first {
		t.Errorf("second PutKey = %s, %v; want %s", second, err, first)
	}
	if b, err := os.ReadFile(filepath.Join(first, "sub", "f")); err != nil || string(b) != "1" {
		t.Errorf("the first result is gone: %q, %v", b, err)
	}
	file, err := s.PutKey("../../etc/k", func(p string) error { return os.WriteFile(p, []byte("2"), 0o644) })
	if err != nil || !strings.HasPrefix(file, filepath.Join(s.Dir(), "keys")) {
		t.Errorf("PutKey of a key that looks like a path = %s, %v", file, err)
	}
	if _, err := s.PutKey("none", func(string) error { return nil }); err == nil {
		t.Error("PutKey without a result succeeded")
	}
}

func TestPutKeyInParallel(t *testing.T) {
	s := open(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			p, err := s.PutKey("k", func(p string) error {
				if err := os.Mkdir(p, 0o755); err != nil {
					return err
				}
				return os.WriteFile(filepath.Join(p, "f"), []byte("same"), 0o644)
			})
			if err != nil {
				t.Error(err)
				return
			}
			if b, err := os.ReadFile(filepath.Join(p, "f")); err != nil || string(b) != "same" {
				t.Errorf("result %q, %v", b, err)
			}
		})
	}
	wg.Wait()
}

// A process that is killed while it writes leaves no blob, and what it left
// is swept when it is old.
func TestKilledWriter(t *testing.T) {
	if dir := os.Getenv("CAS_TEST_STORE"); dir != "" {
		s, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Put(context.Background(), sumOf([]byte("half a blob")), 11, os.Stdin)
		return
	}
	s := open(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledWriter$")
	cmd.Env = append(os.Environ(), "CAS_TEST_STORE="+s.Dir())
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write([]byte("half ")); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); len(left(t, s)) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the other process wrote nothing")
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if s.Has(sumOf([]byte("half a blob"))) {
		t.Error("a half blob is in the store")
	}
	s.sweep(time.Now())
	if len(left(t, s)) != 1 {
		t.Errorf("sweep took what another process may be writing; left %v", left(t, s))
	}
	s.sweep(time.Now().Add(abandoned + time.Hour))
	if got := left(t, s); len(got) != 0 {
		t.Errorf("sweep left %v", got)
	}
}
