package efivar

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func put(t *testing.T, dir, name, vendor, value string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name+"-"+vendor), []byte(value), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestString(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "LoaderEntrySelected", Loader, "\x06\x00\x00\x00g\x000\x00.\x00e\x00f\x00i\x00\x00\x00")
	put(t, dir, "NoNul", Loader, "\x06\x00\x00\x00a\x00")
	put(t, dir, "Odd", Loader, "\x06\x00\x00\x00a")
	put(t, dir, "Short", Loader, "\x06\x00")
	for _, tt := range []struct {
		name, want string
		fails      bool
	}{
		{"LoaderEntrySelected", "g0.efi", false},
		{"NoNul", "a", false},
		{"Absent", "", false},
		{"Odd", "", true},
		{"Short", "", true},
	} {
		got, err := String(dir, tt.name, Loader)
		if got != tt.want || (err != nil) != tt.fails {
			t.Errorf("String(%s) = %q, %v; want %q, error %v", tt.name, got, err, tt.want, tt.fails)
		}
	}
	if _, err := Read(dir, "Absent", Loader); !errors.Is(err, ErrNotExist) {
		t.Errorf("Read(Absent) = %v, want ErrNotExist", err)
	}
}

func TestSecureBoot(t *testing.T) {
	dir := t.TempDir()
	if SecureBoot(dir) {
		t.Error("SecureBoot without the variable = true, want false")
	}
	put(t, dir, "SecureBoot", Global, "\x06\x00\x00\x00\x01")
	if !SecureBoot(dir) {
		t.Error("SecureBoot with value 1 = false, want true")
	}
}
