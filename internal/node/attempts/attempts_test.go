package attempts

import (
	"os"
	"path/filepath"
	"testing"
)

func TestLedger(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "turnout")
	start := func(root string) Ledger {
		t.Helper()
		l, err := Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		l = l.Start(root)
		if err := Write(dir, l); err != nil {
			t.Fatal(err)
		}
		return l
	}
	for i := range Limit {
		if l := start("aa"); l.Exhausted() || l.Starts != i+1 {
			t.Fatalf("start %d: %+v, exhausted %v", i+1, l, l.Exhausted())
		}
	}
	if l := start("aa"); !l.Exhausted() {
		t.Errorf("start %d is not exhausted: %+v", Limit+1, l)
	}
	if l := start("bb"); l.Exhausted() || l.Starts != 1 {
		t.Errorf("another image starts at %+v, want one start", l)
	}
	if err := Write(dir, start("bb").Healthy("bb")); err != nil {
		t.Fatal(err)
	}
	if l := start("bb"); l.Starts != 1 {
		t.Errorf("after local health: %+v, want one start", l)
	}
}

func TestReadDamaged(t *testing.T) {
	dir := t.TempDir()
	for _, text := range []string{"", "{", `{"starts":-5}`, `{"starts":"x"}`, "\x00\x00\x00"} {
		if err := os.WriteFile(filepath.Join(dir, Name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if l, err := Read(dir); err != nil || l != (Ledger{}) {
			t.Errorf("Read of %q = %+v, %v; want an empty ledger", text, l, err)
		}
	}
}
