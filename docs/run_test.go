package docs_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/store"
)

// A situation is what a block of commands finds.
type situation int

const (
	running situation = iota // a server with a fleet, an image, keys
	anew                     // the same, whatever the block before has done
	bare                     // the recipes and nothing else
	built                    // an image and keys, and no server yet
)

// finds says what blocks find, by the beginning of their first line; all
// others find a server that runs. A block goes on with what the block before
// it left, if both find the same.
var finds = []struct {
	line string
	what situation
}{
	{"make build && export", bare},
	{"imgbuild keygen --out keys ", bare},
	{"imgbuild lock  recipes/rack-base.yaml", built},
	{"pxeserver init --dir /etc/turnout", built},
	{"pxeserver slot flip n1 n2 --dry-run ", anew},
	{"pxeserver rollout undo r7 ", anew},
}

// elsewhere are lines that another test runs, or that need what no test has.
var elsewhere = []struct{ line, why string }{
	{`^make |^apt-get |^systemctl |^podman |^sha256sum |^openssl pkeyutl -verify|^-v /etc`, "make test-packages installs, starts, checks and removes what make release made"},
	{`^curl … `, "short for the line above it"},
	{`^pxeserver store import `, "needs a PostgreSQL; TestStoreImport of cmd/pxeserver"},
	{`^imgbuild sign `, "needs a security module; the testscripts of imgbuild sign with a command"},
	{`^imgbuild run `, "boots a machine; make machine boots many"},
	{`arm64`, "takes minutes under emulation; make arm64 runs it"},
	{`nvidia`, "needs NVIDIA's packages; the testscripts of imgbuild check the recipes"},
	{`RECIPE|FOLDER|^imgbuild diff here`, "a pattern, not a command; the testscripts of imgbuild run it"},
}

// refused are lines that are refused for good reason where the document shows
// them, with what is said.
var refused = []struct{ line, says string }{
	{`^pxeserver bmc set n1 .*bmc\.pw$`, "--pin"},
	{`^pxeserver node report .*burn-in`, "is not accepted"}, // nobody burned these in
	// Minutes pass before these in the README, in which n1 installs.
	{`^pxeserver rollout status --watch r1$`, "not installed yet"},
	{`^pxeserver slot flip n1$`, "runs from no slot"},
}

// before is what has happened on the site where a document shows a line: the
// line finds what its reader has, or not yet has.
var before = []struct{ line, run string }{
	{`^pxeserver bmc set n1 .*bmc\.pw$`, operator + "bmc remove n1"},
	{`^pxeserver node approve new-3f2a9c01 --name n1 --pool rack`, operator + "node remove n1 --yes"},
	{`^pxeserver node approve new-3f2a9c01 --name r1-n01`, operator + "node remove r1-n01 --yes"},
	{`^pxeserver restore `, "mv /srv/backup/turnout-*.tar /srv/backup/turnout-2026-03-01.tar; rm -rf /var/lib/turnout/*"},
	{`^pxeserver image publish registry.example/`, "imgbuild push images/rack-base registry.example/turnout/rack-base:1"},
	{`^imgbuild sbkeys --out keys/secureboot`, "rm -r keys/secureboot"},
	{`^pxeserver rollout undo r7`, operator + "rollout abort r7"},
}

// instead are words that stand for others on this site.
var instead = strings.NewReplacer(
	"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", `$(jq -r '.manifests[] | select(.artifactType | test("image")) | .digest' images/rack-base/index.json | head -1 | cut -d: -f2)`,
)

// endless are commands that go on until they are interrupted, or for as long
// as nodes take; these have no agents that would act.
var endless = regexp.MustCompile(`--follow|--watch|^pxeserver (top|dhcp trace)|/v1/watch|^pxeserver slot flip --(pool|rollout) .*[^n]$`)

const interrupted = 124 // what timeout(1) says of them

// TestRun runs the commands of every document as they stand there, in order,
// against a real server with a fleet, BMCs, a registry and a receiver of
// alerts, in a network of their own.
func TestRun(t *testing.T) {
	if os.Getenv("TURNOUT_MACHINE_TEST") == "" {
		t.Skip("set TURNOUT_MACHINE_TEST=1 to run the documents' commands: as root, with packages from the archive")
	}
	s := newSite(t)
	all := pages(t)
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	ran := 0
	for _, name := range names {
		blocks := shellBlocks(all[name])
		if len(blocks) == 0 {
			continue
		}
		t.Run(strings.TrimPrefix(name, "docs/"), func(t *testing.T) { ran += s.page(t, blocks) })
	}
	if ran < 70 {
		t.Errorf("only %d commands were run", ran)
	}
}

// shellBlocks are the blocks of a document that are for a shell, as lines:
// without comments, what is continued in one.
func shellBlocks(text string) [][]string {
	var out [][]string
	for _, m := range fence.FindAllStringSubmatch(text, -1) {
		var lines []string
		for _, line := range strings.Split(strings.ReplaceAll(m[2], "\\\n", " "), "\n") {
			line = strings.TrimSpace(comment.ReplaceAllString(line, ""))
			if m[1] == "" { // also shows what is printed, and pictures
				line = strings.TrimPrefix(line, "$ ")
				if !regexp.MustCompile(`^(imgbuild|pxeserver|nodeagent|curl) ([a-z]|-o)`).MatchString(line) {
					continue
				}
			} else if m[1] != "sh" {
				continue
			}
			if line != "" && !strings.HasPrefix(line, "#") {
				lines = append(lines, strings.Join(strings.Fields(line), " "))
			}
		}
		if len(lines) > 0 {
			out = append(out, lines)
		}
	}
	return out
}

// page runs the blocks of one document and says how many lines it ran.
func (s *site) page(t *testing.T, blocks [][]string) (ran int) {
	was := situation(-1)
	for _, block := range blocks {
		now := running
		for _, f := range finds {
			if strings.HasPrefix(block[0]+" ", f.line) {
				now = f.what
			}
		}
		if now != was {
			s.reset(t, now)
			was = now
		}
		for _, line := range block {
			if s.line(t, line) {
				ran++
			}
		}
	}
	s.stop(t)
	return ran
}

// line runs one line, unless it is for another test.
func (s *site) line(t *testing.T, line string) bool {
	for _, e := range elsewhere {
		if regexp.MustCompile(e.line).MatchString(line) {
			line = after(line)
			break
		}
	}
	switch {
	case line == "":
		return false
	case strings.HasPrefix(line, "pxeserver serve"):
		s.state(t, func(tx store.Tx) error { return tx.CreateNode(t.Context(), waiting()) })
		s.start(t)
		return true
	case line == "pxeserver init --dir /etc/turnout": // which asks; TestInitAsks of cmd/pxeserver answers
		line += " --address 10.77.0.1 --interface rack0 --subnet 10.77.0.0/24 --image-key keys/image.pub"
	case strings.HasPrefix(line, "pxeserver restore"):
		s.stop(t)
		defer s.start(t)
	}
	for _, b := range before {
		if regexp.MustCompile(b.line).MatchString(line) {
			s.run(b.run)
		}
	}
	says := ""
	for _, r := range refused {
		if regexp.MustCompile(r.line).MatchString(line) {
			says = r.says
		}
	}
	line = strings.ReplaceAll(instead.Replace(line), "4f1c…", s.pin)
	limit := 5 * time.Minute // bounds a hang only
	if endless.MatchString(line) {
		line = "timeout -s INT 3 " + line
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := s.shell(ctx, line)
	cmd.Stdin = strings.NewReader(strings.Repeat("y\n", 10)) // an operator who means it
	out, err := cmd.CombinedOutput()
	code := 0
	if err != nil {
		code = 1
		if x, ok := err.(*exec.ExitError); ok { //nolint:errorlint // as os/exec gives it
			code = x.ExitCode()
		}
	}
	t.Logf("$ %s\n%s", line, shorten(out))
	switch {
	case says != "" && (code == 0 || !bytes.Contains(out, []byte(says))):
		t.Errorf("`%s`: status %d, want it refused with %q:\n%s", line, code, says, out)
	case says == "" && code != 0 && code != interrupted:
		t.Errorf("`%s`: status %d:\n%s", line, code, out)
	}
	return true
}

// after is what is left of a line whose first command is for another test.
func after(line string) string {
	if _, rest, more := strings.Cut(line, " && "); more {
		return rest
	}
	return ""
}

func shorten(out []byte) string {
	lines := strings.SplitAfter(string(out), "\n")
	if len(lines) > 12 {
		lines = append(append(lines[:8:8], fmt.Sprintf("… %d lines\n", len(lines)-11)), lines[len(lines)-3:]...)
	}
	return strings.Join(lines, "")
}

// shell prepares a line for a shell inside the site: with /etc/turnout and
// /var/lib/turnout of its own, in its network, and with what earlier lines
// exported.
func (s *site) shell(ctx context.Context, line string) *exec.Cmd {
	script := fmt.Sprintf(`set -e
mount --bind %[1]s/etc /etc/turnout
mount --bind %[1]s/var /var/lib/turnout
mount --bind %[1]s/backup /srv
mount --bind %[3]s /var/cache/turnout
mount --bind %[1]s/hosts /etc/hosts
. %[1]s/env
cd %[1]s/work
set +e
%[2]s
code=$?
export -p > %[1]s/env
exit $code
`, s.dir, line, s.packages)
	return s.rack.Command(ctx, "unshare", "--mount", "--propagation", "private", "bash", "-c", script)
}
