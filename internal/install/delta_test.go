package install

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/turnout-project/turnout/internal/cdc"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/verity"
)

// update makes two images of which the second has a stretch of the root
// exchanged by a longer one, so that everything behind it moves.
func update(t *testing.T) (was, is *built) {
	t.Helper()
	old, kernel := noise(1, 40*chunkSize), noise(2, 8*chunkSize)
	mod := slices.Concat(old[:10*chunkSize], noise(3, chunkSize+4096), old[11*chunkSize:])
	return buildFrom(t, old, kernel, nil, withIndex), buildFrom(t, mod, kernel, nil, withIndex)
}

// give puts image b good into a slot.
func (n *node) give(t *testing.T, b *built, s fleet.Slot) {
	t.Helper()
	if err := n.install(t, &source{built: b}, s, nil); err != nil {
		t.Fatal(err)
	}
	if err := n.m.Arm(t.Context(), s, 1, 1); err != nil {
		t.Fatal(err)
	}
}

// TestDelta installs what differs little from the other slot, and counts the
// bytes that are fetched: little more than what changed.
func TestDelta(t *testing.T) {
	const most = 6 * chunkSize // one chunk and a page changed
	was, is := update(t)
	whole := is.m.Root.SizeBytes + is.m.UKI.SizeBytes
	tests := []struct {
		name string
		edit func(t *testing.T, n *node, src *source)
		most int64
	}{
		{"as it is", nil, most},
		{"some of the other slot rots", func(t *testing.T, n *node, _ *source) {
			n.scribble(t, n.root(fleet.SlotA), 30*chunkSize)
		}, most + 4*chunkSize},
		{"the slot holds the same image as the other", func(t *testing.T, n *node, _ *source) {
			b, err := os.ReadFile(n.root(fleet.SlotA))
			if err == nil {
				err = os.WriteFile(n.root(fleet.SlotB), b, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}, most},
		{"the other slot cannot be read", func(t *testing.T, n *node, _ *source) {
			if err := os.Remove(n.root(fleet.SlotA)); err != nil {
				t.Fatal(err)
			}
		}, whole},
		{"only the slot itself holds the old image", func(t *testing.T, n *node, _ *source) {
			if err := os.Rename(n.root(fleet.SlotA), n.root(fleet.SlotB)); err != nil {
				t.Fatal(err)
			}
		}, whole},
		{"the indexes come damaged", func(_ *testing.T, _ *node, src *source) {
			src.damage = func(blob string, _ int64, r io.Reader) io.Reader {
				if b := is.blobs[blob]; bytes.HasPrefix(b, []byte("TNTCDC")) {
					return bytes.NewReader(append(bytes.Clone(b[:len(b)-1]), b[len(b)-1]^1))
				}
				return r
			}
		}, whole + chunkSize},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n, src := newNode(t), &source{built: is}
			n.give(t, was, fleet.SlotA)
			if tt.edit != nil {
				tt.edit(t, n, src)
			}
			if err := n.install(t, src, fleet.SlotB, nil); err != nil {
				t.Fatal(err)
			}
			n.wantStaged(t, is, fleet.SlotB)
			if slack := int64(len(is.oci)) + 64<<10; src.sent > tt.most+slack {
				t.Errorf("fetched %d bytes, want at most %d", src.sent, tt.most)
			}
			t.Logf("fetched %d of %d bytes", src.sent, whole)
		})
	}
}

// scribble flips a byte.
func (n *node) scribble(t *testing.T, path string, off int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, off); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{^b[0]}, off); err != nil {
		t.Fatal(err)
	}
}

// TestDeltaResume cuts an update: what it left in the slot is not fetched
// again, and neither is what the other slot has.
func TestDeltaResume(t *testing.T) {
	was, is := update(t)
	n, src := newNode(t), &source{built: is}
	n.give(t, was, fleet.SlotA)
	src.damage = func(blob string, _ int64, r io.Reader) io.Reader {
		if blob == is.m.UKI.Digest {
			return strings.NewReader("")
		}
		return r
	}
	if err := n.install(t, src, fleet.SlotB, nil); err == nil {
		t.Fatal("a cut installation succeeded")
	}
	src.damage, src.sent = nil, 0
	if err := n.install(t, src, fleet.SlotB, nil); err != nil {
		t.Fatal(err)
	}
	n.wantStaged(t, is, fleet.SlotB)
	if src.sent > 2*chunkSize {
		t.Errorf("the second run fetched %d bytes", src.sent)
	}
}

// TestDeltaOverHTTP asks a server for ranges that end where the node's own
// chunks begin, over connections that break.
func TestDeltaOverHTTP(t *testing.T) {
	was, is := update(t)
	n := newNode(t)
	n.give(t, was, fleet.SlotA)
	client, ranges := serveImage(t, is, chunkSize)
	im, err := Fetch(t.Context(), client, is.digest, trusted(is))
	if err != nil {
		t.Fatal(err)
	}
	target := Target{Slots: n.m, Slot: fleet.SlotB, Root: n.root(fleet.SlotB), Verity: n.verity(fleet.SlotB), OtherRoot: n.root(fleet.SlotA)}
	if err := Run(t.Context(), client, im, target, nil); err != nil {
		t.Fatal(err)
	}
	n.wantStaged(t, is, fleet.SlotB)
	if rs := ranges(); len(rs) < 2 || len(rs) > 6 {
		t.Errorf("the root was fetched with ranges %q, want two to six", rs)
	}
}

// TestTreeOfUnknownSalt: a tree that does not come out as the image's is
// fetched.
func TestTreeOfUnknownSalt(t *testing.T) {
	b, n := build(t, 1, func(m *manifest.Manifest) { m.Verity.Salt = "00" }), newNode(t)
	src := &source{built: b}
	if err := n.install(t, src, fleet.SlotA, nil); err != nil {
		t.Fatal(err)
	}
	n.wantStaged(t, b, fleet.SlotA)
	if src.sent < b.m.Root.SizeBytes+b.m.Verity.SizeBytes {
		t.Errorf("%d bytes fetched: without the tree", src.sent)
	}
}

// TestMemory installs an image larger than the bound on memory, in a process
// of its own, and looks at the most that was resident.
func TestMemory(t *testing.T) {
	const size, most = 320 << 20, 192 << 20
	if dir := os.Getenv("TURNOUT_INSTALL_INTO"); dir != "" {
		installLarge(t, dir, size)
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMemory$")
	cmd.Env = append(os.Environ(), "TURNOUT_INSTALL_INTO="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	peak := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10
	t.Logf("%d MiB were resident for an image of %d MiB", peak>>20, size>>20)
	if peak > most {
		t.Errorf("%d MiB were resident, want at most %d", peak>>20, most>>20)
	}
}

// installLarge installs zeroes with a counter in every page, beside a slot
// that holds nearly the same.
func installLarge(t *testing.T, dir string, size int64) {
	paths := [3]string{dir + "/image", dir + "/slot", dir + "/tree"}
	for _, p := range paths {
		if err := os.WriteFile(p, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(p, size); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.OpenFile(paths[0], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	page := make([]byte, 4096)
	for off := int64(0); off < size; off += int64(len(page)) {
		binary.LittleEndian.PutUint64(page, uint64(off))
		if _, err := f.WriteAt(page, off); err != nil {
			t.Fatal(err)
		}
	}
	b := manifest.Blob{Digest: "sha256:" + strings.Repeat("0", 64), SizeBytes: size, ChunkSize: 4 << 20}
	buf := make([]byte, b.ChunkSize)
	for off := int64(0); off < size; off += b.ChunkSize {
		if _, err := f.ReadAt(buf, off); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(buf)
		b.Chunks = append(b.Chunks, hex.EncodeToString(sum[:]))
	}
	index, err := cdc.Index(io.NewSectionReader(f, 0, size))
	if err != nil {
		t.Fatal(err)
	}
	om, err := json.Marshal(oci.Manifest{Layers: []oci.Descriptor{{
		MediaType: manifest.MediaChunkIndex, Digest: manifest.DigestOf(index), Size: int64(len(index)), Annotations: map[string]string{manifest.AnnotationChunksOf: b.Digest},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	dev, err := OpenDevice(paths[1])
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	im := &Image{Record: Record{OCI: om}, Manifest: &manifest.Manifest{Root: b}}
	src := fileSource{f, map[string][]byte{manifest.DigestOf(index): index}}
	if err := writeRoot(t.Context(), src, im, Target{OtherRoot: paths[0]}, dev, nil, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := verity.Build(t.Context(), dev, size, discardAt{}, verity.Params{}); err != nil {
		t.Fatal(err)
	}
}

// fileSource gives one file as every blob that it does not know.
type fileSource struct {
	f     *os.File
	small map[string][]byte
}

func (s fileSource) ImageManifest(context.Context, string) ([]byte, error)  { return nil, nil }
func (s fileSource) ImageSignature(context.Context, string) ([]byte, error) { return nil, nil }
func (s fileSource) Blob(_ context.Context, _, blob string, offset, size int64) io.ReadCloser {
	if b, ok := s.small[blob]; ok {
		return io.NopCloser(bytes.NewReader(b[offset:size]))
	}
	return io.NopCloser(io.NewSectionReader(s.f, offset, size-offset))
}

type discardAt struct{}

func (discardAt) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
