package kmod

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/cas"
	"github.com/turnout-project/turnout/internal/lock"
)

// TestBuildNVIDIA compiles the driver of a real lock; it takes minutes and
// the packages of that lock, so it is asked for: TURNOUT_KMOD_LOCK names the
// lock, TURNOUT_TEST_STORE the store with its packages.
func TestBuildNVIDIA(t *testing.T) {
	name := os.Getenv("TURNOUT_KMOD_LOCK")
	if name == "" {
		t.Skip("TURNOUT_KMOD_LOCK names no lock")
	}
	f, err := lock.Read(name)
	if err != nil {
		t.Fatal(err)
	}
	store, err := cas.Open(os.Getenv("TURNOUT_TEST_STORE"))
	if err != nil {
		t.Fatal(err)
	}
	s := Spec{Packages: f.Build, DebPath: store.Path, Kernel: strings.TrimPrefix(f.Kernel, "linux-image-"), Architecture: f.Architecture,
		SourceDateEpoch: f.SourceDateEpoch, WorkDir: t.TempDir(), Sources: []string{"nvidia-open-kernel-dkms"}}
	if _, open := lock.Find(f.Build, s.Sources[0]); !open {
		s.Sources = []string{"nvidia-kernel-dkms"}
	}
	version, err := s.Version()
	if err != nil {
		t.Fatal(err)
	}
	s.Driver = lock.Upstream(version)
	s.Progress = func(stage string, done, total int64) {
		if done == 0 {
			t.Log(stage)
		}
	}
	out := filepath.Join(t.TempDir(), "modules.deb")
	err = Build(t.Context(), s, out)
	var ce *CompileError
	if errors.As(err, &ce) {
		t.Logf("%v", err)
		if _, statErr := os.Stat(out); !errors.Is(statErr, os.ErrNotExist) {
			t.Errorf("a package is left: %v", statErr)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	t.Logf("%s: %d bytes, sha256 %s", s.Name(), len(b), hex.EncodeToString(sum[:]))
	listing, err := exec.Command("dpkg-deb", "-c", out).CombinedOutput()
	t.Logf("%s%v", listing, err)
}
