package imagediff

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/turnout-project/turnout/internal/image"
	"github.com/turnout-project/turnout/internal/oci"
)

// Meta is what there is to say of one file of a root.
type Meta struct {
	Mode   string `json:"mode"`  // "-rw-r--r--"
	Owner  string `json:"owner"` // "0:0"
	Size   int64  `json:"size"`  // bytes; 0 for folders
	SHA256 string `json:"sha256,omitempty"`
	Link   string `json:"link,omitempty"` // target of a symbolic link
}

// File is a file that differs.
type File struct {
	Path    string `json:"path"` // absolute
	Change  string `json:"change"`
	Package string `json:"package,omitempty"` // that ships it; "" for what no package does
	Old     *Meta  `json:"old,omitempty"`
	New     *Meta  `json:"new,omitempty"`
}

// String tells in one line what became of the file.
func (f File) String() string {
	owner := ""
	if f.Package != "" {
		owner = " (package " + f.Package + ")"
	}
	switch f.Change {
	case "added":
		return fmt.Sprintf("%s%s was added: %s", f.Path, owner, f.New)
	case "removed":
		return fmt.Sprintf("%s%s was removed: %s", f.Path, owner, f.Old)
	}
	var what []string
	for _, w := range []struct{ name, old, new string }{
		{"mode", f.Old.Mode, f.New.Mode}, {"owner", f.Old.Owner, f.New.Owner}, {"target", f.Old.Link, f.New.Link},
		{"size", strconv.FormatInt(f.Old.Size, 10), strconv.FormatInt(f.New.Size, 10)}, {"content", short(f.Old.SHA256), short(f.New.SHA256)},
	} {
		if w.old != w.new {
			what = append(what, fmt.Sprintf("%s %s → %s", w.name, w.old, w.new))
		}
	}
	return f.Path + owner + ": " + strings.Join(what, ", ")
}

func (m *Meta) String() string {
	s := m.Mode + " " + m.Owner
	switch {
	case m.Link != "":
		s += " → " + m.Link
	case m.SHA256 != "":
		s += fmt.Sprintf(", %d bytes, %s", m.Size, short(m.SHA256))
	}
	return s
}

func short(digest string) string { return digest[:min(len(digest), 12)] }

// root is the listing of a root file system.
type root struct {
	files    map[string]Meta   // by absolute path
	packages map[string]string // which package ships a path
}

// readRoot lists the root of an image. Modes and owners come from
// unsquashfs's listing, so that it needs no privilege; contents are unpacked
// into a folder for temporary files.
func readRoot(ctx context.Context, l *oci.Layout, digest string) (*root, error) {
	blob, err := l.Blob(digest)
	if err != nil {
		return nil, err
	}
	name := blob.Name()
	if err := blob.Close(); err != nil {
		return nil, err
	}
	r := &root{packages: map[string]string{}}
	if r.files, err = list(ctx, name); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "imgbuild-diff-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // only a copy
	tree, err := image.Unsquash(ctx, name, dir)
	if err != nil {
		return nil, err
	}
	if err := r.hash(ctx, tree); err != nil {
		return nil, err
	}
	return r, r.owners(tree)
}

// listing matches a line of `unsquashfs -lln`; devices have no place in a
// root and are not matched.
var listing = regexp.MustCompile(`^([-dlps]\S{9}) (\d+)/(\d+) +(\d+) \d{4}-\d\d-\d\d \d\d:\d\d squashfs-root(.*)$`)

func list(ctx context.Context, name string) (map[string]Meta, error) {
	out, err := exec.CommandContext(ctx, "unsquashfs", "-lln", name).Output()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, errors.New("unsquashfs is needed; install squashfs-tools")
	}
	if err != nil {
		return nil, fmt.Errorf("unsquashfs: listing %s: %w", name, err)
	}
	files := map[string]Meta{}
	for line := range strings.Lines(string(out)) {
		m := listing.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil {
			continue
		}
		meta, p := Meta{Mode: m[1], Owner: m[2] + ":" + m[3]}, m[5]
		switch m[1][0] {
		case 'l':
			p, meta.Link, _ = strings.Cut(p, " -> ")
		case '-':
			if meta.Size, err = strconv.ParseInt(m[4], 10, 64); err != nil {
				return nil, fmt.Errorf("unsquashfs: %q: %w", line, err)
			}
		}
		if p == "" {
			p = "/"
		}
		files[p] = meta
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("unsquashfs lists nothing in %s", name)
	}
	return files, nil
}

// hash adds the digests of regular files.
func (r *root) hash(ctx context.Context, tree string) error {
	var paths []string
	for p, m := range r.files {
		if m.Mode[0] == '-' {
			paths = append(paths, p)
		}
	}
	sums := make([]string, len(paths))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.NumCPU())
	for i, p := range paths {
		g.Go(func() (err error) {
			if err := gctx.Err(); err != nil {
				return err
			}
			sums[i], err = hashFile(filepath.Join(tree, p))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, p := range paths {
		m := r.files[p]
		m.SHA256 = sums[i]
		r.files[p] = m
	}
	return nil
}

// hashFile returns the SHA-256 of a file. Without root some files that only
// root reads were unpacked with that mode.
func hashFile(name string) (string, error) {
	f, err := os.Open(name)
	if errors.Is(err, os.ErrPermission) {
		if err := os.Chmod(name, 0o600); err != nil {
			return "", err
		}
		f, err = os.Open(name)
	}
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // read only
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// owners reads which package ships what from dpkg's lists.
func (r *root) owners(tree string) error {
	lists, err := filepath.Glob(filepath.Join(tree, "var/lib/dpkg/info/*.list"))
	if err != nil {
		return err
	}
	for _, l := range lists {
		raw, err := os.ReadFile(l)
		if err != nil {
			return err
		}
		name, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(l), ".list"), ":")
		for line := range bytes.Lines(raw) {
			r.packages[canonical(string(bytes.TrimSuffix(line, []byte("\n"))))] = name
		}
	}
	return nil
}

// canonical names a file as the tree does, where /bin, /sbin and /lib* are
// links into /usr.
func canonical(p string) string {
	top, _, _ := strings.Cut(strings.TrimPrefix(p, "/"), "/")
	switch top {
	case "bin", "sbin", "lib", "lib32", "lib64", "libo32", "libx32":
		return "/usr" + p
	}
	return p
}

// compareFiles returns the files that differ, sorted by path.
func compareFiles(old, new *root) []File {
	var files []File
	for _, p := range keys(old.files, new.files) {
		a, inOld := old.files[p]
		b, inNew := new.files[p]
		f := File{Path: p, Package: new.packages[p]}
		switch {
		case !inOld:
			f.Change, f.New = "added", &b
		case !inNew:
			f.Change, f.Old, f.Package = "removed", &a, old.packages[p]
		case a != b:
			f.Change, f.Old, f.New = "changed", &a, &b
		default:
			continue
		}
		files = append(files, f)
	}
	return files
}

// modules compares the kernel modules by name, whatever the kernel's release
// is. Modules of another release always have other bytes; only those that
// came or went are listed then.
func modules(old, new *root) []Module {
	a, ra := moduleSums(old)
	b, rb := moduleSums(new)
	var all []Module
	for _, name := range keys(a, b) {
		switch x, y := a[name], b[name]; {
		case x == "":
			all = append(all, Module{name, "added"})
		case y == "":
			all = append(all, Module{name, "removed"})
		case x != y && slices.Equal(ra, rb):
			all = append(all, Module{name, "changed"})
		}
	}
	return all
}

// moduleSums returns the digests of the kernel modules of a root by name, and
// the kernel releases they are for.
func moduleSums(r *root) (sums map[string]string, releases []string) {
	sums, seen := map[string]string{}, map[string]bool{}
	for p, m := range r.files {
		rest, ok := strings.CutPrefix(p, "/usr/lib/modules/")
		stem, _, isModule := strings.Cut(path.Base(p), ".ko")
		if !ok || !isModule || m.SHA256 == "" {
			continue
		}
		release, _, _ := strings.Cut(rest, "/")
		seen[release] = true
		sums[strings.ReplaceAll(stem, "-", "_")] = m.SHA256
	}
	return sums, slices.Sorted(maps.Keys(seen))
}
