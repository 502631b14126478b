package squashfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// inode is a file, folder or link. Several names may lead to a file.
type inode struct {
	path     string
	mode     uint32 // type and permissions, as in stat
	uid, gid uint32
	links    uint32
	size     int64
	target   string // of a link
	xattrs   []xattr
	entries  []entry // of a folder, by name

	blocks   []sum // full blocks of a file, the zero sum for one of zeroes
	fragment *fragment
	offset   int // of its tail in fragment

	number   uint32
	location uint64 // in the inode table, once written
	written  bool
	start    int64 // of its blocks, once written
}

type entry struct {
	name string
	*inode
}

type xattr struct{ name, value string }

// fragment is a block that the tails of files share.
type fragment struct {
	members []*inode
	size    int
	sum     sum
	id      uint32 // its place in the table, once written
}

// tail is how many bytes of a file do not fill a block.
func (n *inode) tail() int { return int(n.size % BlockBytes) }

func (n *inode) kind() uint32 { return n.mode & unix.S_IFMT }

// tree is a scanned tree.
type tree struct {
	root  *inode
	files []*inode // in the order of their first names
	bytes int64
	last  uint32 // highest inode number
}

type scanner struct {
	ctx   context.Context
	tree  *tree
	known map[[2]uint64]*inode // files of several names
}

// scan reads everything of the tree at dir but the contents of files.
func scan(ctx context.Context, dir string) (*tree, error) {
	t := &tree{}
	s := &scanner{ctx: ctx, tree: t, known: map[[2]uint64]*inode{}}
	var err error
	if t.root, err = s.inode(filepath.Clean(dir) + "/."); err != nil {
		return nil, err
	}
	if t.root.kind() != unix.S_IFDIR {
		return nil, fmt.Errorf("%q is not a folder", dir)
	}
	t.number(t.root)
	t.planFragments(len(filepath.Clean(dir)))
	return t, nil
}

func (s *scanner) inode(path string) (*inode, error) {
	if err := s.ctx.Err(); err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return nil, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	n := &inode{path: path, mode: st.Mode, uid: st.Uid, gid: st.Gid, links: 1}
	var err error
	switch n.kind() {
	case unix.S_IFREG:
		id := [2]uint64{st.Dev, st.Ino}
		if st.Nlink > 1 {
			if first := s.known[id]; first != nil {
				first.links++
				return first, nil
			}
			s.known[id] = n
		}
		n.size = st.Size
		s.tree.files = append(s.tree.files, n)
		s.tree.bytes += n.size
	case unix.S_IFLNK:
		n.target, err = os.Readlink(path)
	case unix.S_IFDIR:
		err = s.folder(n)
	default:
		err = fmt.Errorf("%q is neither a file, a folder nor a link", path)
	}
	if err != nil {
		return nil, err
	}
	n.xattrs, err = xattrs(path)
	return n, err
}

func (s *scanner) folder(n *inode) error {
	list, err := os.ReadDir(n.path) // by name
	if err != nil {
		return err
	}
	n.links = 2
	for _, d := range list {
		if len(d.Name()) > 256 {
			return fmt.Errorf("%q: name of more than 256 bytes", d.Name())
		}
		c, err := s.inode(strings.TrimSuffix(n.path, "/.") + "/" + d.Name())
		if err != nil {
			return err
		}
		if c.kind() == unix.S_IFDIR {
			n.links++
		}
		n.entries = append(n.entries, entry{d.Name(), c})
	}
	return nil
}

// number gives inodes the numbers in which they are written: a folder comes
// after what is in it.
func (t *tree) number(n *inode) {
	for _, c := range n.entries {
		if c.inode.number == 0 {
			t.number(c.inode)
		}
	}
	t.last++
	n.number = t.last
}

// planFragments shares blocks among tails. A block ends when the next tail
// does not fit, and, once half full, before one name in 16, by a hash.
func (t *tree) planFragments(prefix int) {
	var f *fragment
	for _, n := range t.files {
		tail := n.tail()
		if tail == 0 {
			continue
		}
		if f != nil && (f.size+tail > BlockBytes || f.size >= BlockBytes/2 && marked(n.path[prefix:])) {
			f = nil
		}
		if f == nil {
			f = &fragment{}
		}
		n.fragment, n.offset = f, f.size
		f.members = append(f.members, n)
		f.size += tail
	}
}

func marked(name string) bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(strings.TrimLeft(name, "/."))) // never fails
	return h.Sum32()%16 == 0
}

// xattrs returns the extended attributes that squashfs can hold, by name.
func xattrs(path string) ([]xattr, error) {
	names := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, names)
	if errors.Is(err, unix.ENOTSUP) || err == nil && n == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, &fs.PathError{Op: "llistxattr", Path: path, Err: err}
	}
	var list []xattr
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		if _, _, ok := xattrType(name); !ok {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return nil, &fs.PathError{Op: "lgetxattr", Path: path, Err: err}
		}
		list = append(list, xattr{name, string(value[:n])})
	}
	slices.SortFunc(list, func(a, b xattr) int { return cmp.Compare(a.name, b.name) })
	return list, nil
}

// xattrType splits a name as squashfs does.
func xattrType(name string) (kind uint16, rest string, ok bool) {
	if name == "security.selinux" || strings.HasPrefix(name, "trusted.overlay.") {
		return 0, "", false
	}
	for i, prefix := range []string{"user.", "trusted.", "security."} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			return uint16(i), rest, true
		}
	}
	return 0, "", false
}
