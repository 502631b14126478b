package squashfs

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// Numbers of the format.
const (
	superBytes = 96
	magic      = 0x73717368
	metaBytes  = 8 << 10
	metaStored = 1 << 15
	none       = math.MaxUint32
	missing    = math.MaxUint64

	typeFolder, typeFile, typeLink    = 1, 2, 3
	typeFolderX, typeFileX, typeLinkX = 8, 9, 10

	compressionZstd = 6
	blockLog        = 18 // of BlockBytes
	padBytes        = 4 << 10

	flagTailsAlways = 0x20
	flagNoXattrs    = 0x200
	flagOptions     = 0x400
)

// writer writes a file system from front to back, its first block last.
type writer struct {
	*bufio.Writer
	at    int64
	tree  *tree
	bs    *blocks
	o     Options
	enc   *zstd.Encoder
	buf   []byte
	frags []byte
	ids   []uint32
	same  map[string]int64 // where files of the same blocks lie

	inodes, folders, xattrs, xattrIDs *table
	xattrSets                         map[string]uint32
}

func writeAll(ctx context.Context, f *os.File, t *tree, bs *blocks, o Options) error {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
	if err != nil {
		return err
	}
	defer func() { _ = enc.Close() }() // writes nowhere
	w := &writer{Writer: bufio.NewWriterSize(f, 1<<20), tree: t, bs: bs, o: o, enc: enc,
		buf: make([]byte, BlockBytes), same: map[string]int64{}, xattrSets: map[string]uint32{}}
	for _, p := range []**table{&w.inodes, &w.folders, &w.xattrs, &w.xattrIDs} {
		*p = &table{enc: enc}
	}
	w.bytes(make([]byte, superBytes))
	w.bytes(binary.LittleEndian.AppendUint32([]byte{4, 0x80}, uint32(o.Level))) // options of zstd
	for _, n := range t.files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := w.data(n); err != nil {
			return err
		}
	}
	if err := w.inode(t.root, t.last+1); err != nil {
		return err
	}
	super := w.tables()
	if pad := -w.at & (padBytes - 1); pad > 0 {
		w.bytes(make([]byte, pad))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err = f.WriteAt(super, 0)
	return err
}

// bytes writes b; Flush tells of errors.
func (w *writer) bytes(b []byte) {
	_, _ = w.Write(b)
	w.at += int64(len(b))
}

// data writes the blocks of a file, and its fragment after the last member.
func (w *writer) data(n *inode) error {
	var key strings.Builder
	for _, s := range n.blocks {
		key.Write(s[:])
	}
	start, known := w.same[key.String()]
	if !known {
		start = w.at
		w.same[key.String()] = start
		for _, s := range n.blocks {
			if s != (sum{}) {
				if _, err := w.block(s); err != nil {
					return err
				}
			}
		}
	}
	if n.start = start; len(n.blocks) == 0 {
		n.start = 0
	}
	f := n.fragment
	if f == nil || f.members[len(f.members)-1] != n {
		return nil
	}
	f.id = uint32(len(w.frags) / 16)
	at := w.at
	size, err := w.block(f.sum)
	w.frags = binary.LittleEndian.AppendUint64(w.frags, uint64(at))
	w.frags = binary.LittleEndian.AppendUint32(w.frags, size)
	w.frags = binary.LittleEndian.AppendUint32(w.frags, 0)
	return err
}

// block writes a compressed block and returns its size as tables have it.
func (w *writer) block(s sum) (uint32, error) {
	b, p, err := w.bs.fetch(s, w.buf)
	if err != nil {
		return 0, err
	}
	w.bs.written = append(w.bs.written, indexEntry{Sum: s, At: w.at, Size: p.size, Check: crc32.Checksum(b, castagnoli)})
	w.bytes(b)
	return p.size, nil
}

// id returns the place of an account number in the table of them.
func (w *writer) id(n uint32) uint16 {
	i := slices.Index(w.ids, n)
	if i < 0 {
		i = len(w.ids)
		w.ids = append(w.ids, n)
	}
	return uint16(i)
}

// inode writes an inode and, before it, all below it.
func (w *writer) inode(n *inode, parent uint32) error {
	if n.written {
		return nil
	}
	n.written = true
	for _, e := range n.entries {
		if err := w.inode(e.inode, n.number); err != nil {
			return err
		}
	}
	xattr, err := w.attributes(n.xattrs)
	if err != nil {
		return fmt.Errorf("%q: %w", n.path, err)
	}
	le := binary.LittleEndian
	var kind uint16
	var b []byte
	switch n.kind() {
	case unix.S_IFDIR:
		block, offset, size := w.listing(n)
		if size > math.MaxUint16 || xattr != none {
			kind = typeFolderX
			b = le.AppendUint32(b, n.links)
			b = le.AppendUint32(b, size)
			b = le.AppendUint32(b, block)
			b = le.AppendUint32(b, parent)
			b = le.AppendUint16(b, 0)
			b = le.AppendUint16(b, offset)
			b = le.AppendUint32(b, xattr)
			break
		}
		kind = typeFolder
		b = le.AppendUint32(b, block)
		b = le.AppendUint32(b, n.links)
		b = le.AppendUint16(b, uint16(size))
		b = le.AppendUint16(b, offset)
		b = le.AppendUint32(b, parent)
	case unix.S_IFLNK:
		kind = typeLink
		b = le.AppendUint32(b, n.links)
		b = le.AppendUint32(b, uint32(len(n.target)))
		b = append(b, n.target...)
		if xattr != none {
			kind = typeLinkX
			b = le.AppendUint32(b, xattr)
		}
	default:
		kind, b = w.file(n, xattr)
	}
	head := le.AppendUint16(nil, kind)
	head = le.AppendUint16(head, uint16(n.mode&0o7777))
	head = le.AppendUint16(head, w.id(n.uid))
	head = le.AppendUint16(head, w.id(n.gid))
	head = le.AppendUint32(head, uint32(w.o.Epoch))
	head = le.AppendUint32(head, n.number)
	block, offset := w.inodes.position()
	n.location = uint64(block)<<16 | uint64(offset)
	w.inodes.add(append(head, b...))
	if len(w.ids) > math.MaxUint16 {
		return fmt.Errorf("%q: more than %d different owners", n.path, math.MaxUint16)
	}
	return nil
}

func (w *writer) file(n *inode, xattr uint32) (kind uint16, b []byte) {
	le := binary.LittleEndian
	fragment := uint32(none)
	if n.fragment != nil {
		fragment = n.fragment.id
	}
	var sparse int64
	for _, s := range n.blocks {
		if s == (sum{}) {
			sparse += BlockBytes
		}
	}
	if sparse > 0 {
		sparse = min(sparse, n.size-1) // the kernel counts blocks of size - sparse - 1, unsigned
	}
	if n.start > math.MaxUint32 || n.size > math.MaxUint32 || n.links > 1 || xattr != none || sparse > 0 {
		kind = typeFileX
		b = le.AppendUint64(b, uint64(n.start))
		b = le.AppendUint64(b, uint64(n.size))
		b = le.AppendUint64(b, uint64(sparse))
		b = le.AppendUint32(b, n.links)
		b = le.AppendUint32(b, fragment)
		b = le.AppendUint32(b, uint32(n.offset))
		b = le.AppendUint32(b, xattr)
	} else {
		kind = typeFile
		b = le.AppendUint32(b, uint32(n.start))
		b = le.AppendUint32(b, fragment)
		b = le.AppendUint32(b, uint32(n.offset))
		b = le.AppendUint32(b, uint32(n.size))
	}
	for _, s := range n.blocks {
		var size uint32
		if s != (sum{}) {
			size = w.bs.at[s].size
		}
		b = le.AppendUint32(b, size)
	}
	return kind, b
}

// listing writes the names in a folder. size is as inodes have it: three more
// than there are bytes.
func (w *writer) listing(n *inode) (block uint32, offset uint16, size uint32) {
	le := binary.LittleEndian
	block, offset = w.folders.position()
	size = 3
	for rest := n.entries; len(rest) > 0; {
		first := rest[0]
		run := 1
		for run < len(rest) && run < 256 && rest[run].location>>16 == first.location>>16 {
			if d := int64(rest[run].number) - int64(first.number); d < math.MinInt16 || d > math.MaxInt16 {
				break
			}
			run++
		}
		b := le.AppendUint32(nil, uint32(run-1))
		b = le.AppendUint32(b, uint32(first.location>>16))
		b = le.AppendUint32(b, first.number)
		for _, e := range rest[:run] {
			b = le.AppendUint16(b, uint16(e.location))
			b = le.AppendUint16(b, uint16(int16(int64(e.number)-int64(first.number))))
			b = le.AppendUint16(b, basicType(e.inode))
			b = le.AppendUint16(b, uint16(len(e.name)-1))
			b = append(b, e.name...)
		}
		w.folders.add(b)
		size += uint32(len(b))
		rest = rest[run:]
	}
	return block, offset, size
}

func basicType(n *inode) uint16 {
	switch n.kind() {
	case unix.S_IFDIR:
		return typeFolder
	case unix.S_IFLNK:
		return typeLink
	}
	return typeFile
}

// attributes writes a set of extended attributes, once, and returns its place.
func (w *writer) attributes(list []xattr) (uint32, error) {
	if len(list) == 0 {
		return none, nil
	}
	le := binary.LittleEndian
	var b []byte
	for _, x := range list {
		kind, name, _ := xattrType(x.name)
		b = le.AppendUint16(b, kind)
		b = le.AppendUint16(b, uint16(len(name)))
		b = append(b, name...)
		b = le.AppendUint32(b, uint32(len(x.value)))
		b = append(b, x.value...)
	}
	if i, ok := w.xattrSets[string(b)]; ok {
		return i, nil
	}
	i := uint32(len(w.xattrSets))
	w.xattrSets[string(b)] = i
	block, offset := w.xattrs.position()
	w.xattrs.add(b)
	id := le.AppendUint64(nil, uint64(block)<<16|uint64(offset))
	id = le.AppendUint32(id, uint32(len(list)))
	id = le.AppendUint32(id, uint32(len(b)))
	w.xattrIDs.add(id)
	return i, nil
}

// tables writes all tables, in the order in which the kernel wants them, and
// returns the superblock.
func (w *writer) tables() []byte {
	le := binary.LittleEndian
	inodes := w.table(w.inodes)
	folders := w.table(w.folders)
	frags := &table{enc: w.enc}
	frags.add(w.frags)
	fragments := w.indexed(frags, nil)
	ids := &table{enc: w.enc}
	for _, n := range w.ids {
		ids.add(le.AppendUint32(nil, n))
	}
	accounts := w.indexed(ids, nil)
	attributes, flags := uint64(missing), uint16(flagTailsAlways|flagOptions|flagNoXattrs)
	if n := len(w.xattrSets); n > 0 {
		flags &^= flagNoXattrs
		pairs := w.table(w.xattrs)
		head := le.AppendUint64(nil, uint64(pairs))
		head = le.AppendUint32(head, uint32(n))
		attributes = uint64(w.indexed(w.xattrIDs, le.AppendUint32(head, 0)))
	}
	s := le.AppendUint32(nil, magic)
	for _, v := range []uint32{w.tree.last, uint32(w.o.Epoch), BlockBytes, uint32(len(w.frags) / 16)} {
		s = le.AppendUint32(s, v)
	}
	for _, v := range []uint16{compressionZstd, blockLog, flags, uint16(len(w.ids)), 4, 0} {
		s = le.AppendUint16(s, v)
	}
	for _, v := range []uint64{w.tree.root.location, uint64(w.at), uint64(accounts), attributes,
		uint64(inodes), uint64(folders), uint64(fragments), missing} {
		s = le.AppendUint64(s, v)
	}
	return s
}

// table writes a table and returns where it begins.
func (w *writer) table(t *table) int64 {
	at := w.at
	t.flush()
	w.bytes(t.out)
	return at
}

// indexed writes a table, and after head where its blocks are, which is what
// the superblock points to.
func (w *writer) indexed(t *table, head []byte) int64 {
	start := w.table(t)
	at := w.at
	for _, b := range t.starts {
		head = binary.LittleEndian.AppendUint64(head, uint64(start+int64(b)))
	}
	w.bytes(head)
	return at
}
