package archtest

import (
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/turnout-project/turnout/"

// pkg is the part of `go list -json` that the rules look at.
type pkg struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Imports    []string
	Deps       []string
}

func (p pkg) short() string { return strings.TrimPrefix(p.ImportPath, module) }

func packages(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,Imports,Deps", module+"...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) < 20 {
		t.Fatalf("go list found only %d packages", len(all))
	}
	return all
}

// TestLibraryHomes checks that each mandated library is imported from its
// one home only.
func TestLibraryHomes(t *testing.T) {
	homes := map[string][]string{
		"github.com/diskfs/go-diskfs":    {"internal/disk"},
		"github.com/insomniacslk/dhcp":   {"internal/netboot"},
		"github.com/pin/tftp/v3":         {"internal/netboot"},
		"github.com/google/go-tpm":       {"internal/tpm"},
		"github.com/spf13/cobra":         {"cmd"},
		"modernc.org/sqlite":             {"internal/store/sqlite"},
		"github.com/jackc/pgx/v5":        {"internal/store/postgres"},
		"github.com/vishvananda/netlink": {"internal/netboot"},

		"github.com/prometheus/client_golang": {"internal/metrics"},
		"github.com/stmcginnis/gofish":        {"internal/bmc"},
	}
	used := map[string]bool{}
	for _, p := range packages(t) {
		for _, imp := range p.Imports {
			for lib, allowed := range homes {
				if imp != lib && !strings.HasPrefix(imp, lib+"/") {
					continue
				}
				used[lib] = true
				if !slices.ContainsFunc(allowed, func(home string) bool {
					return p.short() == home || strings.HasPrefix(p.short(), home+"/")
				}) {
					t.Errorf("%s imports %s; its home is %v", p.short(), imp, allowed)
				}
			}
		}
	}
	for lib := range homes {
		if !used[lib] {
			t.Errorf("no package imports %s", lib)
		}
	}
}

// TestForbidden checks what a package must never reach, however indirectly.
func TestForbidden(t *testing.T) {
	rules := []struct{ from, never, why string }{
		{"internal/fleet", "github.com/", "fleet holds words only: standard library"},
		{"internal/manifest", "os", "manifest is pure"},
		{"internal/abslot", "github.com/diskfs/", "the state machine is pure; carriers are below it"},
		{"internal/tpm/measure", module + "internal/tpm/device", "prediction needs no TPM"},
		{"internal/tpm/eventlog", module + "internal/tpm/device", "logs are judged without a TPM"},
		{"internal/tpm/quote", module + "internal/tpm/device", "quotes are verified without a TPM"},
		{"internal/tpm/judge", module + "internal/tpm/device", "verdicts are given without a TPM"},
		{"internal/image", module + "internal/tpm/device", "the builder never opens a TPM"},
		{"internal/server", module + "internal/tpm/device", "the server never opens a TPM"},
		{"cmd/nodeagent", "modernc.org/", "the agent is small and keeps no database"},
		{"cmd/nodeagent", module + "internal/server", "the node knows the wire, not the server"},
		{"cmd/imgbuild", module + "internal/server", "the builder knows no fleet"},
	}
	all := packages(t)
	for _, r := range rules {
		i := slices.IndexFunc(all, func(p pkg) bool { return p.short() == r.from })
		if i < 0 {
			t.Errorf("rule for %s: there is no such package", r.from)
			continue
		}
		imports := all[i].Deps
		if r.never == "os" {
			imports = all[i].Imports
		}
		for _, dep := range imports {
			if dep == r.never || strings.HasPrefix(dep, r.never) && r.never != "os" {
				t.Errorf("%s reaches %s: %s", r.from, dep, r.why)
			}
		}
	}
}

// TestPackageComments checks that each package has exactly one comment, in
// one file, that starts as godoc wants it.
func TestPackageComments(t *testing.T) {
	for _, p := range packages(t) {
		var found []string
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if f.Doc == nil {
				continue
			}
			found = append(found, name)
			if text := f.Doc.Text(); !strings.HasPrefix(text, "Package "+f.Name.Name) && !strings.HasPrefix(text, "Command ") {
				t.Errorf("%s/%s: package comment starts %.40q", p.short(), name, text)
			}
		}
		if len(found) != 1 {
			t.Errorf("%s has %d package comments %v, want one", p.short(), len(found), found)
		}
	}
}

// TestCodeMap checks that ARCHITECTURE.md names every package.
func TestCodeMap(t *testing.T) {
	text := readFile(t, "../../ARCHITECTURE.md")
	for _, p := range packages(t) {
		if !strings.Contains(text, "`"+p.short()+"`") && !coveredByParent(text, p.short()) {
			t.Errorf("ARCHITECTURE.md says nothing of %s", p.short())
		}
	}
}

// coveredByParent: a row such as `internal/abslot`, "carriers below it".
func coveredByParent(text, path string) bool {
	parent := filepath.Dir(path)
	return parent != "internal" && parent != "." && strings.Contains(text, "`"+parent+"`")
}
