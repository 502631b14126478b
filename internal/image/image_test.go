package image

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/recipe"
)

func testRecipe() *recipe.Recipe {
	r := &recipe.Recipe{Path: "/nowhere/r.yaml", Digest: "sha256:1", Name: "demo", Version: "1", Architecture: "amd64"}
	r.Boot = manifest.Boot{Watchdog: manifest.Duration(time.Minute), Verify: "full"}
	r.Kernel.Cmdline = []string{"mitigations=auto", "panic=0"}
	return r
}

func TestSlotCmdline(t *testing.T) {
	got := slotCmdline(testRecipe(), "ab12")
	want := "console=tty0 console=ttyS0,115200 panic=10 oops=panic systemd.gpt_auto=0 systemd.verity=0 loglevel=5 " +
		"mitigations=auto panic=0 ro roothash=ab12 turnout.watchdog=60 turnout.verify=full"
	if got != want {
		t.Errorf("slotCmdline = %q; want %q", got, want)
	}
	r := &recipe.Recipe{Architecture: "arm64"}
	if got, want := slotCmdline(r, "00"), "console=tty0 console=ttyAMA0,115200 panic=10 oops=panic systemd.gpt_auto=0 systemd.verity=0 loglevel=5 ro roothash=00"; got != want {
		t.Errorf("slotCmdline = %q; want %q", got, want)
	}
	if got := installerCmdline(r); !strings.HasSuffix(got, " turnout.mode=installer") || strings.Contains(got, "roothash") {
		t.Errorf("installerCmdline = %q", got)
	}
}

func TestCheckCmdline(t *testing.T) {
	r := testRecipe()
	if err := checkCmdline(r); err != nil {
		t.Error(err)
	}
	r.Kernel.Cmdline = append(r.Kernel.Cmdline, "roothash=00")
	var fault *recipe.Error
	if err := checkCmdline(r); !errors.As(err, &fault) || !strings.Contains(err.Error(), "roothash") {
		t.Errorf("checkCmdline = %v; want a recipe error about roothash", err)
	}
}

// Only the generation in a file name may order two images.
func TestOsReleaseDiffersInPrettyNameOnly(t *testing.T) {
	strip := func(s string) string {
		var b strings.Builder
		for l := range strings.Lines(s) {
			if !strings.HasPrefix(l, "PRETTY_NAME=") {
				b.WriteString(l)
			}
		}
		return b.String()
	}
	one, two := osRelease("demo 1"), osRelease("a\"b`c$d\\e\nf 2")
	if strip(one) != strip(two) || one == two {
		t.Errorf("osRelease gives\n%s\n%s", one, two)
	}
	if !strings.Contains(two, `PRETTY_NAME="Turnout a\"b`+"\\`"+`c\$d\\e f 2"`) {
		t.Errorf("the label is not quoted: %s", two)
	}
}

func TestInputs(t *testing.T) {
	dir := t.TempDir()
	agent := filepath.Join(dir, "agent")
	write(t, agent, "agent 1")
	write(t, filepath.Join(dir, "motd"), "hello")
	base := func() (*recipe.Recipe, *lock.File) {
		r := testRecipe()
		r.Path = filepath.Join(dir, "r.yaml")
		r.Files = []recipe.File{{Path: "/etc/motd", Source: "motd"}}
		return r, &lock.File{Kernel: "linux-image-1", SourceDateEpoch: 7}
	}
	r, f := base()
	first, err := digestInputs(r, f, agent, []byte("trust"))
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		change func(r *recipe.Recipe, f *lock.File)
		root   bool // the root file system changes too
	}{
		{"command line", func(r *recipe.Recipe, _ *lock.File) { r.Kernel.Cmdline, r.Digest = nil, "sha256:2" }, false},
		{"label", func(r *recipe.Recipe, _ *lock.File) {
			r.Labels, r.Digest = map[string]string{"a": "b"}, "sha256:2"
		}, false},
		{"stub", func(_ *recipe.Recipe, f *lock.File) { f.Tools = []lock.Package{{Name: "systemd-boot-efi"}} }, false},
		{"package", func(_ *recipe.Recipe, f *lock.File) { f.Packages = []lock.Package{{Name: "kmod"}} }, true},
		{"epoch", func(_ *recipe.Recipe, f *lock.File) { f.SourceDateEpoch = 8 }, true},
		{"version", func(r *recipe.Recipe, _ *lock.File) { r.Version, r.Digest = "2", "sha256:2" }, true},
		{"file", func(r *recipe.Recipe, _ *lock.File) {
			write(t, filepath.Join(dir, "motd"), "bye")
			r.Digest = "sha256:2"
		}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			write(t, filepath.Join(dir, "motd"), "hello")
			r, f := base()
			tt.change(r, f)
			got, err := digestInputs(r, f, agent, []byte("trust"))
			if err != nil {
				t.Fatal(err)
			}
			if got.all == first.all {
				t.Error("the change is not part of the image's inputs")
			}
			if (got.root != first.root) != tt.root {
				t.Errorf("root inputs changed: %v; want %v", got.root != first.root, tt.root)
			}
		})
	}
	write(t, filepath.Join(dir, "motd"), "hello")
	for name, in := range map[string]func() (inputs, error){
		"trust": func() (inputs, error) { return digestInputs(r, f, agent, []byte("other")) },
		"agent": func() (inputs, error) {
			write(t, agent, "agent 2")
			return digestInputs(r, f, agent, []byte("trust"))
		},
	} {
		if got, err := in(); err != nil || got.root == first.root || got.all == first.all {
			t.Errorf("%s: %+v, %v; want other inputs", name, got, err)
		}
	}
}

func TestDerivedUUID(t *testing.T) {
	u := uuidString(derivedUUID("verity UUID", "sha256:1"))
	if len(u) != 36 || u[14] != '8' || !strings.ContainsRune("89ab", rune(u[19])) {
		t.Errorf("uuid %s is not of version 8", u)
	}
	if u == uuidString(derivedUUID("verity UUID", "sha256:2")) || u == uuidString(derivedUUID("sbom", "sha256:1")) {
		t.Error("two inputs give one UUID")
	}
}

func TestChunker(t *testing.T) {
	for _, size := range []int{0, 1, chunkSize - 1, chunkSize, chunkSize + 1, 2*chunkSize + 5} {
		data := bytes.Repeat([]byte("turnout"), size/7+1)[:size]
		c := newChunker()
		for rest := data; len(rest) > 0; {
			n, err := c.Write(rest[:min(len(rest), 1<<20+3)])
			if err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		want := manifest.Blob{Digest: manifest.DigestOf(data), SizeBytes: int64(size), ChunkSize: chunkSize}
		for rest := data; len(rest) > 0; {
			n := min(len(rest), chunkSize)
			s := sha256.Sum256(rest[:n])
			want.Chunks = append(want.Chunks, hex.EncodeToString(s[:]))
			rest = rest[n:]
		}
		if d := cmp.Diff(want, c.blob()); d != "" {
			t.Errorf("%d bytes (-want +got):\n%s", size, d)
		}
	}
}

func TestEncodeTrust(t *testing.T) {
	key := ed25519.NewKeyFromSeed(make([]byte, 32))
	other := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32))
	pem := func(k ed25519.PrivateKey) string {
		b, err := manifest.MarshalPublicKey(k.Public().(ed25519.PublicKey))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	b, err := encodeTrust(manifest.Trust{ImageKeys: pem(other) + pem(key)}, key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := manifest.DecodeTrust(b); err != nil {
		t.Error(err)
	}
	for name, keys := range map[string]string{"not its own key": pem(other), "no key": ""} {
		if _, err := encodeTrust(manifest.Trust{ImageKeys: keys}, key); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: encodeTrust = %v; want ErrOptions", name, err)
		}
	}
}

func TestCheckAgent(t *testing.T) {
	script := filepath.Join(t.TempDir(), "agent")
	write(t, script, "#!/bin/sh\n")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"script": script, "missing": script + "x", "dynamic": "/bin/true"} {
		if err := checkAgent(path, "amd64"); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: checkAgent = %v; want ErrOptions", name, err)
		}
	}
	if err := checkAgent(self, "arm64"); !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), "EM_AARCH64") {
		t.Errorf("checkAgent of another architecture = %v", err)
	}
}

func TestSBOM(t *testing.T) {
	f := &lock.File{Name: "demo", SourceDateEpoch: 1700000000,
		Packages: []lock.Package{{Name: "libstdc++6", Version: "12.2.0-14", Architecture: "amd64", Source: "gcc-12", URI: "http://deb.example/x.deb", SHA256: "ab"}},
		Tools:    []lock.Package{{Name: "systemd-boot-efi", Version: "252", Architecture: "amd64"}},
	}
	b, err := sbom(f, "1", "sha256:1")
	if err != nil {
		t.Fatal(err)
	}
	var doc spdxDocument
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	if doc.CreationInfo.Created != "2023-11-14T22:13:20Z" || len(doc.Packages) != 3 || len(doc.Relationships) != 3 {
		t.Errorf("sbom = %s", b)
	}
	p := doc.Packages[1]
	if p.SPDXID != "SPDXRef-Package-libstdc--6-amd64" || p.ExternalRefs[0].Locator != "pkg:deb/debian/libstdc%2B%2B6@12.2.0-14?arch=amd64" {
		t.Errorf("package = %+v", p)
	}
	ids := map[string]bool{"SPDXRef-DOCUMENT": true}
	for _, p := range doc.Packages {
		ids[p.SPDXID] = true
	}
	for _, r := range doc.Relationships {
		if !ids[r.Element] || !ids[r.Related] {
			t.Errorf("relationship %+v names what is not there", r)
		}
	}
}

func TestReplaceFolder(t *testing.T) {
	parent := t.TempDir()
	path := filepath.Join(parent, "out", "image")
	fill := func(text string) func(string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, "f"), []byte(text), 0o600) }
	}
	expect := func(want string) {
		t.Helper()
		if b, err := os.ReadFile(filepath.Join(path, "f")); err != nil || string(b) != want {
			t.Errorf("file is %q, %v; want %q", b, err, want)
		}
		if names, err := os.ReadDir(filepath.Dir(path)); err != nil || len(names) != 1 {
			t.Errorf("%d entries beside the image, %v; want it alone", len(names), err)
		}
	}
	for _, text := range []string{"one", "two"} {
		if err := replaceFolder(path, fill(text)); err != nil {
			t.Fatal(err)
		}
		expect(text)
	}
	broken := errors.New("disk is full")
	err := replaceFolder(path, func(dir string) error {
		return errors.Join(fill("three")(dir), broken)
	})
	if !errors.Is(err, broken) {
		t.Errorf("replaceFolder = %v; want the error of fill", err)
	}
	expect("two")
	// What a killed build left is removed by the next one.
	if err := os.MkdirAll(filepath.Join(filepath.Dir(path), ".image.new-123", "blobs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := replaceFolder(path, fill("four")); err != nil {
		t.Fatal(err)
	}
	expect("four")
}

func TestCheckOut(t *testing.T) {
	dir := t.TempDir()
	if err := checkOut(dir); err != nil {
		t.Errorf("an empty folder: %v", err)
	}
	if err := checkOut(filepath.Join(dir, "new")); err != nil {
		t.Errorf("a new folder: %v", err)
	}
	if _, err := oci.Create(filepath.Join(dir, "image")); err != nil {
		t.Fatal(err)
	}
	if err := checkOut(filepath.Join(dir, "image")); err != nil {
		t.Errorf("an image: %v", err)
	}
	for name, out := range map[string]string{"none": "", "something else": dir} {
		if err := checkOut(out); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: checkOut = %v; want ErrOptions", name, err)
		}
	}
}

func TestWorkFolder(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "work")
	living, err := newWorkFolder(parent, "demo")
	if err != nil {
		t.Fatal(err)
	}
	killed, err := newWorkFolder(parent, "demo")
	if err != nil {
		t.Fatal(err)
	}
	write(t, killed.path("left"), "x")
	if err := killed.lock.Close(); err != nil { // as the kernel does for a killed process
		t.Fatal(err)
	}
	third, err := newWorkFolder(parent, "demo")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(killed.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of a killed build is there: %v", err)
	}
	if _, err := os.Stat(living.dir); err != nil {
		t.Errorf("the folder of a living build is gone: %v", err)
	}
	living.remove()
	third.remove()
	if names, err := os.ReadDir(parent); err != nil || len(names) != 0 {
		t.Errorf("%d entries left, %v", len(names), err)
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}
