package registry

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/cas"
	"github.com/turnout-project/turnout/internal/manifest"
)

func sum(b string) string { return strings.TrimPrefix(manifest.DigestOf([]byte(b)), "sha256:") }

// files are packages of the given contents; opened counts how often one is read.
func files(opened *int, contents ...string) []File {
	var all []File
	for _, c := range contents {
		all = append(all, File{Name: c + ".deb", SHA256: sum(c), SizeBytes: int64(len(c)), Open: func() (io.ReadCloser, error) {
			*opened++
			return io.NopCloser(strings.NewReader(c)), nil
		}})
	}
	return all
}

// TestVendor: a transfer that breaks off goes on, and a store is filled from
// the registry alone, which cannot pass off other bytes.
func TestVendor(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	f, repo := newRegistry(t, true)
	ref, o := repo+":lock", Options{PlainHTTP: true}
	lock, opened := []byte(`{"lock":1}`), 0
	all := files(&opened, "libc6", "kmod", "systemd")
	f.FailAfter = 3 // the config, the lock, libc6
	if _, err := PushVendor(t.Context(), ref, "x.lock.json", lock, all, o); err == nil || !strings.Contains(err.Error(), "kmod.deb") {
		t.Fatalf("PushVendor to a registry that fails = %v", err)
	}
	if _, err := ReadLock(t.Context(), ref, o); err == nil {
		t.Error("half a transfer has a tag")
	}
	f.Lock()
	f.FailAfter, opened = 0, 0
	f.Unlock()
	digest, err := PushVendor(t.Context(), ref, "x.lock.json", lock, all, o)
	if err != nil || opened != 2 {
		t.Fatalf("PushVendor again = %v after reading %d files, want the 2 that were missing", err, opened)
	}
	for _, r := range []string{ref, repo + "@" + digest} {
		if got, err := ReadLock(t.Context(), r, o); err != nil || !bytes.Equal(got, lock) {
			t.Errorf("ReadLock(%s) = %q, %v", r, got, err)
		}
	}
	blobs, err := OpenBlobs(ref, o)
	must(t, err)
	fetch := func(contents ...string) error {
		store, err := cas.Open(t.TempDir())
		must(t, err)
		store.Offline, store.Sources = true, []cas.Source{blobs}
		var items []cas.Item
		for _, c := range contents {
			items = append(items, cas.Item{Name: c, URI: "http://gone.invalid/" + c, SHA256: sum(c), Size: int64(len(c))})
		}
		err = store.Fetch(t.Context(), items, 0, nil)
		for _, c := range contents {
			if err == nil && store.Verify(sum(c), int64(len(c))) != nil {
				t.Errorf("%s is not in the store", c)
			}
		}
		return err
	}
	if err := fetch("libc6", "kmod", "systemd"); err != nil {
		t.Error(err)
	}
	var gone *cas.GoneError
	if err := fetch("bash"); !errors.As(err, &gone) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a package that is not there = %v, want a *cas.GoneError of fs.ErrNotExist", err)
	}
	f.Lock()
	f.Blobs["sha256:"+sum("kmod")] = []byte("KMOD")
	f.Unlock()
	var mismatch *cas.MismatchError
	if err := fetch("kmod"); !errors.As(err, &mismatch) {
		t.Errorf("a package of other bytes = %v, want a *cas.MismatchError", err)
	}
	f.Lock()
	f.Blobs[manifest.DigestOf(lock)] = []byte(`{"lock":2}`)
	f.Unlock()
	if got, err := ReadLock(t.Context(), ref, o); err == nil {
		t.Errorf("ReadLock of other bytes = %q", got)
	}
}

// An image is no lock.
func TestReadLockOfImage(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	_, repo := newRegistry(t, true)
	l, digest, _ := anImage(t)
	must(t, Push(t.Context(), l, digest, repo+":1", Options{PlainHTTP: true}))
	if _, err := ReadLock(t.Context(), repo+":1", Options{PlainHTTP: true}); !errors.Is(err, ErrReference) {
		t.Errorf("ReadLock of an image = %v, want ErrReference", err)
	}
}
