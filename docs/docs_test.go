package docs_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// pages are the documents of the repository, by path from its root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, pattern := range []string{"../*.md", "*.md", "design/*.md", "examples/*.md", "../packaging/*.md"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			b, err := os.ReadFile(n)
			if err != nil {
				t.Fatal(err)
			}
			out[filepath.Join("docs", n)] = string(b)
		}
	}
	if len(out) < 10 {
		t.Fatalf("only %d documents were found", len(out))
	}
	return out
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.+)$`)
	fence   = regexp.MustCompile("(?ms)^```(\\w*)[^\n]*\n(.*?)^```")
	dropped = regexp.MustCompile("[^\\p{L}\\p{N} _-]")
)

// anchor is how forges name a heading.
func anchor(h string) string {
	h = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(h, "$1")
	return strings.ReplaceAll(strings.ToLower(dropped.ReplaceAllString(h, "")), " ", "-")
}

// Every link inside the repository leads to a file, and to a heading of it.
func TestLinks(t *testing.T) {
	all := pages(t)
	anchors := map[string]map[string]bool{}
	for name, text := range all {
		anchors[name] = map[string]bool{}
		for _, h := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			anchors[name][anchor(h[1])] = true
		}
	}
	for name, text := range all {
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			path, section, _ := strings.Cut(m[1], "#")
			target := name
			if path != "" {
				target = filepath.Join(filepath.Dir(name), path)
			}
			if _, err := os.Stat(filepath.Join("..", target)); err != nil {
				t.Errorf("%s: dead link %s", name, m[1])
				continue
			}
			if known, ok := anchors[target]; section != "" && ok && !known[section] {
				t.Errorf("%s: %s has no heading %q", name, target, section)
			}
		}
	}
}

// programs are built once.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "turnout-docs-")
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-o", dir+"/", "./cmd/imgbuild", "./cmd/pxeserver", "./cmd/nodeagent")
	cmd.Dir, cmd.Env = "..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := programs(); err == nil {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// helps are the helps of commands, by their words.
type helps struct {
	dir  string
	text map[string]string
}

// of returns the help of the command that begins words, and how many words
// name it.
func (h *helps) of(words []string) (string, int) {
	for n := len(words); n > 0; n-- {
		path := strings.Join(words[:n], " ")
		text, known := h.text[path]
		if !known {
			out, err := exec.Command(filepath.Join(h.dir, words[0]), append(append([]string{}, words[1:n]...), "--help")...).Output()
			if err == nil {
				text = string(out)
			}
			h.text[path] = text
		}
		if strings.Contains(text, "\n  "+path+" ") || strings.Contains(text, "\n  "+path+"\n") {
			return text, n
		}
	}
	return "", 0
}

// Every command that a document shows exists, with the flags that are shown.
func TestCommands(t *testing.T) {
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	h := &helps{dir, map[string]string{}}
	seen := 0
	for name, text := range pages(t) {
		for _, line := range commandLines(text) {
			seen++
			if why := h.check(line); why != "" {
				t.Errorf("%s: `%s`: %s", name, line, why)
			}
		}
	}
	if seen < 60 {
		t.Errorf("only %d commands were found", seen)
	}
}

var (
	inline  = regexp.MustCompile("`((?:imgbuild|pxeserver|nodeagent) [a-z][^`]*)`")
	program = regexp.MustCompile(`(?:^|[|;&(]\s*|\bsudo )((?:imgbuild|pxeserver|nodeagent) [a-z-].*)`)
)

// commandLines are the commands of our programs in a document: in blocks of
// shell, and in the text.
func commandLines(text string) []string {
	var out []string
	for _, block := range fence.FindAllStringSubmatch(text, -1) {
		if block[1] != "sh" && block[1] != "" && block[1] != "console" {
			continue
		}
		for _, line := range strings.Split(strings.ReplaceAll(block[2], "\\\n", " "), "\n") {
			line = strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(line), "$ "), "# ")
			if m := program.FindStringSubmatch(line); m != nil {
				out = append(out, m[1])
			}
		}
	}
	for _, m := range inline.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		out = append(out, strings.Join(strings.Fields(m[1]), " "))
	}
	return out
}

var (
	quoted  = regexp.MustCompile(`"[^"]*"|'[^']*'`)
	comment = regexp.MustCompile(`\s+#.*$`)
	aWord   = regexp.MustCompile(`^[a-z][a-z-]*$`)
	aFlag   = regexp.MustCompile(`^(--[a-z][a-z0-9-]*|-[a-zA-Z])(=|$)`)
)

// check says what is wrong with a command; "" if nothing is.
func (h *helps) check(line string) string {
	line = quoted.ReplaceAllString(comment.ReplaceAllString(line, ""), "QUOTED")
	for _, end := range []string{" | ", " && ", "; ", " > "} {
		line, _, _ = strings.Cut(line, end)
	}
	var words, flags []string
	naming := true
	for _, w := range strings.Fields(line) {
		w = strings.Trim(w, "[],.()")
		switch {
		case aFlag.MatchString(w):
			flags = append(flags, aFlag.FindStringSubmatch(w)[1])
			naming = false
		case naming && aWord.MatchString(w):
			words = append(words, w)
		default:
			naming = false
		}
	}
	help, n := h.of(words)
	if n == 0 || n == 1 && len(words) > 1 {
		return "there is no such command"
	}
	// A word that is left over must be an argument, not a subcommand that is not there.
	if n < len(words) && strings.Contains(help, "\nAvailable Commands:\n") {
		return "there is no command " + words[n] + " of " + strings.Join(words[:n], " ")
	}
	for _, f := range flags {
		if f == "--help" || f == "-h" {
			continue
		}
		if !regexp.MustCompile(`(?m)^ +(-\w, )?` + f + `\b|^ +` + f + `, `).MatchString(help) {
			return "there is no flag " + f
		}
	}
	return ""
}
