package rootfs

import (
	"cmp"
	"context"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/deb"
	"github.com/turnout-project/turnout/internal/rootfs/tree"
)

// unpacker writes packages into one tree. What several packages ship is
// decided by the packages alone, never by which was written first.
type unpacker struct {
	tree    *tree.Dir
	shards  [64]shard
	modules *moduleFilter
	mu      sync.Mutex
	dirs    map[string]dirMeta
}

// shard holds the claims of some of the paths; its lock is held while a path
// is claimed and made.
type shard struct {
	mu     sync.Mutex
	claims map[string]claim
}

type claim struct {
	by   *unpacked
	kind deb.Type
}

type dirMeta struct {
	rank int
	e    deb.Entry
}

func newUnpacker(t *tree.Dir, exclude []string) *unpacker {
	u := &unpacker{tree: t, dirs: map[string]dirMeta{}, modules: newModuleFilter(exclude)}
	for i := range u.shards {
		u.shards[i].claims = map[string]claim{}
	}
	return u
}

func (u *unpacker) shard(name string) *shard {
	h := uint32(2166136261)
	for i := range len(name) {
		h = (h ^ uint32(name[i])) * 16777619
	}
	return &u.shards[h%uint32(len(u.shards))]
}

// divert notes that dpkg-divert has moved files, which frees their paths for
// the packages that wanted them.
func (u *unpacker) divert(all []diversion) {
	for _, d := range all {
		from, to := canonical(strings.TrimPrefix(d.from, "/")), canonical(strings.TrimPrefix(d.to, "/"))
		c, ok := u.shard(from).claims[from]
		if !ok || c.by.Name == d.by {
			continue
		}
		delete(u.shard(from).claims, from)
		u.shard(to).claims[to] = c
	}
}

// unpack writes the files of one package. diverted maps absolute paths to
// where another package's diversion moves them.
func (u *unpacker) unpack(ctx context.Context, p *unpacked, diverted map[string]string) error {
	d, err := deb.Open(p.path, deb.Options{})
	if err != nil {
		return err
	}
	defer d.Close()
	w := &writer{unpacker: u, pkg: p, diverted: diverted, sums: map[string]bool{}, files: map[string]bool{}, buf: buffers.Get().(*[]byte)}
	defer w.close()
	for _, f := range p.control.Conffiles() {
		w.sums[f] = true
	}
	_, hasSums := p.control.Files["md5sums"]
	w.sumAll = !hasSums
	return d.Walk(ctx, w.entry)
}

var buffers = sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}

// writer writes the entries of one package.
type writer struct {
	*unpacker
	pkg      *unpacked
	diverted map[string]string
	sums     map[string]bool // absolute paths whose MD5 is wanted
	sumAll   bool
	files    map[string]bool // files written so far, which hard links may name
	buf      *[]byte
	dirName  string   // folder that dir is
	dir      *os.File // cached parent
}

func (w *writer) close() {
	buffers.Put(w.buf)
	if w.dir != nil {
		w.dir.Close()
	}
}

func (w *writer) entry(e deb.Entry, content io.Reader) error {
	shipped := "/" + e.Name
	w.pkg.list = append(w.pkg.list, shipped)
	if to, ok := w.diverted[shipped]; ok {
		e.Name = strings.TrimPrefix(to, "/")
	}
	e.Name = canonical(e.Name)
	if err := w.write(e, shipped, content); err != nil {
		return fmt.Errorf("package %s: unpacking %q: %w", w.pkg.Name, shipped, err)
	}
	return nil
}

func (w *writer) write(e deb.Entry, shipped string, content io.Reader) error {
	switch {
	case e.Type == deb.Dir:
		return w.mkdir(e)
	case e.Type == deb.Symlink && isAlias(shipped, e.Link):
		return nil // packages of merged-/usr releases ship the links themselves
	case e.Type == deb.File && w.modules.excludes(e.Name):
		return w.modules.note(e.Name, content)
	}
	f, err := w.create(e, shipped)
	if err != nil || f == nil {
		return err
	}
	w.files[e.Name] = true
	if err := w.fill(f, e, shipped, content); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// isAlias reports whether a link at the top is one of merged-/usr's own.
func isAlias(shipped, target string) bool {
	name := strings.TrimPrefix(shipped, "/")
	return aliases[name] && strings.TrimPrefix(target, "/") == "usr/"+name
}

// mkdir makes a folder; how it looks is settled by finishDirs.
func (w *writer) mkdir(e deb.Entry) error {
	if e.Name != "." {
		s := w.shard(e.Name)
		s.mu.Lock()
		defer s.mu.Unlock()
		if c, ok := s.claims[e.Name]; ok && c.kind != deb.Dir {
			return fmt.Errorf("a folder here, and no folder in package %s: %w", c.by.Name, errConflict)
		} else if !ok {
			if err := w.tree.MkdirAll(e.Name, 0o755); err != nil {
				return err
			}
			s.claims[e.Name] = claim{w.pkg, deb.Dir}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if m, ok := w.dirs[e.Name]; !ok || w.pkg.rank < m.rank {
		w.dirs[e.Name] = dirMeta{w.pkg.rank, e}
	}
	return nil
}

// errConflict is what two packages that cannot share a tree give.
var errConflict = fmt.Errorf("packages conflict: %w", ErrSpec)

// create claims and makes the entry. It returns a nil file if there is no
// content to write: for links, and for files that another package replaces.
func (w *writer) create(e deb.Entry, shipped string) (*os.File, error) {
	dir, base, err := w.parent(e.Name)
	if err != nil {
		return nil, err
	}
	s := w.shard(e.Name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.claims[e.Name]; ok {
		mine, err := w.settle(c, e, shipped)
		if err != nil || !mine {
			return nil, err
		}
		if err := unix.Unlinkat(dir, base, 0); err != nil {
			return nil, err
		}
	}
	s.claims[e.Name] = claim{w.pkg, e.Type}
	switch e.Type {
	case deb.Symlink:
		if err := unix.Symlinkat(e.Link, dir, base); err != nil {
			return nil, err
		}
		return nil, finishLink(dir, base, e)
	case deb.Hardlink:
		return nil, w.link(e, dir, base)
	}
	fd, err := unix.Openat(dir, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), e.Name), nil
}

// settle decides which of two packages that ship a path has it: the one whose
// Replaces field names the other.
func (w *writer) settle(c claim, e deb.Entry, shipped string) (mine bool, err error) {
	switch {
	case c.by == w.pkg:
		return false, fmt.Errorf("it is there twice: %w", deb.ErrHostile)
	case c.kind == deb.Dir:
		return false, fmt.Errorf("no folder here, and a folder in package %s: %w", c.by.Name, errConflict)
	case w.pkg.replaces[c.by.Name] && !c.by.replaces[w.pkg.Name]:
		w.drop(c.by, shipped)
		return true, nil
	case c.by.replaces[w.pkg.Name] && !w.pkg.replaces[c.by.Name]:
		w.drop(w.pkg, shipped)
		return false, nil
	case e.Type == deb.File && c.kind == deb.File && c.by.Name == w.pkg.Name:
		return false, nil // Multi-Arch: same packages share equal files
	}
	return false, fmt.Errorf("package %s ships it as well: %w", c.by.Name, errConflict)
}

func (w *writer) drop(p *unpacked, shipped string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p.dropped[shipped] = true
}

// link makes a hard link to a file of the same package.
func (w *writer) link(e deb.Entry, dir int, base string) error {
	old := canonical(e.Link)
	if to, ok := w.diverted["/"+e.Link]; ok {
		old = canonical(strings.TrimPrefix(to, "/"))
	}
	if !w.files[old] {
		return fmt.Errorf("hard link to %q, which is no file of this package before it: %w", e.Link, deb.ErrHostile)
	}
	oldDir, oldBase, err := w.tree.Parent(old)
	if err != nil {
		return err
	}
	defer oldDir.Close()
	return unix.Linkat(int(oldDir.Fd()), oldBase, dir, base, 0)
}

// parent returns the folder of name, made if the package forgot to ship it.
func (w *writer) parent(name string) (fd int, base string, err error) {
	dirName := path.Dir(name)
	if w.dir == nil || w.dirName != dirName {
		if w.dir != nil {
			w.dir.Close()
		}
		if w.dir, base, err = w.tree.Parent(name); err != nil {
			if err = w.tree.MkdirAll(dirName, 0o755); err != nil {
				return 0, "", err
			}
			if w.dir, base, err = w.tree.Parent(name); err != nil {
				return 0, "", err
			}
		}
		w.dirName = dirName
	}
	return int(w.dir.Fd()), path.Base(name), nil
}

// fill writes the content of a file and then its owner, mode and time.
func (w *writer) fill(f *os.File, e deb.Entry, shipped string, content io.Reader) error {
	var to io.Writer = struct{ io.Writer }{f} // without ReadFrom: the buffer below is better
	var sum hash.Hash
	if w.sumAll || w.sums[shipped] {
		sum = md5.New()
		to = io.MultiWriter(f, sum)
	}
	n, err := io.CopyBuffer(to, content, *w.buf)
	if err != nil {
		return err
	}
	if n != e.Size {
		return fmt.Errorf("%d bytes of %d: %w", n, e.Size, io.ErrUnexpectedEOF)
	}
	if sum != nil {
		w.pkg.md5[shipped] = hex.EncodeToString(sum.Sum(nil))
	}
	fd := int(f.Fd())
	if e.UID != 0 || e.GID != 0 {
		if err := unix.Fchown(fd, e.UID, e.GID); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(fd, tree.Bits(e.Mode)); err != nil {
		return err
	}
	return unix.Futimes(fd, []unix.Timeval{unix.NsecToTimeval(e.ModTime.UnixNano()), unix.NsecToTimeval(e.ModTime.UnixNano())})
}

func finishLink(dir int, base string, e deb.Entry) error {
	if e.UID != 0 || e.GID != 0 {
		if err := unix.Fchownat(dir, base, e.UID, e.GID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	ts := unix.NsecToTimespec(e.ModTime.UnixNano())
	return unix.UtimesNanoAt(dir, base, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
}

// finishDirs gives each folder owner, mode and time, as the lowest-ranked
// package that ships it says. It may be called again after more packages.
func (u *unpacker) finishDirs() error {
	names := make([]string, 0, len(u.dirs))
	for name := range u.dirs {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range slices.Backward(names) { // what is inside before what it is in: times stay
		e := u.dirs[name].e
		f, err := u.tree.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		fd, ts := int(f.Fd()), unix.NsecToTimeval(e.ModTime.UnixNano())
		err = cmp.Or(unix.Fchown(fd, e.UID, e.GID), unix.Fchmod(fd, tree.Bits(e.Mode|fs.ModeDir)), unix.Futimes(fd, []unix.Timeval{ts, ts}))
		f.Close()
		if err != nil {
			return fmt.Errorf("folder %q: %w", name, err)
		}
	}
	return nil
}
