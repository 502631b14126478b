package main

import (
	"archive/tar"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBackupAndRestore(t *testing.T) {
	l := newLab(t)
	l.start()
	l.must("pool", "set", "before")
	file := filepath.Join(l.dir, "b.tar")
	l.must("backup", file) // while the server runs
	if fi, err := os.Stat(file); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("backup: %v, %v; want mode 0600", fi, err)
	}
	if r := l.do("backup", file); r.code != exitRefused {
		t.Errorf("backup over a backup: %+v; want refused", r)
	}
	l.must("pool", "set", "after")
	if r := l.do("restore", file, "--force"); r.code != exitRefused || !strings.Contains(r.errOut, "another pxeserver runs") {
		t.Errorf("restore under a running server: %+v; want refused", r)
	}
	l.kill()
	if r := l.do("restore", file); r.code != exitRefused || !strings.Contains(r.errOut, "--force") {
		t.Errorf("restore over state without --force: %+v; want refused", r)
	}
	damaged := filepath.Join(l.dir, "damaged.tar")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(damaged, b[:len(b)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(l.dir, "foreign.tar")
	f, err := os.Create(foreign)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	for _, n := range []string{"../../evil", "fleet.db"} {
		if err := w.WriteHeader(&tar.Header{Name: n, Size: 1, Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		w.Write([]byte("x")) //nolint:errcheck // into a file; Close tells
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f.Close()
	for _, bad := range []string{damaged, foreign} {
		if r := l.do("restore", bad, "--force"); r.code == exitOK {
			t.Errorf("restore of %s worked", bad)
		}
	}
	key, err := os.ReadFile(filepath.Join(l.dir, "data/ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(l.dir, "data/ca.key")); err != nil {
		t.Fatal(err)
	}
	l.must("restore", file, "--force")
	if got, err := os.ReadFile(filepath.Join(l.dir, "data/ca.key")); err != nil || string(got) != string(key) {
		t.Errorf("the CA's key is not back: %v", err)
	}
	if _, err := os.Stat(filepath.Join(l.dir, "data/fleet.db.before-restore")); err != nil {
		t.Errorf("the state before: %v; want it kept", err)
	}
	l.start()
	if pools := l.must("pool", "list"); !strings.Contains(pools, "before") || strings.Contains(pools, "after") {
		t.Errorf("pools after the restore:\n%s", pools)
	}
	if ev := l.must("events", "--kind", "server.restored"); !strings.Contains(ev, "b.tar") {
		t.Errorf("events: %q; want the restore told", ev)
	}
}
