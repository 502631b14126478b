//go:build linux

package boot

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestKeepMachineID(t *testing.T) {
	dir := t.TempDir()
	read := func() string {
		t.Helper()
		file, err := keepMachineID(dir)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	first := read()
	if !isMachineID(first) || first[12] != '4' || !strings.Contains("89ab", first[16:17]) {
		t.Errorf("machine id %q, want 32 hexadecimal digits of a random UUID", first)
	}
	if again := read(); again != first {
		t.Errorf("the second boot has id %q, the first had %q", again, first)
	}
	for _, broken := range []string{"", first[:20], strings.ToUpper(first) + "Z", strings.Repeat("0", 32) + "\n", "uninitialized\n"} {
		if err := os.Remove(filepath.Join(dir, machineIDFile)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, machineIDFile), []byte(broken), 0o644); err != nil {
			t.Fatal(err)
		}
		if id := read(); !isMachineID(id) || id == first {
			t.Errorf("after %q the machine id is %q, want a new one", broken, id)
		}
	}
	if other, err := keepMachineID(filepath.Join(dir, "missing")); err == nil {
		t.Errorf("keepMachineID without a state partition = %q, want an error", other)
	}
}
