package initrd

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// ListPath is the file of an initrd that names its modules, one absolute path
// per line, in the order in which they must be loaded. A module may refuse to
// load on a machine without its device; that is no error.
const ListPath = "/usr/lib/turnout/modules.list"

// File is one file of an initrd.
type File struct {
	Path string // absolute
	Mode uint32 // permission bits
	Data []byte
}

// Contents is what goes into an initrd.
type Contents struct {
	Init    []byte // nodeagent, a static program
	Release string // of the kernel
	Modules []Module
	Files   []File
}

// Build writes the compressed archive to w.
func Build(w io.Writer, c Contents) error {
	if len(c.Init) == 0 || !bytes.HasPrefix(c.Init, []byte("\x7fELF")) {
		return errors.New("initrd: /init is not an ELF program")
	}
	// One goroutine: the encoder's output must not depend on the machine.
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedBetterCompression), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return fmt.Errorf("initrd: %w", err)
	}
	if err := write(z, c); err != nil {
		return errors.Join(err, z.Close())
	}
	return z.Close()
}

// Digest returns "sha256:…" of the archive before compression, which is much
// faster than Build: for caches.
func Digest(c Contents) (string, error) {
	h := sha256.New()
	if err := write(h, c); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// write writes the archive, not compressed.
func write(w io.Writer, c Contents) error {
	a := newArchive(w)
	for _, d := range []string{"dev", "proc", "sys", "run", "sysroot", "tmp"} {
		a.dir(d)
	}
	a.char("dev/console", 0o600, 5, 1) // without it PID 1 has no standard output
	a.char("dev/null", 0o666, 1, 3)
	a.file("init", 0o755, c.Init)
	var list strings.Builder
	for _, m := range c.Modules {
		fmt.Fprintln(&list, m.InitrdPath(c.Release))
	}
	files := append([]File{{Path: ListPath, Mode: 0o644, Data: []byte(list.String())}}, c.Files...)
	for _, f := range sortedFiles(files) {
		if !path.IsAbs(f.Path) {
			return fmt.Errorf("initrd: path %q is not absolute", f.Path)
		}
		a.file(f.Path, f.Mode, f.Data)
	}
	for _, m := range c.Modules {
		b, err := m.read()
		if err != nil {
			return err
		}
		a.file(m.InitrdPath(c.Release), 0o644, b)
	}
	return a.close()
}
