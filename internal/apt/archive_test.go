package apt

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/recipe"
)

// keys is a GnuPG home with one key.
type keys struct {
	home, keyring string
}

// newKeys makes a key. GnuPG's agent wants a short path for its socket.
func newKeys(t *testing.T) *keys {
	t.Helper()
	for _, tool := range []string{"gpg", "gpgv", "apt-get"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatalf("%s is not installed; the tests of apt need apt, gpg and gpgv", tool)
			}
			t.Skipf("%s is not installed", tool)
		}
	}
	home, err := os.MkdirTemp("", "gpg")
	if err != nil {
		t.Fatal(err)
	}
	k := &keys{home: home, keyring: filepath.Join(home, "archive.gpg")}
	t.Cleanup(func() {
		_ = exec.Command("gpgconf", "--homedir", home, "--kill", "all").Run()
		os.RemoveAll(home)
	})
	k.gpg(t, "", "--passphrase", "", "--quick-generate-key", "archive@example.org", "ed25519", "sign", "never")
	k.gpg(t, "", "--output", k.keyring, "--export")
	return k
}

// gpg runs gpg with input and returns its output.
func (k *keys) gpg(t *testing.T, input string, args ...string) string {
	t.Helper()
	cmd := exec.Command("gpg", append([]string{"--homedir", k.home, "--batch", "--quiet", "--pinentry-mode", "loopback"}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("gpg %v: %v: %s", args, err, errs.String())
	}
	return string(out)
}

// archive is a Debian archive with one suite, served over HTTP.
type archive struct {
	*httptest.Server
	key   *keys
	mu    sync.Mutex
	files map[string]string
}

func newArchive(t *testing.T, k *keys) *archive {
	t.Helper()
	a := &archive{key: k, files: map[string]string{}}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		text, ok := a.files[r.URL.Path]
		a.mu.Unlock()
		if !ok {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, text)
	}))
	t.Cleanup(a.Close)
	return a
}

func (a *archive) set(path, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.files[path] = text
}

// publish signs and serves packages as suite "stable" below base ("" or
// "/archive/…"), with extra lines in the Release file.
func (a *archive) publish(t *testing.T, base, packages string, extra ...string) {
	t.Helper()
	sum := sha256.Sum256([]byte(packages))
	release := fmt.Sprintf("Origin: Test\nSuite: stable\nCodename: stable\nDate: %s\nArchitectures: amd64\nComponents: main\n%sSHA256:\n %x %d main/binary-amd64/Packages\n",
		time.Now().Add(-time.Hour).UTC().Format("Mon, 02 Jan 2006 15:04:05 UTC"), strings.Join(append(extra, ""), "\n"), sum, len(packages))
	a.set(base+"/dists/stable/InRelease", a.key.gpg(t, release, "--clearsign"))
	a.set(base+"/dists/stable/main/binary-amd64/Packages", packages)
}

// deb writes one stanza of a Packages file. Fields are "Name: value".
func deb(name, version string, fields ...string) string {
	_, plain, ok := strings.Cut(version, ":")
	if !ok {
		plain = version
	}
	h := sha256.Sum256([]byte(name + version))
	lines := append([]string{"Package: " + name, "Version: " + version, "Architecture: amd64"}, fields...)
	return strings.Join(append(lines, fmt.Sprintf("Filename: pool/main/%s_%s_amd64.deb", name, plain),
		"Size: 1234", "SHA256: "+hex.EncodeToString(h[:]), "Description: test"), "\n") + "\n\n"
}

// world is a small archive that an image can be made from.
func world() string {
	return strings.Join([]string{
		deb("base-files", "12", "Essential: yes", "Pre-Depends: awk"),
		deb("libc6", "2.36-9+deb12u1"),
		deb("dpkg", "1.21", "Essential: yes", "Pre-Depends: libc6 (>= 2.36)"),
		deb("init-helpers", "1", "Essential: yes", "Depends: usrmerge | usr-is-merged"),
		deb("usrmerge", "37"), deb("usr-is-merged", "37"),
		deb("mawk", "1.3", "Provides: awk", "Depends: libc6"), deb("gawk", "5", "Provides: awk", "Depends: libc6"),
		deb("kmod", "30", "Depends: libc6", "Recommends: gawk"),
		deb("linux-image-6.1.0-9-amd64", "6.1.9-1", "Depends: kmod"),
		deb("linux-image-6.1.0-50-amd64", "6.1.176-1", "Depends: kmod"),
		deb("linux-image-6.1.0-57-amd64", "6.1.192-3", "Depends: kmod"), deb("linux-image-6.1.0-57-amd64", "6.1.192-1", "Depends: kmod"),
		deb("linux-image-6.1.0-57-cloud-amd64", "6.1.192-3", "Depends: kmod"),
		deb("linux-image-amd64", "6.1.192-3", "Depends: linux-image-6.1.0-57-amd64"),
		deb("driver-meta", "1", "Depends: linux-image-amd64"),
		deb("systemd", "252.39-1~deb12u2", "Depends: libsystemd (= 252.39-1~deb12u2)"), deb("libsystemd", "252.39-1~deb12u2"),
		deb("systemd", "252.38-1", "Depends: libsystemd (= 252.38-1)"), deb("libsystemd", "252.38-1"),
		deb("systemd-boot-efi", "252.39-1~deb12u2", "Source: systemd"),
		deb("librdkafka++1", "1:2.10~rc1-1.cflt~ubu22", "Source: librdkafka (2.9)"),
		deb("nvidia-open-kernel-dkms", "570.124.06-1"), deb("libnvidia-compute-570", "570.124.04-1"),
	}, "")
}

// newRecipe asks the archive below base for the default kernel and packages.
func newRecipe(t *testing.T, a *archive, base string, packages ...string) *recipe.Recipe {
	t.Helper()
	return loadRecipe(t, a, base, "linux-image-6.1.0-50-amd64", packages...)
}

func loadRecipe(t *testing.T, a *archive, base, kernel string, packages ...string) *recipe.Recipe {
	t.Helper()
	text := fmt.Sprintf("name: tiny\nversion: \"1\"\nbase:\n  distribution: debian\n  release: stable\n  keyring: %s\n  sources:\n    - uri: %s\n      suites: [stable]\n      components: [main]\nkernel:\n  package: %s\npackages:\n",
		a.key.keyring, a.URL+base, kernel)
	for _, p := range append(packages, "kmod") {
		text += "  - " + p + "\n"
	}
	path := filepath.Join(t.TempDir(), "r.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := recipe.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
