package lock

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/recipe"
)

const sum = "c24fe4eb8e60d8632d72ed104cce7c92cff200847c897dc8ba764b6c47b519e0"

func pkg(name, version string) Package {
	p := Package{Name: name, Version: version, Architecture: "amd64", SizeBytes: 10, SHA256: sum}
	p.URI = "http://deb.debian.org/debian/pool/main/x/" + name + "/" + p.FileName()
	return p
}

func sample() *File {
	return &File{
		Version: Version, Recipe: "sha256:" + sum, Name: "tiny", Architecture: "amd64", SourceDateEpoch: 1795913593,
		Indexes: []Index{{URI: "http://deb.debian.org/debian", Suite: "bookworm", Date: "Sat, 11 Jul 2026 10:16:37 UTC", SHA256: sum,
			Key: "4D64FEC119C2029067D6E791F8D2585B8783D481"}},
		Kernel:   "linux-image-6.1.0-50-amd64",
		Packages: []Package{pkg("libattr1", "1:2.5.1-4"), pkg("libstdc++6", "12.2.0-14+deb12u1"), pkg("linux-image-6.1.0-50-amd64", "6.1.176-1"), pkg("systemd", "252.39-1~deb12u2")},
		Tools:    []Package{pkg("systemd-boot-efi", "252.39-1~deb12u2")},
	}
}

func TestWriteRead(t *testing.T) {
	name := filepath.Join(t.TempDir(), "tiny.lock.json")
	if _, err := Read(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Read of a missing lock = %v, want %v", err, fs.ErrNotExist)
	}
	want := sample()
	if err := Write(name, want); err != nil {
		t.Fatal(err)
	}
	got, err := Read(name)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("Read after Write (-want +got):\n%s", d)
	}
	bad := sample()
	bad.Packages[0].SHA256 = ""
	if err := Write(name, bad); err == nil {
		t.Error("Write of a lock without a hash succeeded")
	}
	if again, err := Read(name); err != nil || cmp.Diff(want, again) != "" {
		t.Errorf("after a refused Write the lock is %v, %v", again, err)
	}
	left, err := os.ReadDir(filepath.Dir(name))
	if err != nil || len(left) != 1 {
		t.Errorf("the folder holds %v, %v; want the lock alone", left, err)
	}
}

func TestDecodeRefuses(t *testing.T) {
	tests := []struct {
		name   string
		change func(*File)
		want   string
	}{
		{"later version", func(f *File) { f.Version = 2 }, "version 2, this program knows 1"},
		{"no date", func(f *File) { f.SourceDateEpoch = 0 }, "sourceDateEpoch 0"},
		{"recipe", func(f *File) { f.Recipe = "sha256:12" }, "recipe: digest"},
		{"no index", func(f *File) { f.Indexes = nil }, "no index"},
		{"index key", func(f *File) { f.Indexes[0].Key = "abc" }, "is not a fingerprint"},
		{"index date", func(f *File) { f.Indexes[0].Date = "today" }, "is not the date"},
		{"index suite", func(f *File) { f.Indexes[0].Suite = "../x" }, "is not a suite"},
		{"short hash", func(f *File) { f.Packages[0].SHA256 = sum[1:] }, "not 64 hexadecimal digits"},
		{"upper-case hash", func(f *File) { f.Packages[0].SHA256 = strings.ToUpper(sum) }, "not 64 hexadecimal digits"},
		{"size", func(f *File) { f.Packages[0].SizeBytes = 0 }, "size 0"},
		{"name with a path", func(f *File) { f.Packages[0].Name = "../etc" }, "not a package name"},
		{"version with a path", func(f *File) { f.Packages[0].Version = "1/../2" }, "not a Debian version"},
		{"series", func(f *File) { f.Packages[0].Version = "1.*" }, "not a Debian version"},
		{"architecture", func(f *File) { f.Packages[0].Architecture = "arm64" }, "is not amd64 or all"},
		{"file uri", func(f *File) { f.Packages[0].URI = "file:///etc/libattr1_1.deb" }, "not a plain http or https address"},
		{"uri with dots", func(f *File) { f.Packages[0].URI = "http://a/../libattr1_1_amd64.deb" }, "dots or backslashes"},
		{"uri with encoded dots", func(f *File) { f.Packages[0].URI = "http://a/%2e%2e/libattr1_1_amd64.deb" }, "dots or backslashes"},
		{"uri of another package", func(f *File) { f.Packages[0].URI = "http://a/libattr2_1_amd64.deb" }, "not one of this package"},
		{"not sorted", func(f *File) { f.Packages[0], f.Packages[1] = f.Packages[1], f.Packages[0] }, "not sorted"},
		{"twice", func(f *File) { f.Packages[1] = f.Packages[0] }, `"libattr1" is listed twice`},
		{"no kernel", func(f *File) { f.Packages = f.Packages[:2] }, `packages hold the kernels []`},
		{"two kernels", func(f *File) {
			f.Packages = append(f.Packages[:3:3], pkg("linux-image-6.1.0-57-amd64", "6.1.192-3"), f.Packages[3])
		}, `want just "linux-image-6.1.0-50-amd64"`},
		{"tool", func(f *File) { f.Tools[0].SHA256 = "x" }, "tools: "},
	}
	for _, tt := range tests {
		f := sample()
		tt.change(f)
		b, err := Encode(f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(b); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: Decode = %v, want an error with %q", tt.name, err, tt.want)
		}
	}
	good, err := Encode(sample())
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]string{
		"truncated": string(good[:len(good)/2]), "more": string(good) + "{}",
		"unknown field": strings.Replace(string(good), `"name"`, `"nmae"`, 1),
	} {
		if f, err := Decode([]byte(b)); err == nil {
			t.Errorf("%s: Decode = %+v, want an error", name, f)
		}
	}
}

func TestCompareVersions(t *testing.T) {
	tests := []struct {
		a, b string
		want int
	}{
		{"1", "1", 0}, {"1", "2", -1}, {"9", "10", -1}, {"1.0", "1", 1}, {"0:1", "1", 0}, {"1:0", "9", 1},
		{"0.11.5~rc2", "0.11.5", -1}, {"1.0~~", "1.0~", -1}, {"1.0~", "1.0", -1}, {"1.0~rc1", "1.0~rc1-1", -1},
		{"1.0+b1", "1.0", 1}, {"1.0-1+b1", "1.0-1", 1}, {"1.0a", "1.0+", -1}, {"1.0-1", "1.0-1~deb12u1", 1},
		{"252.39-1~deb12u2", "252.38-1~deb12u1", 1}, {"6.1.176-1", "6.1.192-3", -1}, {"1.2-3-4", "1.2-3-5", -1},
		{"535.261.03-1", "535.309.01-0+deb12u1", -1}, {"570.124.06", "570.124.04", 1}, {"00012", "12", 0},
		{"linux-image-6.1.0-57-amd64", "linux-image-6.1.0-9-amd64", 1},
	}
	dpkg, err := exec.LookPath("dpkg")
	for _, tt := range tests {
		if got := CompareVersions(tt.a, tt.b); got != tt.want {
			t.Errorf("CompareVersions(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
		if got := CompareVersions(tt.b, tt.a); got != -tt.want {
			t.Errorf("CompareVersions(%q, %q) = %d, want %d", tt.b, tt.a, got, -tt.want)
		}
		if err != nil || tt.a[0] == 'l' { // the names of kernels are no versions to dpkg
			continue
		}
		op := map[int]string{-1: "lt", 0: "eq", 1: "gt"}[tt.want]
		if err := exec.Command(dpkg, "--compare-versions", tt.a, op, tt.b).Run(); err != nil {
			t.Errorf("dpkg says that %q %s %q does not hold", tt.a, op, tt.b)
		}
	}
}

func TestDiff(t *testing.T) {
	old, cur := sample(), sample()
	cur.Packages[0].Version, cur.Packages[0].SHA256 = "1:2.5.2-1", strings.Repeat("1", 64)
	cur.Packages[1].SHA256 = strings.Repeat("2", 64)
	cur.Packages[3] = pkg("udev", "252")
	cur.Tools[0].Version, cur.Tools[0].SHA256 = "252.38-1", strings.Repeat("3", 64)
	var lines []string
	for _, c := range Diff(old, cur) {
		lines = append(lines, c.String())
	}
	want := []string{
		"↑ libattr1 1:2.5.1-4 → 1:2.5.2-1",
		"! libstdc++6 12.2.0-14+deb12u1 has other bytes under the same version",
		"- systemd 252.39-1~deb12u2",
		"+ udev 252",
		"↓ systemd-boot-efi (build tool) 252.39-1~deb12u2 → 252.38-1",
	}
	if d := cmp.Diff(want, lines); d != "" {
		t.Errorf("Diff (-want +got):\n%s", d)
	}
	if got := Diff(old, old); len(got) != 0 {
		t.Errorf("Diff of a lock with itself = %v", got)
	}
	if got := Diff(nil, old); len(got) != 5 || got[0].Old != "" {
		t.Errorf("Diff from nothing = %v, want five additions", got)
	}
}

func TestCheck(t *testing.T) {
	base := func() *recipe.Recipe {
		return &recipe.Recipe{Path: "r.yaml", Name: "tiny", Architecture: "amd64", Request: "sha256:" + strings.Repeat("0", 64),
			Kernel:   recipe.Kernel{Package: "linux-image-6.1.0-*-amd64"},
			Packages: []string{"systemd=252.*"},
			Base:     recipe.Base{Sources: []recipe.Source{{URI: "http://deb.debian.org/debian/", Suites: []string{"bookworm"}}}}}
	}
	tests := []struct {
		name   string
		change func(*recipe.Recipe)
		want   []string
	}{
		{"fresh", func(r *recipe.Recipe) { r.Request = sample().Recipe }, nil},
		{"unknown reason", func(*recipe.Recipe) {}, []string{"the recipe asks for other packages or sources than when it was locked"}},
		{"kernel", func(r *recipe.Recipe) { r.Kernel.Package = "linux-image-6.1.0-57-amd64" },
			[]string{"kernel is linux-image-6.1.0-50-amd64, the recipe wants linux-image-6.1.0-57-amd64"}},
		{"kernel version", func(r *recipe.Recipe) { r.Kernel.Version = "6.1.176-2" },
			[]string{"kernel linux-image-6.1.0-50-amd64 is 6.1.176-1, the recipe wants 6.1.176-2"}},
		{"packages", func(r *recipe.Recipe) { r.Packages = []string{"udev", "systemd=253*", "libattr1=1:2.5.1-4"} },
			[]string{"package udev is not in it", "package systemd is 252.39-1~deb12u2, the recipe wants 253*"}},
		{"all else", func(r *recipe.Recipe) {
			r.Name, r.Architecture, r.Base.Sources[0].Suites = "big", "arm64", []string{"trixie"}
		}, []string{"it is the lock of recipe tiny", "it is for amd64, the recipe for arm64", "source http://deb.debian.org/debian/ trixie is not in it"}},
	}
	for _, tt := range tests {
		r := base()
		tt.change(r)
		err := Check(r, sample())
		var stale *StaleError
		if !errors.As(err, &stale) {
			stale = &StaleError{}
			if err != nil {
				t.Fatalf("%s: Check = %v", tt.name, err)
			}
		}
		if d := cmp.Diff(tt.want, stale.Reasons); d != "" {
			t.Errorf("%s: reasons (-want +got):\n%s", tt.name, d)
		}
	}
}

// A driver's kernel module refuses libraries that differ in the last field.
func TestCheckFamilies(t *testing.T) {
	src := func(p Package, source string) Package { p.Source = source; return p }
	tests := []struct {
		name string
		ps   []Package
		want string // "" means they fit
	}{
		{"none", []Package{pkg("systemd", "252"), pkg("udev", "251")}, ""},
		{"last field", []Package{pkg("nvidia-open-kernel-dkms", "570.124.06-1"), pkg("libnvidia-compute-570", "570.124.04-0ubuntu1")},
			"the NVIDIA driver is of two versions: nvidia-open-kernel-dkms is 570.124.06 (570.124.06-1), libnvidia-compute-570 is 570.124.04 (570.124.04-0ubuntu1)"},
		{"major", []Package{pkg("nvidia-kernel-dkms", "520.56.06"), pkg("nvidia-driver-libs", "525.85.12-1")}, "520.56.06"},
		{"middle field", []Package{pkg("nvidia-kernel-dkms", "550.90.07"), pkg("libcuda1", "550.107.02-1")}, "550.107.02"},
		{"firmware of another source", []Package{src(pkg("nvidia-open-kernel-dkms", "535.261.03-1"), "nvidia-open-gpu-kernel-modules"), src(pkg("firmware-nvidia-gsp", "535.309.01-0+deb12u1"), "nvidia-graphics-drivers")}, "535.309.01"},
		{"revision only", []Package{pkg("nvidia-open-kernel-dkms", "535.261.03-1"), pkg("firmware-nvidia-gsp", "535.261.03-0+deb12u1"), pkg("libcuda1", "535.261.03-1~deb12u1")}, ""},
		{"tools of their own version", []Package{pkg("nvidia-kernel-dkms", "550.90.07"), pkg("nvidia-kernel-common", "20220217+3"), pkg("nvidia-container-toolkit", "1.17"), pkg("libnvidia-container1", "1.17")}, ""},
	}
	for _, tt := range tests {
		err := CheckFamilies(tt.ps)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: CheckFamilies = %v, want %q", tt.name, err, tt.want)
		}
	}
}

func TestMatch(t *testing.T) {
	tests := []struct {
		pin, version string
		want         bool
	}{
		{"1.2", "1.2", true}, {"1.2", "1.20", false}, {"1.2*", "1.20", true}, {"1.2.*", "1.20", false}, {"1:1.2*", "1.2", false},
	}
	for _, tt := range tests {
		if got := MatchVersion(tt.pin, tt.version); got != tt.want {
			t.Errorf("MatchVersion(%q, %q) = %v", tt.pin, tt.version, got)
		}
	}
	for name, want := range map[string]bool{"linux-image-6.1.0-57-amd64": true, "linux-image-6.1.0-57-cloud-amd64": false, "linux-image-6.1.0-rt-amd64": false, "linux-image-6x1.0-57-amd64": false} {
		if got := MatchName("linux-image-6.1.0-*-amd64", name); got != want {
			t.Errorf("MatchName(%q) = %v, want %v", name, got, want)
		}
	}
}

func TestDigestIsOfTheFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "l.json")
	f := sample()
	if err := Write(name, f); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	got, err := f.Digest()
	if want := manifest.DigestOf(b); err != nil || got != want {
		t.Errorf("Digest = %s, %v; the file's is %s", got, err, want)
	}
}

func TestAccounts(t *testing.T) {
	for _, tt := range []struct {
		accounts map[string]int
		want     string
	}{
		{map[string]int{"acme": 600, "_other.d": 899}, ""},
		{map[string]int{"acme": 599}, "acme has the number 599"},
		{map[string]int{"a": 700, "b": 700}, "a and b have the number 700"},
		{map[string]int{"a:b": 700}, "no name"},
	} {
		f := sample()
		f.Accounts = tt.accounts
		if err := f.Validate(); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Validate with accounts %v = %v, want %q", tt.accounts, err, tt.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	b, err := Encode(sample())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := Decode(b)
		if err != nil {
			return
		}
		again, err := Encode(file)
		if err != nil {
			t.Fatal(err)
		}
		back, err := Decode(again)
		if err != nil {
			t.Fatalf("Decode accepts a lock but not its own encoding: %v", err)
		}
		x, _ := json.Marshal(file)
		y, _ := json.Marshal(back)
		if string(x) != string(y) {
			t.Errorf("a lock changed from %s to %s", x, y)
		}
	})
}
