package verity

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sparse is an in-memory io.WriterAt that grows.
type sparse struct {
	mu sync.Mutex
	b  []byte
}

func (s *sparse) WriteAt(p []byte, off int64) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if need := int(off) + len(p); need > len(s.b) {
		s.b = append(s.b, make([]byte, need-len(s.b))...)
	}
	return copy(s.b[off:], p), nil
}

func randomData(blocks int) []byte {
	b := make([]byte, blocks*BlockSize)
	r := rand.NewChaCha8([32]byte{1, 2, 3})
	_, _ = r.Read(b)
	return b
}

var testParams = Params{
	Salt:    []byte("0123456789abcdef0123456789abcdef"),
	UUID:    [16]byte{0xde, 0xad, 0xbe, 0xef, 5, 6, 0x40, 8, 0x80, 10, 11, 12, 13, 14, 15, 16},
	Workers: 3,
}

func build(t *testing.T, data []byte, p Params) (*sparse, Result) {
	t.Helper()
	out := &sparse{}
	res, err := Build(t.Context(), bytes.NewReader(data), int64(len(data)), out, p)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(out.b)) != res.SizeBytes {
		t.Errorf("tree is %d bytes, Result.SizeBytes = %d", len(out.b), res.SizeBytes)
	}
	return out, res
}

// Sizes on both sides of each level boundary: 1 block (no level), 128 (one
// leaf), 129 (two levels), 128*128+1 (three levels).
var sizes = []int{1, 2, 127, 128, 129, 1000, 128*128 + 1}

func TestBuildThenVerify(t *testing.T) {
	for _, n := range sizes {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			data := randomData(n)
			tree, res := build(t, data, testParams)
			var last int64
			sb, err := Verify(t.Context(), bytes.NewReader(data), bytes.NewReader(tree.b), res.RootHash[:],
				VerifyOptions{Workers: 1, Progress: func(n int64) { last = n }})
			if err != nil {
				t.Fatal(err)
			}
			want := Superblock{UUID: testParams.UUID, DataBlocks: uint64(n), Salt: testParams.Salt}
			if d := cmp.Diff(want, sb); d != "" {
				t.Errorf("superblock (-want +got):\n%s", d)
			}
			if last != int64(len(data)) {
				t.Errorf("last progress %d, want %d", last, len(data))
			}
			again, res2 := build(t, data, Params{Salt: testParams.Salt, UUID: testParams.UUID, Workers: 1})
			if res2 != res || !bytes.Equal(again.b, tree.b) {
				t.Error("one worker and three give different trees")
			}
			if n > 1 {
				if _, root, err := Top(bytes.NewReader(tree.b)); err != nil || !bytes.Equal(root, res.RootHash[:]) {
					t.Errorf("Top = %x, %v; want %x", root, err, res.RootHash)
				}
			}
		})
	}
}

func TestVeritysetupAgrees(t *testing.T) {
	tool, err := exec.LookPath("veritysetup")
	if err != nil {
		if os.Getenv("CI") == "" {
			t.Skip("veritysetup is not installed (package cryptsetup-bin)")
		}
		t.Fatal(err)
	}
	for _, n := range sizes {
		for _, salt := range [][]byte{testParams.Salt, nil} {
			dir := t.TempDir()
			data := randomData(n)
			dataFile, treeFile := filepath.Join(dir, "data"), filepath.Join(dir, "tree")
			write(t, dataFile, data)
			p := testParams
			p.Salt = salt
			ours, res := build(t, data, p)
			saltArg := "-"
			if len(salt) > 0 {
				saltArg = hex.EncodeToString(salt)
			}
			out, err := exec.Command(tool, "format", "--salt", saltArg, "--uuid", "deadbeef-0506-4008-800a-0b0c0d0e0f10",
				dataFile, treeFile).CombinedOutput()
			if err != nil {
				t.Fatalf("veritysetup format: %v\n%s", err, out)
			}
			m := regexp.MustCompile(`Root hash:\s+([0-9a-f]{64})`).FindSubmatch(out)
			if m == nil || string(m[1]) != hex.EncodeToString(res.RootHash[:]) {
				t.Errorf("%d blocks: root hash %x, veritysetup says\n%s", n, res.RootHash, out)
			}
			theirs, err := os.ReadFile(treeFile)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(theirs, ours.b) {
				t.Errorf("%d blocks, salt %s: tree differs from veritysetup's", n, saltArg)
			}
			write(t, treeFile, ours.b)
			if out, err := exec.Command(tool, "verify", dataFile, treeFile, hex.EncodeToString(res.RootHash[:])).CombinedOutput(); err != nil {
				t.Errorf("veritysetup verify of our tree: %v\n%s", err, out)
			}
		}
	}
}

func write(t *testing.T, name string, b []byte) {
	t.Helper()
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestVerifyNamesFirstBadBlock(t *testing.T) {
	const n = 1000 // 8 leaves at hash blocks 2..9, top at 1
	data := randomData(n)
	tree, res := build(t, data, testParams)
	tests := []struct {
		name string
		hurt func(data, tree []byte) (d, tr []byte)
		want CorruptError
	}{
		{"first data block", func(d, tr []byte) ([]byte, []byte) { d[0] ^= 1; return d, tr }, CorruptError{Block: 0}},
		{"last byte", func(d, tr []byte) ([]byte, []byte) { d[len(d)-1] ^= 1; return d, tr }, CorruptError{Block: 999}},
		{"two blocks: the lower is named", func(d, tr []byte) ([]byte, []byte) {
			d[900*BlockSize] ^= 1
			d[130*BlockSize+7] ^= 1
			return d, tr
		}, CorruptError{Block: 130}},
		{"leaf", func(d, tr []byte) ([]byte, []byte) { tr[3*BlockSize] ^= 1; return d, tr }, CorruptError{Tree: true, Block: 3}},
		{"top", func(d, tr []byte) ([]byte, []byte) { tr[BlockSize+1] ^= 1; return d, tr }, CorruptError{Tree: true, Block: 1}},
		{"padding of the top", func(d, tr []byte) ([]byte, []byte) { tr[2*BlockSize-1] ^= 1; return d, tr }, CorruptError{Tree: true, Block: 1}},
		{"salt", func(d, tr []byte) ([]byte, []byte) { tr[88] ^= 1; return d, tr }, CorruptError{Tree: true, Block: 1}},
		{"data blocks lowered", func(d, tr []byte) ([]byte, []byte) { tr[72]--; return d, tr }, CorruptError{Tree: true, Block: 0}},
		{"data cut", func(d, tr []byte) ([]byte, []byte) { return d[:len(d)-1], tr }, CorruptError{Block: 896}},
		{"tree cut", func(d, tr []byte) ([]byte, []byte) { return d, tr[:len(tr)-1] }, CorruptError{Tree: true, Block: 9}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, tr := tt.hurt(bytes.Clone(data), bytes.Clone(tree.b))
			_, err := Verify(t.Context(), bytes.NewReader(d), bytes.NewReader(tr), res.RootHash[:], VerifyOptions{Workers: 4})
			var got *CorruptError
			if !errors.As(err, &got) || !errors.Is(err, ErrCorrupt) {
				t.Fatalf("Verify = %v; want a CorruptError", err)
			}
			if got.Tree != tt.want.Tree || got.Block != tt.want.Block {
				t.Errorf("Verify = %v; want tree %v block %d", err, tt.want.Tree, tt.want.Block)
			}
		})
	}
}

func TestSuperblockRefused(t *testing.T) {
	tree, _ := build(t, randomData(2), testParams)
	tests := []struct {
		name string
		off  int
		to   byte
		none bool // ErrNoSuperblock
	}{
		{"magic", 0, 'x', true},
		{"version", 8, 2, false},
		{"hash format 0", 12, 0, false},
		{"algorithm", 35, '5', false},
		{"data block size", 65, 2, false},
		{"no data blocks", 72, 0, false},
		{"too many data blocks", 79, 0x80, false},
		{"salt size", 81, 2, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := bytes.Clone(tree.b[:superblockSize])
			b[tt.off] = tt.to
			_, err := ParseSuperblock(b)
			if err == nil || errors.Is(err, ErrNoSuperblock) != tt.none {
				t.Errorf("ParseSuperblock = %v; want an error, ErrNoSuperblock %v", err, tt.none)
			}
		})
	}
	if _, _, err := Top(bytes.NewReader(nil)); !errors.Is(err, ErrNoSuperblock) {
		t.Errorf("Top of an empty device = %v; want ErrNoSuperblock", err)
	}
}

func TestBuildRefusesOddSizes(t *testing.T) {
	for _, n := range []int64{0, -4096, 4095, 4097} {
		if _, err := Build(t.Context(), bytes.NewReader(make([]byte, 8192)), n, &sparse{}, Params{}); err == nil {
			t.Errorf("Build of %d bytes succeeded", n)
		}
	}
	if _, err := Build(t.Context(), bytes.NewReader(make([]byte, 4096)), 8192, &sparse{}, Params{}); err == nil {
		t.Error("Build past the end of the data succeeded")
	}
	if _, err := Build(t.Context(), bytes.NewReader(make([]byte, 4096)), 4096, &sparse{}, Params{Salt: make([]byte, 257)}); err == nil {
		t.Error("Build with a salt of 257 bytes succeeded")
	}
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	data := randomData(2)
	if _, err := Build(ctx, bytes.NewReader(data), int64(len(data)), &sparse{}, Params{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Build = %v; want context.Canceled", err)
	}
}

func TestTable(t *testing.T) {
	sb := Superblock{DataBlocks: 77, Salt: []byte{0xab}}
	got := sb.Table("8:1", "8:2", []byte{1, 2}, "panic_on_corruption")
	want := "1 8:1 8:2 4096 4096 77 1 sha256 0102 ab 1 panic_on_corruption"
	if got != want {
		t.Errorf("Table = %q; want %q", got, want)
	}
	if got, want := (Superblock{DataBlocks: 1}).Table("a", "b", []byte{1}), "1 a b 4096 4096 1 1 sha256 01 -"; got != want {
		t.Errorf("Table = %q; want %q", got, want)
	}
}

func FuzzParseSuperblock(f *testing.F) {
	f.Add(Superblock{DataBlocks: 3, Salt: []byte("salt")}.marshal())
	f.Fuzz(func(t *testing.T, b []byte) {
		sb, err := ParseSuperblock(b)
		if err != nil {
			if !cmp.Equal(sb, Superblock{}) {
				t.Error("a superblock was returned with an error")
			}
			return
		}
		back, err := ParseSuperblock(sb.marshal())
		if err != nil || !cmp.Equal(sb, back) {
			t.Errorf("parse, marshal, parse: %v, %v", back, err)
		}
	})
}
