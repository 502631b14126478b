package rootfs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"

	"github.com/turnout-project/turnout/internal/squashfs"
)

// PackOptions say how a tree is packed.
type PackOptions struct {
	SourceDateEpoch int64 // time of every file and of the file system, Unix seconds
	// Level of zstd, 1 to 22; 0 means DefaultLevel. It is part of the bytes.
	Level int
	// Processors is how many threads compress; 0 means one per CPU. The bytes
	// are the same for any number.
	Processors int
	// Scratch is a folder for what is thrown away; "": that of the result.
	Scratch string
	// Reuse and ReuseIndex are an earlier packed file system and what Index
	// was then: what is in both is not compressed again. The bytes are the
	// same. "": none.
	Reuse, ReuseIndex string
	Index             string // where to write what later packs reuse blocks by; "": nowhere
	// Progress is told how many bytes of files were read. nil: quiet.
	Progress func(done, total int64)
}

// DefaultLevel is chosen by measurement; see
// docs/design/0002-root-filesystem.md.
const DefaultLevel = 9

// Packed is a packed file system.
type Packed struct {
	SizeBytes int64
	SHA256    string // hex
	Tool      string // "mksquashfs 4.5.1": other versions may give other bytes
	Blocks    int    // how many different blocks it has
	Reused    int    // of them, how many an earlier file system had
}

// brokenSquashfs are versions known to write damaged file systems.
var brokenSquashfs = map[string]bool{"4.7": true, "4.7.1": true, "4.7.2": true, "4.7.3": true, "4.7.4": true}

// Pack packs the tree at dir into a squashfs file at out, which it replaces.
// The same tree gives the same bytes, wherever it is and however its files
// came about. It needs mksquashfs 4.4 or later.
func Pack(ctx context.Context, dir, out string, o PackOptions) (Packed, error) {
	p, err := pack(ctx, dir, out, o)
	if err != nil {
		_ = os.Remove(out)
		return Packed{}, fmt.Errorf("packing %q: %w", dir, err)
	}
	return p, nil
}

func pack(ctx context.Context, dir, out string, o PackOptions) (Packed, error) {
	tool, err := SquashfsVersion(ctx)
	if err != nil {
		return Packed{}, err
	}
	if brokenSquashfs[tool] {
		return Packed{}, fmt.Errorf("mksquashfs %s writes damaged file systems; install 4.7.5, or a version before 4.7", tool)
	}
	if o.Level == 0 {
		o.Level = DefaultLevel
	}
	if o.Processors == 0 {
		o.Processors = runtime.NumCPU()
	}
	so := squashfs.Options{Epoch: o.SourceDateEpoch, Level: o.Level, Processors: o.Processors, Tool: tool, Scratch: o.Scratch,
		Reuse: o.Reuse, ReuseIndex: o.ReuseIndex, Index: o.Index, Progress: o.Progress}
	st, err := squashfs.Write(ctx, dir, out, so)
	if errors.Is(err, squashfs.ErrReuse) {
		so.Reuse, so.ReuseIndex = "", ""
		st, err = squashfs.Write(ctx, dir, out, so)
	}
	if err != nil {
		return Packed{}, err
	}
	p := Packed{Tool: "mksquashfs " + tool, Blocks: st.Blocks, Reused: st.Reused}
	p.SHA256, p.SizeBytes, err = hashFile(out)
	return p, err
}

var squashfsVersion = regexp.MustCompile(`mksquashfs version (\S+)`)

// SquashfsVersion returns the version of the mksquashfs in PATH: "4.5.1".
func SquashfsVersion(ctx context.Context) (string, error) {
	// It exits with 0 or 1 for -version, by its own version.
	out, err := exec.CommandContext(ctx, "mksquashfs", "-version").Output()
	m := squashfsVersion.FindSubmatch(out)
	if m == nil {
		if err == nil {
			err = fmt.Errorf("it said %q", out)
		}
		return "", fmt.Errorf("asking mksquashfs for its version (install squashfs-tools): %w", err)
	}
	return string(m[1]), nil
}

func hashFile(name string) (digest string, size int64, err error) {
	f, err := os.Open(filepath.Clean(name))
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	size, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), size, err
}
