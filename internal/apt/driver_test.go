package apt

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/recipe"
)

// drivers is what Debian 12 has of the driver: the open modules at one
// version, everything else at that and at the newer one of security updates.
func drivers() string {
	text := deb("dkms", "3.0", "Depends: libc6") + deb("gcc", "12", "Depends: libc6") + deb("make", "4") + deb("patch", "2") + deb("xz-utils", "5") +
		deb("linux-headers-6.1.0-50-amd64", "6.1.176-1", "Depends: linux-compiler") + deb("linux-compiler", "6.1.176-1") +
		deb("nvidia-open-kernel-dkms", "535.261.03-1", "Source: nvidia-open-gpu-kernel-modules", "Depends: firmware-nvidia-gsp (= 535.261.03), dkms") +
		deb("nvidia-open-kernel-support", "535.261.03-1", "Source: nvidia-open-gpu-kernel-modules", "Depends: nvidia-alternative-535.261.03, nvidia-modprobe") +
		deb("nvidia-modprobe", "535.161.07-1~deb12u1") + deb("nvidia-modprobe", "535.309.01-0+deb12u1")
	for _, v := range []string{"535.261.03-1", "535.309.01-0+deb12u1", "550.163.01-1"} {
		up := lock.Upstream(v)
		text += deb("firmware-nvidia-gsp", v, "Source: nvidia-graphics-drivers", "Provides: firmware-nvidia-gsp (= "+up+")") +
			deb("nvidia-alternative", v, "Source: nvidia-graphics-drivers", "Provides: nvidia-alternative-"+up) +
			deb("nvidia-smi", v, "Source: nvidia-graphics-drivers", "Depends: nvidia-alternative (= "+v+"), libnvidia-ml1 (= "+v+")") +
			deb("libnvidia-ml1", v, "Source: nvidia-graphics-drivers", "Depends: nvidia-alternative (= "+v+")")
		if up != "550.163.01" {
			text += deb("nvidia-kernel-dkms", v, "Source: nvidia-graphics-drivers") + deb("nvidia-kernel-support", v, "Source: nvidia-graphics-drivers")
		}
	}
	return strings.Replace(world(), deb("nvidia-open-kernel-dkms", "570.124.06-1"), "", 1) + text
}

func driverRecipe(t *testing.T, a *archive, section string, packages ...string) *recipe.Recipe {
	t.Helper()
	r := newRecipe(t, a, "", packages...)
	b, err := os.ReadFile(r.Path)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "r.yaml")
	if err := os.WriteFile(path, []byte(string(b)+section), 0o644); err != nil {
		t.Fatal(err)
	}
	if r, err = recipe.Load(path); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestResolveDriver(t *testing.T) {
	a := newArchive(t, newKeys(t))
	a.publish(t, "", drivers())
	for _, tt := range []struct {
		section, version, source string
	}{
		{"driver: {family: nvidia, flavour: open, version: 535.261.03, packages: [nvidia-smi]}\n", "535.261.03", "nvidia-open-kernel-dkms"},
		{"driver: {family: nvidia, flavour: open, branch: 535, packages: [nvidia-smi]}\n", "535.261.03", "nvidia-open-kernel-dkms"},
		{"driver: {family: nvidia, flavour: proprietary, branch: 535, packages: [nvidia-smi]}\n", "535.309.01", "nvidia-kernel-dkms"},
		{"driver: {family: nvidia, flavour: proprietary, version: 535.261.03, packages: [nvidia-smi]}\n", "535.261.03", "nvidia-kernel-dkms"},
	} {
		r := driverRecipe(t, a, tt.section)
		f, err := resolve(t, r)
		if err != nil {
			t.Errorf("%s: %v", tt.section, err)
			continue
		}
		for _, name := range []string{"firmware-nvidia-gsp", "nvidia-smi", "libnvidia-ml1"} {
			if p, ok := lock.Find(f.Packages, name); !ok || lock.Upstream(p.Version) != tt.version {
				t.Errorf("%s: %s is %q, want %s", tt.section, name, p.Version, tt.version)
			}
		}
		for _, name := range []string{"dkms", "gcc", "make", tt.source} {
			if _, ok := lock.Find(f.Packages, name); ok {
				t.Errorf("%s: %s is in the image", tt.section, name)
			}
		}
		for name, version := range map[string]string{tt.source: tt.version, "gcc": "12", "linux-headers-6.1.0-50-amd64": "6.1.176", "linux-compiler": "6.1.176", "dkms": "3.0", "base-files": "12"} {
			if p, ok := lock.Find(f.Build, name); !ok || lock.Upstream(p.Version) != version {
				t.Errorf("%s: the build root has %s %q, want %s", tt.section, name, p.Version, version)
			}
		}
		if slices.ContainsFunc(f.Build, func(p lock.Package) bool { return strings.HasPrefix(p.Name, "linux-image-") }) {
			t.Errorf("%s: a kernel is in the build root", tt.section)
		}
		if err := lock.Check(r, f); err != nil {
			t.Error(err)
		}
	}
}

func TestResolveDriverErrors(t *testing.T) {
	a := newArchive(t, newKeys(t))
	a.publish(t, "", drivers())
	for _, tt := range []struct {
		name, section string
		packages      []string
		want          []string
	}{
		{"modules lag behind the firmware", "driver: {family: nvidia, flavour: open, version: 535.309.01}\n", nil,
			[]string{":50: the archives do not have driver 535.309.01 in whole", "nvidia-open-kernel-support is 535.261.03-1", "firmware-nvidia-gsp is 535.309.01-0+deb12u1", "the pin that works: version: 535.261.03"}},
		{"branch that is not whole", "driver: {family: nvidia, flavour: open, branch: 550}\n", nil,
			[]string{"no driver of branch 550 in whole", "the pin that works: version: 535.261.03"}},
		{"unknown part", "driver: {family: nvidia, flavour: open, branch: 535, packages: [nvidia-smy]}\n", nil,
			[]string{"package nvidia-smy is not in the archive", "did you mean \"nvidia-smi\""}},
		{"packages in place of the section", "", []string{"nvidia-open-kernel-dkms"},
			[]string{"packages do not fit together", "the archives have 535.261.03 in whole", "driver: {family: nvidia, flavour: open, version: 535.261.03}"}},
	} {
		r := driverRecipe(t, a, tt.section, tt.packages...)
		f, err := resolve(t, r)
		var e *recipe.Error
		if !errors.As(err, &e) || e.Line == 0 {
			t.Errorf("%s: Resolve = %v, %v; want an error with a line", tt.name, f != nil, err)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: Resolve says\n  %v\nwhich lacks %q", tt.name, err, want)
			}
		}
	}
}

// A lock of another driver does not answer a recipe, and says why.
func TestStaleDriver(t *testing.T) {
	a := newArchive(t, newKeys(t))
	a.publish(t, "", drivers())
	section := "driver: {family: nvidia, flavour: proprietary, version: %s, packages: [%s]}\n"
	f, err := resolve(t, driverRecipe(t, a, fmt.Sprintf(section, "535.261.03", "nvidia-smi")))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		fmt.Sprintf(section, "535.309.01", "nvidia-smi"): "driver is 535.261.03, the recipe wants 535.309.01",
		fmt.Sprintf(section, "535.261.03", "libcuda1"):   "package libcuda1 is not in it",
		"": "it has a driver, the recipe none",
	} {
		if err := lock.Check(driverRecipe(t, a, text), f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Check with %q = %v, want %q", text, err, want)
		}
	}
}
