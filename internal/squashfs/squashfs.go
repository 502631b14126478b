// Package squashfs writes squashfs file systems (version 4.0) whose blocks do
// not depend on each other, so that packing a tree again compresses only what
// is new in it.
//
// mksquashfs compresses the blocks, all of one build in one run; this package
// lays files, folders and tables out itself. A block is the same bytes
// wherever it lies, so a block of an earlier file system can be copied. The
// tails of files share blocks (fragments) by rules that look at names and
// sizes only, and begin anew often: a file more changes few of them.
//
// The layout is that of the kernel's Documentation/filesystems/squashfs.rst.
// The same tree gives the same bytes, with or without an earlier file system.
package squashfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// BlockBytes is the size of a data block before compression.
const BlockBytes = 256 << 10

// Options say how a tree is packed. Epoch, Level and the version of
// mksquashfs have a part in the bytes, the others have none.
type Options struct {
	Epoch      int64  // time of every file and of the file system, Unix seconds
	Level      int    // of zstd, 1 to 22
	Processors int    // how many blocks are worked at together, 1 or more
	Tool       string // version of mksquashfs, which blocks are remembered by
	// Scratch is a folder for what is thrown away: as large as the tree. ""
	// means the folder of the result.
	Scratch string
	// Reuse is an earlier file system, and ReuseIndex what Write wrote about
	// its blocks. If they cannot be used, nothing is reused. "": none.
	Reuse, ReuseIndex string
	// Index is where to write what a later Write needs to reuse blocks of this
	// one. "": nowhere.
	Index string
	// Progress is told how many bytes of files were read, of how many. nil:
	// quiet. Calls come one at a time.
	Progress func(done, total int64)
}

// Stats say what a Write did.
type Stats struct {
	Blocks int // different blocks
	Reused int // of them, from the earlier file system
}

// Write packs the tree at dir into a new file at out. Only files, folders and
// symbolic links can be packed; extended attributes are those of user,
// trusted and security, without SELinux's labels and overlayfs's own. On an
// error what is at out is of no use.
func Write(ctx context.Context, dir, out string, o Options) (Stats, error) {
	t, err := scan(ctx, dir)
	if err != nil {
		return Stats{}, err
	}
	scratch, err := os.MkdirTemp(o.scratch(out), "squashfs-")
	if err != nil {
		return Stats{}, err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	bs, err := openBlocks(scratch, o)
	if err != nil {
		return Stats{}, err
	}
	defer bs.close()
	if err := bs.read(ctx, t, o); err != nil {
		return Stats{}, err
	}
	if err := bs.compress(ctx, o); err != nil {
		return Stats{}, err
	}
	f, err := os.OpenFile(out, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return Stats{}, err
	}
	err = writeAll(ctx, f, t, bs, o)
	if err := errors.Join(err, f.Close()); err != nil {
		return Stats{}, fmt.Errorf("writing %q: %w", out, err)
	}
	if o.Index != "" {
		if err := bs.writeIndex(o); err != nil {
			return Stats{}, fmt.Errorf("writing %q: %w", o.Index, err)
		}
	}
	return Stats{Blocks: len(bs.at), Reused: bs.reused}, nil
}

func (o *Options) scratch(out string) string {
	if o.Scratch != "" {
		return o.Scratch
	}
	return filepath.Dir(out)
}
