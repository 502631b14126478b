package judge_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestAttackTable holds the table of attacks in docs/measured-boot.md against
// the tests it names: each row has at least one, and each of them exists.
func TestAttackTable(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	doc, err := os.ReadFile(filepath.Join(root, "docs", "measured-boot.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(doc), "## Attacks, and the tests that try them")
	if !ok {
		t.Fatal("the document has no table of attacks")
	}
	tests := testSources(t, root)
	tables := map[string]string{ // letters that the document gives to tests
		"J": read(t, "judge_test.go"),
		"Q": read(t, filepath.Join("..", "quote", "quote_test.go")),
		"P": read(t, filepath.Join("..", "eventlog", "eventlog_test.go")),
	}
	name := regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z][A-Za-z0-9]*`)
	group := regexp.MustCompile(`(?:^|[;,.(] ?)\b([JQP]|Test[A-Za-z0-9]+)((?:,? "[^"]+")+)`)
	rows := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 5 || strings.HasPrefix(cells[1], "---") || strings.TrimSpace(cells[1]) == "#" {
			continue
		}
		rows++
		cell := strings.TrimSpace(cells[3])
		found := 0
		for _, n := range name.FindAllString(cell, -1) {
			found++
			if !strings.Contains(tests, "\nfunc "+n+"(") {
				t.Errorf("row %s names %s, which does not exist", strings.TrimSpace(cells[1]), n)
			}
		}
		for _, g := range group.FindAllStringSubmatch(cell, -1) {
			in, isLetter := tables[g[1]]
			if !isLetter {
				in = tests
			}
			for _, c := range regexp.MustCompile(`"[^"]+"`).FindAllString(g[2], -1) {
				found++
				c = strings.TrimSuffix(strings.TrimSuffix(c, `"`), "…")
				if !strings.Contains(in, c) {
					t.Errorf("row %s names the case %s\" of %s, which does not exist", strings.TrimSpace(cells[1]), c, g[1])
				}
			}
		}
		if found == 0 {
			t.Errorf("row %s names no test: %s", strings.TrimSpace(cells[1]), cell)
		}
	}
	if rows < 18 {
		t.Errorf("the table has %d rows; want the 18 attacks of the list at least", rows)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// testSources returns all test files, one after the other.
func testSources(t *testing.T, root string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(filepath.Join(root, "internal"), func(p string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(p, "_test.go") {
			all.WriteString(read(t, p))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}
