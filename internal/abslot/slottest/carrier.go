package slottest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/abslot"
)

// Opener returns an empty ESP of at least 16 MiB, or the same one again when
// reopen is set: what was written must still be there.
type Opener func(t *testing.T, reopen bool) abslot.ESP

// Run runs the whole suite.
func Run(t *testing.T, open Opener) {
	t.Run("carrier", func(t *testing.T) { Carrier(t, open) })
	t.Run("life", func(t *testing.T) { Life(t, open) })
}

// Carrier checks what abslot.ESP promises.
func Carrier(t *testing.T, open Opener) {
	for _, tt := range []struct {
		name string
		test func(*testing.T, *carrier)
	}{
		{"empty folder", testEmpty},
		{"put and read", testPut},
		{"put replaces", testReplace},
		{"short source", testShort},
		{"rename", testRename},
		{"rename refuses", testRenameRefuses},
		{"remove", testRemove},
		{"names keep their case", testCase},
		{"survives reopening", testReopen},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, &carrier{t, open, open(t, false), context.Background()}) })
	}
}

// carrier is the ESP under test with shorthands.
type carrier struct {
	t    *testing.T
	open Opener
	esp  abslot.ESP
	ctx  context.Context
}

func (c *carrier) put(path string, b []byte) {
	c.t.Helper()
	must(c.t, c.esp.Put(c.ctx, path, bytes.NewReader(b), int64(len(b))))
}

func (c *carrier) names(dir string) []string {
	c.t.Helper()
	files, err := c.esp.List(c.ctx, dir)
	must(c.t, err)
	var out []string
	for _, f := range files {
		out = append(out, f.Name)
	}
	slices.Sort(out) // directory order is the carrier's own
	return out
}

func (c *carrier) wantNames(dir string, want ...string) {
	c.t.Helper()
	if diff := cmp.Diff(want, c.names(dir)); diff != "" {
		c.t.Errorf("files of %s (-want +got):\n%s", dir, diff)
	}
}

func (c *carrier) wantContent(path string, want []byte) {
	c.t.Helper()
	f, size, err := c.esp.Open(c.ctx, path)
	must(c.t, err)
	defer f.Close()
	got, err := io.ReadAll(io.NewSectionReader(f, 0, size))
	must(c.t, err)
	if !bytes.Equal(got, want) {
		c.t.Errorf("%s has %d bytes; want the %d that were put", path, len(got), len(want))
	}
	at := make([]byte, 4)
	if n, err := f.ReadAt(at, size-1); n != 1 || !errors.Is(err, io.EOF) {
		c.t.Errorf("ReadAt across the end of %s = %d, %v; want 1, EOF", path, n, err)
	}
}

func (c *carrier) wantErr(err, want error, what string) {
	c.t.Helper()
	if !errors.Is(err, want) {
		c.t.Errorf("%s: error %v; want %v", what, err, want)
	}
}

func testEmpty(t *testing.T, c *carrier) {
	c.wantNames(abslot.LinuxDir)
	c.wantNames("no/such/folder")
	_, _, err := c.esp.Open(c.ctx, "EFI/Linux/x.efi")
	c.wantErr(err, abslot.ErrNotExist, "Open of a missing file")
	_, _, err = c.esp.Open(c.ctx, "no/such/folder/x.efi")
	c.wantErr(err, abslot.ErrNotExist, "Open in a missing folder")
}

func testPut(t *testing.T, c *carrier) {
	small, large := []byte("small"), bytes.Repeat([]byte("0123456789abcdef"), 100_003)
	c.put("EFI/Linux/a.new", small)
	c.put("EFI/Linux/b.new", large)
	c.wantNames(abslot.LinuxDir, "a.new", "b.new")
	c.wantContent("EFI/Linux/a.new", small)
	c.wantContent("EFI/Linux/b.new", large)
	files, err := c.esp.List(c.ctx, abslot.LinuxDir)
	must(t, err)
	for _, f := range files {
		if f.Name == "b.new" && f.SizeBytes != int64(len(large)) {
			t.Errorf("size of b.new = %d; want %d", f.SizeBytes, len(large))
		}
	}
}

func testReplace(t *testing.T, c *carrier) {
	c.put("turnout/journal.json", []byte("the first, longer text"))
	c.put("turnout/journal.json", []byte("second"))
	c.wantNames("turnout", "journal.json")
	c.wantContent("turnout/journal.json", []byte("second"))
}

func testShort(t *testing.T, c *carrier) {
	c.put("EFI/Linux/a.new", []byte("old"))
	for _, size := range []int64{2, 100} {
		if err := c.esp.Put(c.ctx, "EFI/Linux/a.new", strings.NewReader("four"), size); err == nil {
			t.Errorf("Put of 4 bytes as %d: no error", size)
		}
	}
	broken := io.MultiReader(strings.NewReader("ab"), brokenReader{})
	if err := c.esp.Put(c.ctx, "EFI/Linux/b.new", broken, 4); !errors.Is(err, errBroken) {
		t.Errorf("Put from a broken source: error %v; want %v", err, errBroken)
	}
	c.wantNames(abslot.LinuxDir, "a.new")
	c.wantContent("EFI/Linux/a.new", []byte("old"))
}

var errBroken = errors.New("broken source")

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errBroken }

func testRename(t *testing.T, c *carrier) {
	c.put("EFI/Linux/g000001-aaaaaaaaaaaa.efi", []byte("A"))
	c.put("EFI/Linux/bbbbbbbbbbbb.new", []byte("B"))
	for _, step := range [][2]string{
		{"bbbbbbbbbbbb.new", "g000002-bbbbbbbbbbbb+2.efi"},
		{"g000002-bbbbbbbbbbbb+2.efi", "g000002-bbbbbbbbbbbb+1-1.efi"},
		{"g000002-bbbbbbbbbbbb+1-1.efi", "g000002-bbbbbbbbbbbb.efi"},
	} {
		must(t, c.esp.Rename(c.ctx, "EFI/Linux/"+step[0], "EFI/Linux/"+step[1]))
		c.wantContent("EFI/Linux/"+step[1], []byte("B"))
		if got := c.names(abslot.LinuxDir); len(got) != 2 {
			t.Errorf("after the rename to %s there are %q", step[1], got)
		}
	}
	c.wantContent("EFI/Linux/g000001-aaaaaaaaaaaa.efi", []byte("A"))
}

func testRenameRefuses(t *testing.T, c *carrier) {
	c.put("EFI/Linux/a.efi", []byte("A"))
	c.put("EFI/Linux/b.efi", []byte("B"))
	c.put("turnout/x.json", []byte("X"))
	c.wantErr(c.esp.Rename(c.ctx, "EFI/Linux/c.efi", "EFI/Linux/d.efi"), abslot.ErrNotExist, "Rename of a missing file")
	c.wantErr(c.esp.Rename(c.ctx, "EFI/Linux/a.efi", "EFI/Linux/b.efi"), abslot.ErrExist, "Rename onto another file")
	if err := c.esp.Rename(c.ctx, "EFI/Linux/a.efi", "turnout/a.efi"); err == nil {
		t.Error("Rename into another folder: no error")
	}
	c.wantNames(abslot.LinuxDir, "a.efi", "b.efi")
	c.wantContent("EFI/Linux/b.efi", []byte("B"))
}

func testRemove(t *testing.T, c *carrier) {
	big := bytes.Repeat([]byte("x"), 3<<20)
	for range 12 { // 36 MiB through an ESP that need not hold them at once
		c.put("EFI/Linux/a.new", big)
		c.put("EFI/Linux/b.new", []byte("B"))
		must(t, c.esp.Remove(c.ctx, "EFI/Linux/a.new"))
	}
	must(t, c.esp.Remove(c.ctx, "EFI/Linux/a.new"))
	must(t, c.esp.Remove(c.ctx, "no/such/folder/a.new"))
	c.wantNames(abslot.LinuxDir, "b.new")
	c.wantContent("EFI/Linux/b.new", []byte("B"))
}

func testCase(t *testing.T, c *carrier) {
	c.put("EFI/Linux/Mixed-Case.New", []byte("M"))
	c.wantNames(abslot.LinuxDir, "Mixed-Case.New")
}

func testReopen(t *testing.T, c *carrier) {
	c.put("EFI/Linux/a.new", []byte("content"))
	must(t, c.esp.Rename(c.ctx, "EFI/Linux/a.new", "EFI/Linux/g000001-aaaaaaaaaaaa+2.efi"))
	c.esp = c.open(t, true)
	c.wantNames(abslot.LinuxDir, "g000001-aaaaaaaaaaaa+2.efi")
	c.wantContent("EFI/Linux/g000001-aaaaaaaaaaaa+2.efi", []byte("content"))
}
