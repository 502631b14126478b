package efivar

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestSetBootNext(t *testing.T) {
	dir := t.TempDir()
	for _, n := range []uint16{3, 0x1a2} { // set, then set again
		if err := SetBootNext(dir, n); err != nil {
			t.Fatal(err)
		}
		want := []byte{7, 0, 0, 0, byte(n), byte(n >> 8)}
		if got, err := os.ReadFile(filepath.Join(dir, "BootNext-"+Global)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("BootNext holds %x, %v; want %x", got, err, want)
		}
	}
	if err := SetBootNext(filepath.Join(dir, "no efivarfs"), 1); err == nil {
		t.Error("SetBootNext without efivarfs succeeded")
	}
}
