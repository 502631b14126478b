package cdc

import (
	"bytes"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/iotest"
)

func noise(seed uint64, n int) []byte {
	rng, b := rand.New(rand.NewPCG(seed, 7)), make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func split(t *testing.T, r io.Reader) (chunks []Chunk, whole []byte) {
	t.Helper()
	err := Split(r, func(off int64, b []byte) error {
		if off != int64(len(whole)) {
			t.Fatalf("chunk at %d, want %d", off, len(whole))
		}
		chunks, whole = append(chunks, Chunk{KeyOf(b), len(b)}), append(whole, b...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return chunks, whole
}

func TestSplit(t *testing.T) {
	for _, n := range []int{0, 1, Min - 1, Min, Min + 1, Max, Max + 1, 1 << 20, 1<<20 + 1, 5<<20 + 17} {
		in := noise(uint64(n), n)
		chunks, whole := split(t, bytes.NewReader(in))
		if !bytes.Equal(whole, in) {
			t.Errorf("%d bytes: chunks do not make up the file", n)
		}
		for i, c := range chunks {
			if c.Size > Max || c.Size < Min && i != len(chunks)-1 {
				t.Errorf("%d bytes: chunk %d has %d", n, i, c.Size)
			}
		}
		if slow, _ := split(t, iotest.HalfReader(bytes.NewReader(in))); !slices.Equal(slow, chunks) {
			t.Errorf("%d bytes: chunks depend on how the file is read", n)
		}
	}
	mean := 32 << 20 / (len(first(split(t, bytes.NewReader(noise(1, 32<<20))))))
	if mean < Normal*3/4 || mean > Normal*3/2 {
		t.Errorf("chunks of noise have %d bytes in the mean, want about %d", mean, Normal)
	}
}

func first(c []Chunk, _ []byte) []Chunk { return c }

// TestFormat holds the cut points: other ones make every index in the field
// worthless.
func TestFormat(t *testing.T) {
	x, err := Index(bytes.NewReader(noise(3, 1<<20)))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := KeyOf(x), (Key{0xb9, 0x6a, 0x9f, 0x82, 0x1c, 0x61}); got != want {
		t.Errorf("index has key %#v, want %#v", got, want)
	}
}

// TestInsert checks that chunks are found again behind an insertion.
func TestInsert(t *testing.T) {
	old := noise(2, 4<<20)
	mod := slices.Concat(old[:1<<20], []byte("inserted"), old[1<<20:])
	have := map[Chunk]bool{}
	for _, c := range first(split(t, bytes.NewReader(old))) {
		have[c] = true
	}
	fresh := 0
	for _, c := range first(split(t, bytes.NewReader(mod))) {
		if !have[c] {
			fresh += c.Size
		}
	}
	if fresh == 0 || fresh > 4*Max {
		t.Errorf("eight inserted bytes make %d bytes of new chunks", fresh)
	}
}

func TestDecode(t *testing.T) {
	in := noise(4, 1<<20)
	x, err := Index(bytes.NewReader(in))
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(x, 1<<20)
	if want := first(split(t, bytes.NewReader(in))); err != nil || !slices.Equal(got, want) {
		t.Errorf("Decode gives other chunks than were encoded, %v", err)
	}
	if got, err := Decode([]byte(magic), 0); err != nil || len(got) != 0 {
		t.Errorf("index of an empty file: %v, %v", got, err)
	}
	for name, c := range map[string]struct {
		b    []byte
		size int64
	}{
		"other size": {x, 1<<20 + 1}, "cut": {x[:len(x)-1], 1 << 20}, "empty": {nil, 0}, "other version": {[]byte("TNTCDC\x00\x02"), 0},
		"chunk of nothing": {append([]byte(magic), 0, 1, 2, 3, 4, 5, 6), 0},
		"chunk too large":  {append([]byte(magic), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 1, 2, 3, 4, 5, 6), 1},
	} {
		if _, err := Decode(c.b, c.size); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(magic), int64(0))
	f.Add(Encode([]Chunk{{Key{1}, 5}}), int64(5))
	f.Fuzz(func(t *testing.T, b []byte, size int64) {
		if c, err := Decode(b, size); err == nil {
			if back, err := Decode(Encode(c), size); err != nil || !slices.Equal(back, c) {
				t.Errorf("%x does not come back", b)
			}
		}
	})
}

func BenchmarkSplit(b *testing.B) {
	in := noise(5, 16<<20)
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		if _, err := Index(bytes.NewReader(in)); err != nil {
			b.Fatal(err)
		}
	}
}
