package squashfs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sync/errgroup"
)

// sum is the SHA-256 of a block before compression.
type sum = [sha256.Size]byte

// packed is where a compressed block lies.
type packed struct {
	file  *os.File
	at    int64
	size  uint32 // bytes; with the bit stored if they are not compressed
	check uint32 // CRC-32C of them, of an earlier file system only
}

const stored = 1 << 24

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (p packed) bytes() int { return int(p.size &^ stored) }

// blocks are the blocks of a tree: what of them is known from an earlier file
// system, and what has to be compressed.
type blocks struct {
	reuse   *os.File // nil: none
	earlier map[sum]packed
	plain   *os.File // blocks to be compressed, one after the other
	squash  *os.File // them, compressed

	mu     sync.Mutex
	fresh  map[sum]int64 // number in plain
	at     map[sum]packed
	reused int
	done   int64

	written []indexEntry
}

func openBlocks(scratch string, o Options) (*blocks, error) {
	bs := &blocks{fresh: map[sum]int64{}, at: map[sum]packed{}}
	if o.Reuse != "" {
		bs.openEarlier(o)
	}
	var err error
	bs.plain, err = os.Create(filepath.Join(scratch, "blocks"))
	return bs, err
}

func (bs *blocks) close() {
	for _, f := range []*os.File{bs.reuse, bs.plain, bs.squash} {
		if f != nil {
			_ = f.Close() // read, or thrown away
		}
	}
}

// read reads all files and puts every block where it belongs.
func (bs *blocks) read(ctx context.Context, t *tree, o Options) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(o.Processors, 1))
	pool := sync.Pool{New: func() any { return new([BlockBytes]byte) }}
	job := func(read func(buf []byte) error) {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			buf := pool.Get().(*[BlockBytes]byte)
			defer pool.Put(buf)
			return read(buf[:])
		})
	}
	progress := func(n int64) {
		if o.Progress != nil {
			bs.mu.Lock()
			defer bs.mu.Unlock()
			bs.done += n
			o.Progress(bs.done, t.bytes)
		}
	}
	fragments := map[*fragment]bool{}
	for _, n := range t.files {
		if n.size >= BlockBytes {
			job(func(buf []byte) error {
				defer func() { progress(n.size - int64(n.tail())) }()
				return bs.full(n, buf)
			})
		}
		if f := n.fragment; f != nil && !fragments[f] {
			fragments[f] = true
			job(func(buf []byte) error {
				defer func() { progress(int64(f.size)) }()
				return bs.tails(f, buf)
			})
		}
	}
	return g.Wait()
}

// full reads the full blocks of a file.
func (bs *blocks) full(n *inode, buf []byte) error {
	f, err := os.Open(n.path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // read only
	for range n.size / BlockBytes {
		if _, err := io.ReadFull(f, buf); err != nil {
			return fmt.Errorf("%q: %w", n.path, err)
		}
		var s sum
		if !zero(buf) {
			if s, err = bs.add(buf); err != nil {
				return err
			}
		}
		n.blocks = append(n.blocks, s)
	}
	return nil
}

// tails reads the tails of a fragment. What is left of the block is zero.
func (bs *blocks) tails(f *fragment, buf []byte) error {
	for _, n := range f.members {
		if err := readTail(n, buf[n.offset:n.offset+n.tail()]); err != nil {
			return fmt.Errorf("%q: %w", n.path, err)
		}
	}
	clear(buf[f.size:])
	var err error
	f.sum, err = bs.add(buf)
	return err
}

func readTail(n *inode, buf []byte) error {
	f, err := os.Open(n.path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // read only
	_, err = f.ReadAt(buf, n.size-int64(len(buf)))
	return err
}

func zero(b []byte) bool { return b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1]) }

// add makes a block known.
func (bs *blocks) add(b []byte) (sum, error) {
	s := sha256.Sum256(b)
	bs.mu.Lock()
	if _, ok := bs.at[s]; ok {
		bs.mu.Unlock()
		return s, nil
	}
	if p, ok := bs.earlier[s]; ok {
		bs.at[s] = p
		bs.reused++
		bs.mu.Unlock()
		return s, nil
	}
	number := int64(len(bs.fresh))
	bs.fresh[s] = number
	bs.at[s] = packed{}
	bs.mu.Unlock()
	_, err := bs.plain.WriteAt(b, number*BlockBytes)
	return s, err
}

// compress has mksquashfs compress what is new.
func (bs *blocks) compress(ctx context.Context, o Options) error {
	if len(bs.fresh) == 0 {
		return nil
	}
	out := bs.plain.Name() + ".squashfs"
	cmd := exec.CommandContext(ctx, "mksquashfs", bs.plain.Name(), out,
		"-noappend", "-no-progress", "-quiet", "-no-recovery", "-reproducible", "-mkfs-time", "0", "-all-time", "0",
		"-no-exports", "-no-xattrs", "-no-fragments", "-no-duplicates", "-noI", "-noId", "-comp", "zstd",
		"-Xcompression-level", strconv.Itoa(o.Level), "-b", strconv.Itoa(BlockBytes), "-processors", strconv.Itoa(max(o.Processors, 1)))
	cmd.Env = toolEnv()
	if said, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("mksquashfs: %w: %s", err, bytes.TrimSpace(said))
	}
	var err error
	if bs.squash, err = os.Open(out); err != nil {
		return err
	}
	// The name is not needed any more, and the space of plain neither.
	if err := errors.Join(os.Remove(out), bs.plain.Truncate(0)); err != nil {
		return err
	}
	at, sizes, err := oneFile(bs.squash)
	if err != nil || len(sizes) != len(bs.fresh) {
		return fmt.Errorf("mksquashfs wrote %d blocks of %d in a way that is not understood: %w", len(sizes), len(bs.fresh), err)
	}
	list := make([]packed, len(sizes))
	for i, size := range sizes {
		list[i] = packed{file: bs.squash, at: at, size: size}
		at += int64(list[i].bytes())
	}
	for s, number := range bs.fresh {
		bs.at[s] = list[number]
	}
	return nil
}

func toolEnv() []string { return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"} }

// oneFile returns where the blocks of the only file of a file system begin,
// and how long each is. The inode table is not compressed.
func oneFile(f *os.File) (start int64, sizes []uint32, err error) {
	head := make([]byte, superBytes)
	if _, err := f.ReadAt(head, 0); err != nil {
		return 0, nil, err
	}
	le := binary.LittleEndian
	inodes, folders := int64(le.Uint64(head[64:])), int64(le.Uint64(head[72:]))
	if inodes < superBytes || folders < inodes || folders-inodes > 64<<20 {
		return 0, nil, errors.New("no inode table")
	}
	raw := make([]byte, folders-inodes)
	if _, err := f.ReadAt(raw, inodes); err != nil {
		return 0, nil, err
	}
	var table []byte
	for len(raw) > 2 {
		h := le.Uint16(raw)
		n := int(h &^ metaStored)
		if h&metaStored == 0 || n > len(raw)-2 {
			return 0, nil, errors.New("inode table is compressed")
		}
		table, raw = append(table, raw[2:2+n]...), raw[2+n:]
	}
	for len(table) >= 32 {
		var size int64
		var list int
		switch kind := le.Uint16(table); {
		case kind == typeFolder:
			table = table[32:]
			continue
		case kind == typeFile:
			start, size, list = int64(le.Uint32(table[16:])), int64(le.Uint32(table[28:])), 32
		case kind == typeFileX && len(table) >= 56:
			start, size, list = int64(le.Uint64(table[16:])), int64(le.Uint64(table[24:])), 56
		default:
			return 0, nil, fmt.Errorf("inode of type %d", kind)
		}
		n := int(size / BlockBytes)
		if len(table) < list+4*n {
			return 0, nil, io.ErrUnexpectedEOF
		}
		for i := range n {
			sizes = append(sizes, le.Uint32(table[list+4*i:]))
		}
		return start, sizes, nil
	}
	return 0, nil, errors.New("no file")
}

// fetch reads a compressed block into buf.
func (bs *blocks) fetch(s sum, buf []byte) ([]byte, packed, error) {
	p := bs.at[s]
	if p.size == 0 { // zeroes only, which mksquashfs left out
		clear(buf[:BlockBytes])
		return buf[:BlockBytes], packed{size: BlockBytes | stored}, nil
	}
	buf = buf[:p.bytes()]
	if _, err := p.file.ReadAt(buf, p.at); err != nil {
		if p.file == bs.reuse { // cut short, or its disk fails
			err = fmt.Errorf("%w: %w", ErrReuse, err)
		}
		return nil, p, err
	}
	if p.file == bs.reuse && crc32.Checksum(buf, castagnoli) != p.check {
		return nil, p, fmt.Errorf("%w: a block at byte %d of %q", ErrReuse, p.at, p.file.Name())
	}
	return buf, p, nil
}
