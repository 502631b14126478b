package apt

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/deb/debtest"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/recipe"
)

// later is world some weeks on: everything has a newer version, old ones are
// dropped, and the new systemd needs a newer libsystemd, a package that was
// not there, and goes with the old kmod no longer.
func later(text string) string {
	for _, r := range [][2]string{
		{deb("libc6", "2.36-9+deb12u1"), deb("libc6", "2.36-9+deb12u2")},
		{deb("mawk", "1.3", "Provides: awk", "Depends: libc6"), deb("mawk", "1.4", "Provides: awk", "Depends: libc6")},
		{deb("dpkg", "1.21", "Essential: yes", "Pre-Depends: libc6 (>= 2.36)"), deb("dpkg", "1.22", "Essential: yes", "Pre-Depends: libc6 (>= 2.36)")},
		{deb("kmod", "30", "Depends: libc6", "Recommends: gawk"), deb("kmod", "31", "Depends: libc6", "Recommends: gawk")},
		{deb("systemd", "252.38-1", "Depends: libsystemd (= 252.38-1)"), deb("systemd", "252.40-1", "Depends: libsystemd (= 252.40-1), systemd-extra", "Breaks: kmod (<< 31)")},
		{deb("libsystemd", "252.38-1"), deb("libsystemd", "252.40-1") + deb("systemd-extra", "1")},
		{deb("linux-image-6.1.0-57-amd64", "6.1.192-1", "Depends: kmod"), deb("linux-image-6.1.0-58-amd64", "6.1.193-1", "Depends: kmod")},
		{deb("systemd-boot-efi", "252.39-1~deb12u2", "Source: systemd"), deb("systemd-boot-efi", "252.40-1", "Source: systemd")},
	} {
		if !strings.Contains(text, r[0]) {
			panic("world has changed: " + r[0])
		}
		text = strings.Replace(text, r[0], r[1], 1)
	}
	return text
}

// bringer makes the packages that the archive has dropped, as a store would
// have them.
func bringer(t *testing.T) func(context.Context, lock.Package) (string, error) {
	return func(_ context.Context, p lock.Package) (string, error) {
		for text := range strings.SplitSeq(world(), "\n\n") {
			s, err := parseStanza(text, "")
			if err != nil || s.name != p.Name || s.version != p.Version {
				continue
			}
			fields := "Description: test\n"
			for name, v := range map[string]string{"Depends": s.depends, "Pre-Depends": s.preDepends, "Provides": s.provides} {
				if v != "" {
					fields += name + ": " + v + "\n"
				}
			}
			control := fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: amd64\nMaintainer: x <x@example.org>\n%s", s.name, s.version, fields)
			return debtest.Package{Name: s.name, Control: map[string]string{"control": control}}.Write(t), nil
		}
		return "", errors.New("gone: " + p.Name)
	}
}

func TestUpdateMovesOnlyWhatIsAsked(t *testing.T) {
	a := newArchive(t, newKeys(t))
	a.publish(t, "", world())
	kernel := "linux-image-6.1.0-*-amd64"
	o := Options{CacheDir: filepath.Join(t.TempDir(), "cache"), Package: bringer(t)}
	before := loadRecipe(t, a, "", kernel, "systemd", "mawk", "librdkafka++1")
	old, err := Resolve(t.Context(), before, o)
	if err != nil {
		t.Fatal(err)
	}
	// systemd 252.39-1 is dropped like the rest.
	text := later(world())
	for _, gone := range []string{deb("systemd", "252.39-1~deb12u2", "Depends: libsystemd (= 252.39-1~deb12u2)"), deb("libsystemd", "252.39-1~deb12u2"), deb("librdkafka++1", "1:2.10~rc1-1.cflt~ubu22", "Source: librdkafka (2.9)")} {
		text = strings.Replace(text, gone, "", 1)
	}
	a.publish(t, "", text)
	tests := []struct {
		name  string
		r     *recipe.Recipe
		names []string
		want  []string // changes with their reasons
	}{
		{"nothing", before, nil, nil},
		{"one", before, []string{"mawk"}, []string{"↑ mawk 1.3 → 1.4 (asked for)"}},
		{"essential", before, []string{"dpkg"}, []string{"↑ dpkg 1.21 → 1.22 (asked for)"}},
		{"a tool", before, []string{"systemd-boot-efi"}, []string{"↑ systemd-boot-efi (build tool) 252.39-1~deb12u2 → 252.40-1 (asked for)"}},
		{"what it forces", before, []string{"systemd"}, []string{
			"↑ kmod 30 → 31 (systemd 252.40-1 does not go with kmod (<< 31))",
			"↑ libsystemd 252.39-1~deb12u2 → 252.40-1 (systemd 252.40-1 needs libsystemd (= 252.40-1))",
			"↑ systemd 252.39-1~deb12u2 → 252.40-1 (asked for)",
			"+ systemd-extra 1 (systemd 252.40-1 needs systemd-extra)",
		}},
		{"the kernel, by the recipe's word", before, []string{kernel}, []string{
			"- linux-image-6.1.0-57-amd64 6.1.192-3 (an image has one kernel: linux-image-6.1.0-58-amd64)",
			"+ linux-image-6.1.0-58-amd64 6.1.193-1 (asked for)",
		}},
		{"what the recipe no longer asks for", loadRecipe(t, a, "", kernel, "mawk", "systemd"), []string{"mawk"}, []string{
			"- librdkafka++1 1:2.10~rc1-1.cflt~ubu22 (nothing needs it any longer)", "↑ mawk 1.3 → 1.4 (asked for)",
		}},
		{"what the recipe asks for as well", loadRecipe(t, a, "", kernel, "systemd", "mawk", "librdkafka++1", "gawk"), []string{"mawk"}, []string{
			"+ gawk 5 (the recipe asks for it)", "↑ mawk 1.3 → 1.4 (asked for)",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, why, err := Update(t.Context(), tt.r, old, tt.names, o)
			if err != nil {
				t.Fatal(err)
			}
			if err := lock.Check(tt.r, got); err != nil {
				t.Error(err)
			}
			var lines []string
			for _, c := range lock.Diff(old, got) {
				c.Why = why[c.Name]
				lines = append(lines, c.String())
			}
			if d := cmp.Diff(tt.want, lines); d != "" {
				t.Errorf("changes (-want +got):\n%s", d)
			}
			for _, p := range old.Packages {
				if g, ok := lock.Find(got.Packages, p.Name); ok && g.SHA256 == p.SHA256 && g != p {
					t.Errorf("%s did not move, and is %+v in place of %+v", p.Name, g, p)
				}
			}
		})
	}
	o.Package = func(context.Context, lock.Package) (string, error) { return "", errors.New("gone from every source") }
	if got, _, err := Update(t.Context(), before, old, []string{"mawk", "libc6", "dpkg", "kmod", "systemd", "libsystemd", "librdkafka++1", "linux-image-6.1.0-57-amd64"}, o); err == nil {
		t.Errorf("Update to what the archives do not have = %v", versions(got.Packages))
	}
	all := []string{"mawk", "libc6", "dpkg", "kmod", "systemd", "libsystemd", kernel}
	if got, _, err := Update(t.Context(), loadRecipe(t, a, "", kernel, "systemd", "mawk"), without(old, "librdkafka++1"), all, o); err != nil || len(got.Packages) != len(old.Packages) {
		t.Errorf("Update of all that was dropped, and is gone = %v", err)
	}
	if _, _, err := Update(t.Context(), before, old, []string{"mawk"}, o); err == nil || !strings.Contains(err.Error(), "gone from every source") {
		t.Errorf("Update without the packages that were dropped = %v", err)
	}
	if got, err := Versions(t.Context(), before, "systemd", o); err != nil || !cmp.Equal(got, []string{"252.40-1"}) {
		t.Errorf("Versions = %v, %v", got, err)
	}
}

// without is f less one package.
func without(f *lock.File, name string) *lock.File {
	g := *f
	g.Packages = slices.DeleteFunc(slices.Clone(f.Packages), func(p lock.Package) bool { return p.Name == name })
	return &g
}

// A move that would take away what the recipe asks for is refused.
func TestUpdateRefusesLoss(t *testing.T) {
	a := newArchive(t, newKeys(t))
	a.publish(t, "", world())
	o := Options{CacheDir: filepath.Join(t.TempDir(), "cache"), Package: bringer(t)}
	r := newRecipe(t, a, "", "mawk", "librdkafka++1")
	old, err := Resolve(t.Context(), r, o)
	if err != nil {
		t.Fatal(err)
	}
	a.publish(t, "", strings.Replace(world(), deb("mawk", "1.3", "Provides: awk", "Depends: libc6"), deb("mawk", "1.4", "Provides: awk", "Depends: libc6", "Conflicts: librdkafka++1"), 1))
	f, _, err := Update(t.Context(), r, old, []string{"mawk"}, o)
	var e *recipe.Error
	if !errors.As(err, &e) || e.Line != 15 || !strings.Contains(err.Error(), "mawk 1.4 does not go with librdkafka++1") {
		t.Errorf("Update = %v, %v; want an error at the line of librdkafka++1", f, err)
	}
}
