// Command slotinstall installs a root file system into a slot as the
// installer does (fetch, check, write, read back, verity tree), from a file
// instead of a server, and prints what that cost. bench/delta.sh and
// bench/install.sh use it.
//
//	slotinstall -image new.squashfs -to /dev/loop0 -verity /tmp/tree [-other old.squashfs]
package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/cdc"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/install"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/verity"
)

func main() {
	image := flag.String("image", "", "root file system to install")
	to := flag.String("to", "", "root partition of the slot")
	tree := flag.String("verity", "", "verity partition of the slot; a file is made if there is none")
	other := flag.String("other", "", "root partition of the other slot")
	flag.Parse()
	if err := run(*image, *to, *tree, *other); err != nil {
		fmt.Fprintln(os.Stderr, "slotinstall:", err)
		os.Exit(1)
	}
}

func run(image, to, tree, other string) error {
	ctx := context.Background()
	s, err := describe(ctx, image)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(tree, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if fi, err := f.Stat(); err == nil && fi.Mode().IsRegular() {
		if err := f.Truncate(s.tree + 1<<20); err != nil {
			return err
		}
	}
	if err := f.Close(); err != nil {
		return err
	}
	im, err := install.Fetch(ctx, s, s.digest, []ed25519.PublicKey{s.key})
	if err != nil {
		return err
	}
	runtime.GC()
	start := time.Now()
	t := install.Target{Slots: s, Slot: fleet.SlotB, Root: to, Verity: tree, OtherRoot: other}
	if err := install.Run(ctx, s, im, t, nil); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"seconds": time.Since(start).Seconds(), "imageBytes": s.root.SizeBytes, "fetchedBytes": s.sent, "requests": s.requests, "peakKiB": peak(),
	})
}

// peak returns the most memory that was resident, in KiB.
func peak() (kib int) {
	b, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			_, _ = fmt.Sscan(v, &kib)
		}
	}
	return kib
}

// source is an image whose root is a file, and a slot state machine that
// takes everything.
type source struct {
	digest         string
	key            ed25519.PublicKey
	oci, signature []byte
	root           manifest.Blob
	path           string
	small          map[string][]byte
	tree           int64
	sent, requests int64
}

func (s *source) ImageManifest(context.Context, string) ([]byte, error)  { return s.oci, nil }
func (s *source) ImageSignature(context.Context, string) ([]byte, error) { return s.signature, nil }
func (s *source) Begin(context.Context, fleet.Slot) error                { return nil }
func (s *source) Stage(_ context.Context, _ fleet.Slot, in abslot.Staged) error {
	_, err := io.Copy(io.Discard, in.UKI)
	return err
}

// Blob counts what is read of it.
func (s *source) Blob(_ context.Context, _, blob string, offset, size int64) io.ReadCloser {
	s.requests++
	if b, ok := s.small[blob]; ok {
		return &counted{io.NewSectionReader(bytes.NewReader(b), offset, size-offset), nil, s}
	}
	f, err := os.Open(s.path)
	if err != nil {
		return io.NopCloser(io.NewSectionReader(strings.NewReader(""), 0, 0))
	}
	return &counted{io.NewSectionReader(f, offset, size-offset), f, s}
}

type counted struct {
	io.Reader
	f *os.File
	s *source
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.s.sent += int64(n)
	return n, err
}

func (c *counted) Close() error {
	if c.f == nil {
		return nil
	}
	return c.f.Close()
}

// describe makes a signed image of a root, as imgbuild does.
func describe(ctx context.Context, path string) (*source, error) {
	const chunk = 4 << 20
	s := &source{path: path, small: map[string][]byte{}}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	whole, buf := sha256.New(), make([]byte, chunk)
	s.root.ChunkSize = chunk
	for {
		n, err := io.ReadFull(f, buf)
		if n > 0 {
			sum := sha256.Sum256(buf[:n])
			s.root.Chunks = append(s.root.Chunks, hex.EncodeToString(sum[:]))
			s.root.SizeBytes += int64(n)
			whole.Write(buf[:n])
		}
		if err != nil {
			break
		}
	}
	s.root.Digest = "sha256:" + hex.EncodeToString(whole.Sum(nil))
	index, err := cdc.Index(io.NewSectionReader(f, 0, s.root.SizeBytes))
	if err != nil {
		return nil, err
	}
	t, err := os.CreateTemp("", "tree")
	if err != nil {
		return nil, err
	}
	defer os.Remove(t.Name())
	res, err := verity.Build(ctx, f, s.root.SizeBytes, t, verity.Params{Salt: []byte("salt")})
	if err != nil {
		return nil, err
	}
	tree, err := os.ReadFile(t.Name())
	if err != nil {
		return nil, err
	}
	s.tree = int64(len(tree))
	add := func(b []byte) manifest.Blob {
		d := manifest.DigestOf(b)
		s.small[d] = b
		return manifest.Blob{Digest: d, SizeBytes: int64(len(b))}
	}
	m := manifest.Manifest{
		SchemaVersion: manifest.Version, Name: "bench", Version: "1", Architecture: runtime.GOARCH, Root: s.root, UKI: add([]byte("UKI")),
		Verity: manifest.Verity{
			Blob: add(tree), RootHash: hex.EncodeToString(res.RootHash[:]), Salt: hex.EncodeToString([]byte("salt")), HashAlgorithm: "sha256",
			UUID: "00000000-0000-0000-0000-000000000000",
		},
	}
	config, err := m.Encode()
	if err != nil {
		return nil, err
	}
	add(config)
	x := add(index)
	s.oci, err = json.Marshal(oci.Manifest{SchemaVersion: 2, MediaType: oci.MediaManifest,
		Config: oci.Descriptor{MediaType: manifest.MediaConfig, Digest: manifest.DigestOf(config), Size: int64(len(config))},
		Layers: []oci.Descriptor{{MediaType: manifest.MediaChunkIndex, Digest: x.Digest, Size: x.SizeBytes, Annotations: map[string]string{manifest.AnnotationChunksOf: s.root.Digest}}},
	})
	if err != nil {
		return nil, err
	}
	key, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	s.digest, s.key = manifest.DigestOf(s.oci), key
	s.signature, err = manifest.Sign(private, s.digest)
	return s, err
}
