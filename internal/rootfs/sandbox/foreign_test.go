package sandbox

import (
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// program writes the header of a program for a processor, which is all that
// is read of it.
func program(t *testing.T, path string, m elf.Machine) {
	t.Helper()
	h := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(m), Version: 1, Ehsize: 64, Phentsize: 56, Shentsize: 64}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if err := binary.Write(f, binary.LittleEndian, h); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// A tree of this host's own processor needs nothing; one of a processor that
// nobody emulates is refused, before anything runs in it.
func TestCanRun(t *testing.T) {
	for _, tt := range []struct {
		tree elf.Machine
		host string
		want string
	}{
		{elf.EM_X86_64, "amd64", ""},
		{elf.EM_AARCH64, "arm64", ""},
		{elf.EM_RISCV, "amd64", "EM_RISCV, which this host does not run"},
	} {
		root := t.TempDir()
		program(t, filepath.Join(root, "bin/cat"), tt.tree)
		err := canRun(root, tt.host)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("a tree of %s on %s: %v; want %q", tt.tree, tt.host, err, tt.want)
		}
	}
	if err := canRun(t.TempDir(), "amd64"); err == nil {
		t.Error("an empty tree was taken")
	}
}

// What the kernel says of its handlers (Documentation/admin-guide/binfmt-misc).
func TestHandled(t *testing.T) {
	e := emulators[elf.EM_AARCH64]
	magic := strings.ReplaceAll(e.magic, `\x`, "")
	for name, tt := range map[string]struct {
		text string
		want bool
	}{
		"Debian's":              {"enabled\ninterpreter /usr/libexec/qemu-binfmt/aarch64-binfmt-P\nflags: POF\noffset 0\nmagic " + magic + "\nmask ffffffffffffff00\n", true},
		"switched off":          {"disabled\ninterpreter /usr/bin/q\nflags: F\noffset 0\nmagic " + magic + "\n", false},
		"looked up in the tree": {"enabled\ninterpreter /usr/bin/q\nflags: \noffset 0\nmagic " + magic + "\n", false},
		"another processor":     {"enabled\ninterpreter /usr/bin/q\nflags: F\noffset 0\nmagic 7f454c4601\n", false},
		"no handler":            {"enabled\n", false},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "x"), []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := handled(dir, e); got != tt.want {
			t.Errorf("%s: handled = %v", name, got)
		}
	}
}

// An emulator that needs libraries finds none in the tree.
func TestFindEmulator(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	e := emulators[elf.EM_AARCH64]
	if _, err := e.find(); err == nil || !strings.Contains(err.Error(), "install qemu-user-static") {
		t.Errorf("no emulator: %v", err)
	}
	program(t, filepath.Join(dir, "qemu-aarch64-static"), elf.EM_X86_64)
	if got, err := e.find(); err != nil || filepath.Base(got) != "qemu-aarch64-static" {
		t.Errorf("find = %q, %v", got, err)
	}
}
