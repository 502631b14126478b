package archtest

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestFileLength keeps files about one thing: over 500 lines there is a
// second noun in there.
func TestFileLength(t *testing.T) {
	out, err := exec.Command("git", "-C", "../..", "ls-files", "*.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	names := strings.Fields(string(out))
	if len(names) == 0 {
		t.Fatal("git lists no Go files")
	}
	for _, name := range names {
		if n := strings.Count(readFile(t, "../../"+name), "\n"); n > 500 {
			t.Errorf("%s has %d lines, want at most 500", name, n)
		}
	}
}
