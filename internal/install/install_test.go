package install

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/abslot/memesp"
	"github.com/turnout-project/turnout/internal/cdc"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/verity"
)

const chunkSize = 64 << 10

// built is an image with its blobs, as a server has them.
type built struct {
	digest string
	key    ed25519.PublicKey
	sig    []byte
	oci    []byte
	blobs  map[string][]byte
	m      *manifest.Manifest
}

type option int

// withIndex gives an image the chunk indexes of its root and UKI.
const withIndex option = 1

// build makes a small image. Equal seeds give equal images.
func build(t *testing.T, seed uint64, edit func(*manifest.Manifest)) *built {
	t.Helper()
	return buildFrom(t, noise(seed, 40*chunkSize), []byte("kernel "+strings.Repeat("x", 3000)), edit)
}

func noise(seed uint64, size int) []byte {
	b, rng := make([]byte, size), rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// buildFrom makes an image of a root and a kernel.
func buildFrom(t *testing.T, root, kernel []byte, edit func(*manifest.Manifest), o ...option) *built {
	t.Helper()
	treeFile, err := os.Create(filepath.Join(t.TempDir(), "tree"))
	if err != nil {
		t.Fatal(err)
	}
	defer treeFile.Close()
	res, err := verity.Build(t.Context(), bytes.NewReader(root), int64(len(root)), treeFile, verity.Params{Salt: []byte("salt"), UUID: [16]byte{1, 2}})
	if err != nil {
		t.Fatal(err)
	}
	tree, err := os.ReadFile(treeFile.Name())
	if err != nil {
		t.Fatal(err)
	}
	hash := hex.EncodeToString(res.RootHash[:])
	uki := append(bytes.Clone(kernel), " roothash="+hash...)
	m := &manifest.Manifest{
		SchemaVersion: manifest.Version, Name: "rack-base", Version: "1", Architecture: runtime.GOARCH,
		Root: blobOf(root, chunkSize),
		Verity: manifest.Verity{
			Blob: blobOf(tree, 0), RootHash: hash, Salt: hex.EncodeToString([]byte("salt")), HashAlgorithm: "sha256",
			UUID: "01020000-0000-0000-0000-000000000000",
		},
		UKI: blobOf(uki, 0),
	}
	if edit != nil {
		edit(m)
	}
	config, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	b := &built{m: m, blobs: map[string][]byte{}}
	var layers []oci.Descriptor
	if slices.Contains(o, withIndex) {
		for _, x := range [][]byte{root, uki} {
			index, err := cdc.Index(bytes.NewReader(x))
			if err != nil {
				t.Fatal(err)
			}
			d := manifest.DigestOf(index)
			b.blobs[d] = index
			layers = append(layers, oci.Descriptor{MediaType: manifest.MediaChunkIndex, Digest: d, Size: int64(len(index)),
				Annotations: map[string]string{manifest.AnnotationChunksOf: manifest.DigestOf(x)}})
		}
	}
	om, err := json.Marshal(oci.Manifest{SchemaVersion: 2, MediaType: oci.MediaManifest, Layers: layers,
		Config: oci.Descriptor{MediaType: manifest.MediaConfig, Digest: manifest.DigestOf(config), Size: int64(len(config))}})
	if err != nil {
		t.Fatal(err)
	}
	pub, priv, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	b.digest, b.key, b.oci = manifest.DigestOf(om), pub, om
	if b.sig, err = manifest.Sign(priv, b.digest); err != nil {
		t.Fatal(err)
	}
	for _, x := range [][]byte{root, tree, uki, config} {
		b.blobs[manifest.DigestOf(x)] = x
	}
	return b
}

func blobOf(b []byte, chunk int64) manifest.Blob {
	d := manifest.Blob{Digest: manifest.DigestOf(b), SizeBytes: int64(len(b)), ChunkSize: chunk}
	for i := int64(0); chunk > 0 && i < d.SizeBytes; i += chunk {
		s := sha256.Sum256(b[i:min(i+chunk, d.SizeBytes)])
		d.Chunks = append(d.Chunks, hex.EncodeToString(s[:]))
	}
	return d
}

// source is a Source whose streams can be made to fail.
type source struct {
	*built
	sent   int64                                               // bytes of blobs handed out
	damage func(blob string, off int64, r io.Reader) io.Reader // nil: none
}

func (s *source) ImageManifest(context.Context, string) ([]byte, error)  { return s.oci, nil }
func (s *source) ImageSignature(context.Context, string) ([]byte, error) { return s.sig, nil }
func (s *source) Blob(ctx context.Context, _, blob string, offset, size int64) io.ReadCloser {
	var r io.Reader = bytes.NewReader(s.blobs[blob][offset:size])
	if s.damage != nil {
		r = s.damage(blob, offset, r)
	}
	return io.NopCloser(&counter{r, s})
}

type counter struct {
	r io.Reader
	s *source
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.s.sent += int64(n)
	return n, err
}

// node is a node with two slots in files and an ESP in memory.
type node struct {
	dir string
	esp *memesp.ESP
	m   *abslot.Machine
}

func trusted(b *built) []ed25519.PublicKey { return []ed25519.PublicKey{b.key} }

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{dir: t.TempDir(), esp: new(memesp.ESP)}
	for _, s := range fleet.Slots {
		for _, p := range []string{n.root(s), n.verity(s)} {
			if err := os.WriteFile(p, make([]byte, 64*chunkSize), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	n.m = abslot.New(abslot.Config{
		ESP: n.esp,
		Booted: func(context.Context) (abslot.Evidence, error) {
			return abslot.Evidence{BootID: "b", Path: abslot.PathInstaller}, nil
		},
		SlotHash: func(_ context.Context, s fleet.Slot) (string, error) {
			f, err := os.Open(n.verity(s))
			if err != nil {
				return "", err
			}
			defer f.Close()
			_, top, err := verity.Top(f)
			if err != nil {
				return "", nil
			}
			return hex.EncodeToString(top), nil
		},
		UKIHash: func(r io.ReaderAt, size int64) (string, error) {
			b, err := io.ReadAll(io.NewSectionReader(r, 0, size))
			_, hash, _ := strings.Cut(string(b), "roothash=")
			return hash, err
		},
	})
	return n
}

func (n *node) root(s fleet.Slot) string   { return filepath.Join(n.dir, "root-"+string(s)) }
func (n *node) verity(s fleet.Slot) string { return filepath.Join(n.dir, "verity-"+string(s)) }

func (n *node) install(t *testing.T, src *source, s fleet.Slot, p Progress) error {
	t.Helper()
	im, err := Fetch(t.Context(), src, src.digest, trusted(src.built))
	if err != nil {
		return err
	}
	return Run(t.Context(), src, im, Target{Slots: n.m, Slot: s, Root: n.root(s), Verity: n.verity(s), OtherRoot: n.root(s.Other())}, p)
}

// wantStaged checks that slot s holds the image whole, and is staged.
func (n *node) wantStaged(t *testing.T, b *built, s fleet.Slot) {
	t.Helper()
	st, err := n.m.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := st.Slot(s); got.State != fleet.SlotStaged || got.Short != manifest.Short(b.digest) || got.RootHash != b.m.Verity.RootHash {
		t.Errorf("slot %s = %+v, want image %s staged", s, got, b.digest)
	}
	for p, d := range map[string]string{n.root(s): b.m.Root.Digest, n.verity(s): b.m.Verity.Digest} {
		got, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		if want := b.blobs[d]; !bytes.Equal(got[:len(want)], want) {
			t.Errorf("%s does not hold blob %s", p, d)
		}
	}
	raw, err := n.m.Manifest(t.Context(), manifest.Short(b.digest))
	if err != nil {
		t.Fatal(err)
	}
	r, err := DecodeRecord(raw)
	if err != nil {
		t.Fatal(err)
	}
	im, err := r.Open(trusted(b))
	if err != nil {
		t.Fatalf("record kept on the ESP: %v", err)
	}
	if d := cmp.Diff(b.m, im.Manifest); d != "" || im.Label != "rack-base 1" || im.RootHash != b.m.Verity.RootHash {
		t.Errorf("record kept on the ESP: label %q (-want +got):\n%s", im.Label, d)
	}
}

func TestRun(t *testing.T) {
	b, n := build(t, 1, nil), newNode(t)
	last, steps := -1, map[string]bool{}
	err := n.install(t, &source{built: b}, fleet.SlotA, func(step string, p int) {
		if p < last || p > 100 {
			t.Errorf("progress %s %d after %d", step, p, last)
		}
		last, steps[step] = p, true
	})
	if err != nil {
		t.Fatal(err)
	}
	n.wantStaged(t, b, fleet.SlotA)
	if last != 100 || len(steps) != 3 {
		t.Errorf("progress ended at %d with steps %v, want 100 and three", last, steps)
	}
}

// TestRunDamagedChunks: what came damaged is found when the slot is read back,
// and only that is fetched again, as often as it comes damaged.
func TestRunDamagedChunks(t *testing.T) {
	tests := []struct {
		name   string
		every  int64 // distance in bytes of what is damaged in the first stream
		pieces int64 // damaged by that
	}{
		{"one", 1 << 40, 1},
		{"the first six", chunkSize, 6},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, n := build(t, 1, nil), newNode(t)
			src := &source{built: b}
			hits := 0
			src.damage = func(blob string, off int64, r io.Reader) io.Reader {
				if blob != b.m.Root.Digest || hits == 3 {
					return r
				}
				hits++
				bad, _ := io.ReadAll(r)
				for i := range tt.pieces {
					bad[min(i*tt.every+7, int64(len(bad))-1)] ^= 1
				}
				return bytes.NewReader(bad)
			}
			if err := n.install(t, src, fleet.SlotA, nil); err != nil {
				t.Fatal(err)
			}
			n.wantStaged(t, b, fleet.SlotA)
			if hits != 3 {
				t.Errorf("%d damaged streams, want 3", hits)
			}
			most := b.m.Root.SizeBytes + b.m.Verity.SizeBytes + b.m.UKI.SizeBytes + (tt.pieces+3)*chunkSize + 256<<10
			if src.sent > most {
				t.Errorf("%d bytes fetched, want at most %d", src.sent, most)
			}
		})
	}
}

// TestRunDamagedForGood: a source that lies is found out, and nothing can be
// booted.
func TestRunDamagedForGood(t *testing.T) {
	for _, victim := range []string{"root", "verity", "uki"} {
		t.Run(victim, func(t *testing.T) {
			b, n := build(t, 1, func(m *manifest.Manifest) {
				if victim == "verity" { // of another salt than it says: the tree must come over the network
					m.Verity.Salt = ""
				}
			}), newNode(t)
			d := map[string]string{"root": b.m.Root.Digest, "verity": b.m.Verity.Digest, "uki": b.m.UKI.Digest}[victim]
			b.blobs[d] = bytes.Clone(b.blobs[d])
			b.blobs[d][len(b.blobs[d])/2] ^= 0x40
			if err := n.install(t, &source{built: b}, fleet.SlotA, nil); err == nil {
				t.Fatal("installing a damaged image succeeded")
			}
			for name := range n.esp.Files() {
				if strings.HasSuffix(name, ".efi") || strings.HasSuffix(name, ".new") {
					t.Errorf("%s is on the ESP", name)
				}
			}
		})
	}
}

// TestRunResume: an installation that was cut goes on where it stopped.
func TestRunResume(t *testing.T) {
	b, n := build(t, 1, nil), newNode(t)
	errCut := errors.New("cut")
	src := &source{built: b, damage: func(blob string, off int64, r io.Reader) io.Reader {
		if blob == b.m.Root.Digest {
			left := max(30*chunkSize-off, 0)
			return io.MultiReader(io.LimitReader(r, left), failing{errCut})
		}
		return r
	}}
	if err := n.install(t, src, fleet.SlotA, nil); !errors.Is(err, errCut) {
		t.Fatalf("install = %v, want the cut", err)
	}
	src.damage, src.sent = nil, 0
	if err := n.install(t, src, fleet.SlotA, nil); err != nil {
		t.Fatal(err)
	}
	n.wantStaged(t, b, fleet.SlotA)
	if limit := b.m.Root.SizeBytes / 2; src.sent > limit {
		t.Errorf("the second run fetched %d bytes, want less than %d", src.sent, limit)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestRunOverOther: another image in the slot is replaced whole.
func TestRunOverOther(t *testing.T) {
	n := newNode(t)
	for seed := range uint64(2) {
		b := build(t, seed+1, nil)
		if err := n.install(t, &source{built: b}, fleet.SlotB, nil); err != nil {
			t.Fatal(err)
		}
		n.wantStaged(t, b, fleet.SlotB)
	}
}

func TestRunTooLarge(t *testing.T) {
	b, n := build(t, 1, nil), newNode(t)
	if err := os.Truncate(n.root(fleet.SlotA), 39*chunkSize); err != nil {
		t.Fatal(err)
	}
	if err := n.install(t, &source{built: b}, fleet.SlotA, nil); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "root-A") {
		t.Errorf("install = %v, want ErrRefused naming the partition", err)
	}
	if st, _ := n.m.Status(t.Context()); st.Slot(fleet.SlotA).State != fleet.SlotEmpty {
		t.Errorf("slot A is %s, want it untouched", st.Slot(fleet.SlotA).State)
	}
}
