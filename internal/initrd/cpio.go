// Package initrd makes the initial RAM disk of Turnout's UKIs: a zstd
// compressed "newc" cpio archive (Linux Documentation/driver-api/early-userspace/
// buffer-format.rst) of nodeagent as /init, kernel modules and a few files. It
// also works out which kernel modules belong in it. Equal inputs give equal
// bytes.
package initrd

import (
	"bytes"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

// Types of cpio entries, as in stat(2).
const (
	typeDir     = 0o040000
	typeChar    = 0o020000
	typeRegular = 0o100000
)

// archive writes newc entries: names without a leading slash, parents before
// children, every time and owner zero, inode numbers counted up.
type archive struct {
	w    io.Writer
	ino  int
	dirs map[string]bool
	err  error
}

func newArchive(w io.Writer) *archive {
	return &archive{w: w, dirs: map[string]bool{".": true, "/": true}}
}

// dir adds a folder and those above it, unless they are there.
func (a *archive) dir(name string) {
	name = path.Clean("/" + name)[1:]
	if name == "" || a.dirs[name] {
		return
	}
	a.dir(path.Dir(name))
	a.dirs[name] = true
	a.entry(name, typeDir|0o755, nil, 0, 0)
}

// file adds a regular file, and the folders above it.
func (a *archive) file(name string, mode uint32, data []byte) {
	name = path.Clean("/" + name)[1:]
	a.dir(path.Dir(name))
	a.entry(name, typeRegular|mode, data, 0, 0)
}

// char adds a character device, and the folders above it.
func (a *archive) char(name string, mode uint32, major, minor int) {
	name = path.Clean("/" + name)[1:]
	a.dir(path.Dir(name))
	a.entry(name, typeChar|mode, nil, major, minor)
}

// close ends the archive.
func (a *archive) close() error {
	a.ino = -1
	a.entry("TRAILER!!!", 0, nil, 0, 0)
	return a.err
}

func (a *archive) entry(name string, mode uint32, data []byte, major, minor int) {
	if a.err != nil {
		return
	}
	if uint64(len(data)) > 0xffffffff {
		a.err = fmt.Errorf("initrd: %s is larger than 4 GiB", name)
		return
	}
	a.ino++
	links := 1
	if mode&typeDir != 0 && mode&typeRegular != typeRegular {
		links = 2
	}
	var h bytes.Buffer
	h.WriteString("070701")
	// ino, mode, uid, gid, nlink, mtime, filesize, dev, rdev, namesize, check
	for _, v := range []int{a.ino, int(mode), 0, 0, links, 0, len(data), 0, 0, major, minor, len(name) + 1, 0} {
		fmt.Fprintf(&h, "%08x", v)
	}
	h.WriteString(name)
	h.Write(make([]byte, 1+pad4(h.Len()+1)))
	a.write(h.Bytes())
	a.write(data)
	a.write(make([]byte, pad4(len(data))))
}

func (a *archive) write(b []byte) {
	if a.err == nil {
		_, a.err = a.w.Write(b)
	}
}

func pad4(n int) int { return -n & 3 }

// sortedFiles returns fs by path.
func sortedFiles(fs []File) []File {
	return slices.SortedFunc(slices.Values(fs), func(x, y File) int { return strings.Compare(x.Path, y.Path) })
}
