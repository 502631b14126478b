package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/compat"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/recipe"
)

// The recipes of the repository must fit together, on the day they were
// written for: a recipe may outlive its driver's branch.
func TestRepositoryRecipesFit(t *testing.T) {
	var paths []string
	for _, pattern := range []string{"../../recipes/*.yaml", "../../recipes/*/*.yaml"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("no recipe matches %s (%v)", pattern, err)
		}
		paths = append(paths, found...)
	}
	day := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	for _, path := range paths {
		r, err := recipe.Load(path)
		if err != nil {
			t.Error(err)
			continue
		}
		if err := newVerdict(compat.Default(), r, nil, day).err(); err != nil {
			t.Error(err)
		}
	}
}

const mismatched = `name: node
version: "1"
base:
  distribution: debian
  release: bookworm
  sources: [{uri: "http://deb.debian.org/debian", suites: [bookworm], components: [main]}]
kernel: {package: linux-image-6.1.0-50-amd64}
driver:
  family: nvidia
  flavour: open
  version: 535.261.03
  accept: [{rule: branch-eol, reason: test}]
`

// What build does before it builds: a lock whose parts differ is refused, and
// warnings are told.
func TestCheckBuild(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(path, []byte(mismatched), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := recipe.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	f := &lock.File{Kernel: "linux-image-6.1.0-50-amd64", Packages: []lock.Package{
		{Name: "firmware-nvidia-gsp", Version: "535.309.01-0+deb12u1"},
		{Name: "linux-image-6.1.0-50-amd64", Version: "6.1.176-1"},
		{Name: "nvidia-open-kernel-support", Version: "535.261.03-1"},
	}, Build: []lock.Package{{Name: "nvidia-open-kernel-dkms", Version: "535.261.03-1"}}}
	var notes []string
	note := func(format string, args ...any) { notes = append(notes, format) }
	err = checkBuild(nil, r, f, note)
	var unfit *incompatibleError
	if !errors.As(err, &unfit) || status(err) != exitUsage || len(notes) != 1 {
		t.Fatalf("checkBuild = %v, status %d, warnings %q; want a refusal and one warning", err, status(err), notes)
	}
	for _, want := range []string{"firmware-nvidia-gsp is 535.309.01 (535.309.01-0+deb12u1)", "driver.version says 535.261.03", "2 of 3 parts are 535.261.03", "node.yaml:11:12"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("checkBuild says\n%v\nwhich lacks %q", err, want)
		}
	}
	f.Packages[0].Version = "535.261.03-1"
	if err := checkBuild(nil, r, f, note); err != nil {
		t.Errorf("checkBuild of the family in one version: %v", err)
	}
}
