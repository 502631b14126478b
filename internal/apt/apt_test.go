package apt

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/recipe"
)

func resolve(t *testing.T, r *recipe.Recipe) (*lock.File, error) {
	t.Helper()
	return Resolve(context.Background(), r, Options{CacheDir: filepath.Join(t.TempDir(), "cache")})
}

// versions returns "name version" of packages, "*" at the end of essential ones.
func versions(ps []lock.Package) []string {
	var all []string
	for _, p := range ps {
		s := p.Name + " " + p.Version
		if p.Essential {
			s += " *"
		}
		all = append(all, s)
	}
	return all
}

func TestResolve(t *testing.T) {
	a := newArchive(t, newKeys(t))
	a.publish(t, "", world())
	r := newRecipe(t, a, "", "systemd", "librdkafka++1")
	f, err := resolve(t, r)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"base-files 12 *", "dpkg 1.21 *", "init-helpers 1 *", "kmod 30", "libc6 2.36-9+deb12u1 *", "librdkafka++1 1:2.10~rc1-1.cflt~ubu22",
		"libsystemd 252.39-1~deb12u2", "linux-image-6.1.0-50-amd64 6.1.176-1", "mawk 1.3 *", "systemd 252.39-1~deb12u2", "usr-is-merged 37 *",
	}
	// awk can be either; whichever apt took is essential.
	got := versions(f.Packages)
	for i, s := range got {
		if s == "gawk 5 *" {
			got[i] = "mawk 1.3 *"
		}
	}
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("packages (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"systemd-boot-efi 252.39-1~deb12u2"}, versions(f.Tools)); d != "" {
		t.Errorf("tools (-want +got):\n%s", d)
	}
	p, _ := lock.Find(f.Packages, "librdkafka++1")
	if want := a.URL + "/pool/main/librdkafka++1_2.10~rc1-1.cflt~ubu22_amd64.deb"; p.URI != want || p.Source != "librdkafka" || p.SizeBytes != 1234 {
		t.Errorf("librdkafka++1 is %+v, want the address %s and source librdkafka", p, want)
	}
	if len(f.Indexes) != 1 || f.Indexes[0].URI != a.URL || len(f.Indexes[0].Key) != 40 {
		t.Errorf("indexes are %+v", f.Indexes)
	}
	if f.Kernel != "linux-image-6.1.0-50-amd64" || lock.Check(r, f) != nil {
		t.Errorf("kernel %s; Check = %v", f.Kernel, lock.Check(r, f))
	}
	if age := time.Since(time.Unix(f.SourceDateEpoch, 0)); age < time.Hour || age > 2*time.Hour {
		t.Errorf("SourceDateEpoch is %v ago, want the Release file's hour", age)
	}
}

func TestResolvePins(t *testing.T) {
	a := newArchive(t, newKeys(t))
	a.publish(t, "", world())
	tests := []struct {
		name, kernel string
		packages     []string
		want         map[string]string // package to version
	}{
		{"newest of the series of kernels", "linux-image-6.1.0-*-amd64", nil, map[string]string{"linux-image-6.1.0-57-amd64": "6.1.192-3"}},
		{"old kernel with version", "linux-image-6.1.0-57-amd64\n  version: 6.1.192-1", nil, map[string]string{"linux-image-6.1.0-57-amd64": "6.1.192-1"}},
		{"exact family", "linux-image-6.1.0-9-amd64", []string{"systemd=252.38-1", "libsystemd=252.38-1"}, map[string]string{"systemd": "252.38-1", "libsystemd": "252.38-1"}},
		{"series", "linux-image-6.1.0-9-amd64", []string{"systemd=252.39*"}, map[string]string{"systemd": "252.39-1~deb12u2"}},
	}
	for _, tt := range tests {
		f, err := resolve(t, loadRecipe(t, a, "", tt.kernel, tt.packages...))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		for name, version := range tt.want {
			if p, _ := lock.Find(f.Packages, name); p.Version != version {
				t.Errorf("%s: %s is %q, want %q", tt.name, name, p.Version, version)
			}
		}
	}
}

// Each request that cannot be met is one line at the recipe's package.
func TestResolveErrors(t *testing.T) {
	a := newArchive(t, newKeys(t))
	a.publish(t, "", world())
	const line = 14 // of the first package
	tests := []struct {
		name, kernel string
		packages     []string
		line         int
		want         []string
	}{
		{"no such package", "", []string{"sytemd"}, line, []string{"package sytemd is not in the archive", `did you mean "systemd"?`}},
		{"far from any package", "", []string{"kubernetes-node"}, line, []string{"package kubernetes-node is not in the archive", "contrib, non-free"}},
		{"virtual package", "", []string{"awk"}, line, []string{"awk is a virtual package, provided by gawk, mawk"}},
		{"no such version", "", []string{"libsystemd", "systemd=253-1"}, line + 1, []string{"package systemd has no version 253-1; the archive has 252.39-1~deb12u2, 252.38-1", `"systemd=252.39*"`}},
		{"no such series", "", []string{"systemd=253*"}, line, []string{"package systemd has no version 253*"}},
		{"no such kernel", "linux-image-6.1.0-99-amd64", nil, 12, []string{"kernel linux-image-6.1.0-99-amd64 is not in the archive, which has linux-image-6.1.0-57-amd64, linux-image-6.1.0-50-amd64, linux-image-6.1.0-9-amd64 (", "linux-image-6.1.0-*-amd64"}},
		{"a kernel named in another way", "linux-image-6.12.*-amd64", nil, 12, []string{"is not in the archive, which has linux-image-6.1.0-57-", "name one it has, or keep"}},
		{"no such kernel version", "linux-image-6.1.0-57-amd64\n  version: 6.1.1-1", nil, 13, []string{"package linux-image-6.1.0-57-amd64 has no version 6.1.1-1; the archive has 6.1.192-3, 6.1.192-1"}},
		{"half a family", "", []string{"systemd=252.38-1"}, line, []string{"packages do not fit together: systemd : Depends: libsystemd (= 252.38-1) but 252.39-1~deb12u2 is to be installed", `pin "libsystemd=252.38-1" beside it`}},
		{"second kernel", "", []string{"driver-meta"}, line, []string{"two kernels: linux-image-6.1.0-50-amd64 (kernel.package) and linux-image-"}},
		{"driver of two versions", "", []string{"libnvidia-compute-570", "nvidia-open-kernel-dkms"}, line + 1, []string{"570.124.06", "570.124.04", "nvidia-open-kernel-dkms", "libnvidia-compute-570"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			kernel := tt.kernel
			if kernel == "" {
				kernel = "linux-image-6.1.0-50-amd64"
			}
			f, err := resolve(t, loadRecipe(t, a, "", kernel, tt.packages...))
			var e *recipe.Error
			if !errors.As(err, &e) {
				t.Fatalf("Resolve = %v, %v; want a *recipe.Error", f, err)
			}
			if e.Line != tt.line || !strings.HasSuffix(e.File, "r.yaml") || strings.Contains(err.Error(), "\n") {
				t.Errorf("the error is at line %d, want %d: %v", e.Line, tt.line, err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not say %q: %v", want, err)
				}
			}
		})
	}
}

// An archive that stopped being updated is refused; a snapshot is meant to be
// old, and its signature holds as before.
func TestExpiredArchive(t *testing.T) {
	a := newArchive(t, newKeys(t))
	expired := "Valid-Until: " + time.Now().Add(-30*time.Minute).UTC().Format("Mon, 02 Jan 2006 15:04:05 UTC")
	a.publish(t, "", world(), expired)
	const snapshot = "/archive/debian/20260901T000000Z"
	a.publish(t, snapshot, world(), expired)
	_, err := resolve(t, newRecipe(t, a, ""))
	if err == nil || !strings.Contains(err.Error(), "out of date") || !strings.Contains(err.Error(), "snapshot") {
		t.Errorf("Resolve from an expired mirror = %v", err)
	}
	if _, err := resolve(t, newRecipe(t, a, snapshot)); err != nil {
		t.Errorf("Resolve from a snapshot = %v", err)
	}
	stranger := newArchive(t, newKeys(t))
	stranger.publish(t, snapshot, world(), expired)
	r := newRecipe(t, stranger, snapshot)
	r.Base.Keyring = a.key.keyring
	if _, err := resolve(t, r); err == nil || !strings.Contains(err.Error(), "signature does not hold") {
		t.Errorf("Resolve from a snapshot of a stranger = %v", err)
	}
}

func TestUntrustedArchive(t *testing.T) {
	k := newKeys(t)
	tests := []struct {
		name   string
		change func(a *archive)
		want   string
	}{
		{"unsigned", func(a *archive) { a.set("/dists/stable/InRelease", "Origin: Test\n") }, "signature does not hold"},
		{"index of other bytes", func(a *archive) {
			a.set("/dists/stable/main/binary-amd64/Packages", strings.Replace(world(), "1234", "1235", 1))
		}, "could not be fetched"},
		{"release of other bytes", func(a *archive) {
			a.files["/dists/stable/InRelease"] = strings.Replace(a.files["/dists/stable/InRelease"], "Origin: Test", "Origin: Evil", 1)
		}, "signature does not hold"},
		{"no such suite", func(a *archive) { delete(a.files, "/dists/stable/InRelease") }, "r.yaml:9:"},
	}
	for _, tt := range tests {
		a := newArchive(t, k)
		a.publish(t, "", world())
		tt.change(a)
		f, err := resolve(t, newRecipe(t, a, ""))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: Resolve = %v, %v; want an error with %q", tt.name, f, err, tt.want)
		}
	}
}

func TestMissingComponent(t *testing.T) {
	a := newArchive(t, newKeys(t))
	a.publish(t, "", world())
	r := newRecipe(t, a, "")
	r.Base.Sources[0].Components = []string{"main", "contrib"}
	f, err := resolve(t, r)
	if err == nil || !strings.Contains(err.Error(), "r.yaml:10:") || !strings.Contains(err.Error(), "has no component contrib for amd64") {
		t.Errorf("Resolve = %v, %v", f, err)
	}
}

// What apt is configured to do on this host has no say.
func TestIsolation(t *testing.T) {
	a := newArchive(t, newKeys(t))
	a.publish(t, "", world())
	host := filepath.Join(t.TempDir(), "apt.conf")
	if err := os.WriteFile(host, []byte("APT::Install-Recommends \"true\";\nAcquire::http::Proxy \"http://127.0.0.1:1\";\nDir::Etc::sourcelist \"/nonexistent\";\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("APT_CONFIG", host)
	r := newRecipe(t, a, "")
	r.Packages = append(r.Packages, "mawk")
	f, err := resolve(t, r)
	if err != nil {
		t.Fatal(err)
	}
	if p, ok := lock.Find(f.Packages, "gawk"); ok {
		t.Errorf("%v is recommended by kmod alone, and is in the lock", p)
	}
}

// Processes that share a cache take turns, and a root keeps nothing of the
// recipe before.
func TestSharedCache(t *testing.T) {
	a := newArchive(t, newKeys(t))
	a.publish(t, "", world())
	cache := t.TempDir()
	var wg sync.WaitGroup
	for i := range 4 {
		pins := [][]string{{"systemd=252.38-1", "libsystemd=252.38-1"}, {"systemd"}}[i%2]
		want := []string{"252.38-1", "252.39-1~deb12u2"}[i%2]
		r := newRecipe(t, a, "", pins...)
		wg.Go(func() {
			f, err := Resolve(context.Background(), r, Options{CacheDir: cache})
			if err != nil {
				t.Error(err)
				return
			}
			if p, _ := lock.Find(f.Packages, "systemd"); p.Version != want {
				t.Errorf("systemd is %s, want %s", p.Version, want)
			}
		})
	}
	wg.Wait()
}

func TestMissingKeyring(t *testing.T) {
	a := newArchive(t, newKeys(t))
	r := newRecipe(t, a, "")
	r.Base.Keyring = filepath.Join(t.TempDir(), "none.gpg")
	_, err := resolve(t, r)
	var e *recipe.Error
	if !errors.As(err, &e) || e.Line != 6 {
		t.Errorf("Resolve = %v, want a *recipe.Error at line 6", err)
	}
}

func TestArmouredKeyring(t *testing.T) {
	a := newArchive(t, newKeys(t))
	a.publish(t, "", world())
	r := newRecipe(t, a, "")
	r.Base.Keyring = filepath.Join(a.key.home, "archive.asc")
	if err := os.WriteFile(r.Base.Keyring, []byte(a.key.gpg(t, "", "--armor", "--export")), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := resolve(t, r); err != nil {
		t.Error(err)
	}
}
