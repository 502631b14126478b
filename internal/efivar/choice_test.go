package efivar

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestClearChoices(t *testing.T) {
	dir := t.TempDir()
	put := func(name string, b []byte) {
		if err := os.WriteFile(filepath.Join(dir, name+"-"+Loader), append([]byte{7, 0, 0, 0}, b...), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("LoaderEntryDefault", utf16le("g000002-bbbbbbbbbbbb.efi"))
	put("LoaderEntryOneShot", []byte{1}) // damaged
	put("LoaderEntrySelected", utf16le("g000001-aaaaaaaaaaaa.efi"))
	want := []string{"LoaderEntryOneShot=?", "LoaderEntryDefault=g000002-bbbbbbbbbbbb.efi"}
	if got, err := ClearChoices(dir); err != nil || !slices.Equal(got, want) {
		t.Errorf("ClearChoices = %q, %v; want %q", got, err, want)
	}
	left, err := filepath.Glob(dir + "/*")
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != "LoaderEntrySelected-"+Loader {
		t.Errorf("left are %q, %v; want LoaderEntrySelected", left, err)
	}
	if got, err := ClearChoices(dir); err != nil || got != nil {
		t.Errorf("ClearChoices once more = %q, %v", got, err)
	}
	if got, err := ClearChoices(filepath.Join(dir, "none")); err != nil || got != nil {
		t.Errorf("ClearChoices without EFI variables = %q, %v", got, err)
	}
}
