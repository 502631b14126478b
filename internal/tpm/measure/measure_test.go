package measure

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/uki"
)

func digest(bank, data string) string {
	h := newHash(bank)
	h.Write([]byte(data))
	return hex.EncodeToString(h.Sum(nil))
}

// Constants measured by real firmware, from logs of real machines.
func TestFirmwareConstants(t *testing.T) {
	for _, tt := range []struct{ bank, data, want string }{
		{"sha256", Separator, "df3f619804a92fdb4057192dc43dd748ea778adc52bc498ce80524c014b81119"},
		{"sha256", ActionCalling, "3d6772b4f84ed47595d72a2c4c5ffd15f5bb72c7507fe26f2aaee2c69d5633ba"},
		{"sha256", ActionReturning, "7044f06303e54fa96c3fcd1a0f11047c03d209074470b1fd60460c9f007e28a6"},
		{"sha384", Separator, "394341b7182cd227c5c6b07ef8000cdfd86136c4292b8e576573ad7ed9ae41019f5818b4b971c9effc60e1ad9f1289f0"},
		{"sha384", ActionCalling, "77a0dab2312b4e1e57a84d865a21e5b2ee8d677a21012ada819d0a98988078d3d740f6346bfe0abaa938ca20439a8d71"},
	} {
		if got := digest(tt.bank, tt.data); got != tt.want {
			t.Errorf("%s(%q) = %s; want %s", tt.bank, tt.data, got, tt.want)
		}
	}
	for bank, want := range map[string]string{
		"sha256": "3d458cfe55cc03ea1f443f1562beec8df51c75e14a9fcf9a7234a13f198e7969",
		"sha384": "518923b0f955d08da077c96aaba522b9decede61c599cea6c41889cfbea4ae4d50529d96fe4d1afdafb65e7f95bf23c4",
	} {
		p := NewPCR(bank)
		p.Measure([]byte(Separator))
		if p.Hex() != want {
			t.Errorf("%s PCR after the separator = %s; want %s", bank, p.Hex(), want)
		}
	}
	p := NewPCR("sha256") // PCR 4 of a Fedora 37 log in tpm2-tools, before its first application
	p.Measure([]byte(ActionCalling))
	p.Measure([]byte(Separator))
	if want := "7a94ffe8a7729a566d3d3c577fcb4b6b1e671f31540375f80eae6382ab785e35"; p.Hex() != want {
		t.Errorf("PCR 4 after Calling and separator = %s; want %s", p.Hex(), want)
	}
}

// The value that Talos's committed test vectors imply when every section
// holds its own name.
func TestSectionsGolden(t *testing.T) {
	p := NewPCR("sha256")
	for _, name := range sections257 {
		n, c := Section{Name: name, Data: []byte(name)}.digests("sha256")
		p.Extend(n)
		p.Extend(c)
	}
	p.MeasurePhase("enter-initrd:leave-initrd:enter-machined")
	if want := "535f91bd7887cccefedd0b0344b3ce7d4fc390f356b276960547502657258839"; p.Hex() != want {
		t.Errorf("PCR 11 = %s; want %s", p.Hex(), want)
	}
}

// readStub returns Debian's EFI stub.
func readStub(t *testing.T) []byte { return readEFI(t, "linuxx64.efi.stub") }

func readEFI(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/usr/lib/systemd/boot/efi", name))
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("%v; install systemd-boot-efi", err)
		}
		t.Skipf("%v; install systemd-boot-efi", err)
	}
	return b
}

// kernelPE stands for a kernel: any PE file will do.
func kernelPE(t *testing.T) []byte { return readEFI(t, "systemd-bootx64.efi") }

func build(t *testing.T, stub []byte, sections ...uki.Section) []byte {
	t.Helper()
	b, err := uki.Build(stub, sections)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// independent11 computes PCR 11 the plain way, from parts rather than a file.
func independent11(parts ...string) string {
	v := make([]byte, 32)
	for _, p := range parts {
		d, _ := hex.DecodeString(digest("sha256", p))
		d, _ = hex.DecodeString(digest("sha256", string(v)+string(d)))
		v = d
	}
	return hex.EncodeToString(v)
}

// Case C51.
func TestPCR11(t *testing.T) {
	stub, kernel := readStub(t), kernelPE(t)
	osrel := uki.Section{Name: ".osrel", Data: []byte("ID=turnout\n")}
	cmdline := uki.Section{Name: ".cmdline", Data: []byte("roothash=00")}
	initrd := uki.Section{Name: ".initrd", Data: bytes.Repeat([]byte("x"), 1000)}
	linux := uki.Section{Name: ".linux", Data: kernel}
	want := independent11(".linux\x00", string(kernel), ".osrel\x00", "ID=turnout\n", ".cmdline\x00", "roothash=00",
		".initrd\x00", strings.Repeat("x", 1000))
	for name, sections := range map[string][]uki.Section{
		"canonical order":      {linux, osrel, cmdline, initrd},
		"permuted":             {initrd, osrel, linux, cmdline},
		"with uname and sig":   {linux, osrel, cmdline, initrd, {Name: ".uname", Data: []byte("6.1")}, {Name: ".pcrsig", Data: []byte("{}")}},
		"with unknown section": {linux, osrel, cmdline, initrd, {Name: ".other", Data: []byte("?")}},
	} {
		t.Run(name, func(t *testing.T) {
			u, err := ReadUKI(build(t, stub, sections...))
			if err != nil {
				t.Fatal(err)
			}
			got := u.PCR11()
			if got[0].Phase != "" || got[0].PCR["sha256"] != want {
				t.Errorf("PCR 11 = %+v; want %s", got[0], want)
			}
		})
	}
	key := uki.Section{Name: ".pcrpkey", Data: []byte("key")}
	u, err := ReadUKI(build(t, stub, key, linux))
	if err != nil {
		t.Fatal(err)
	}
	want = independent11(".linux\x00", string(kernel), ".pcrpkey\x00", "key", "enter-initrd", "leave-initrd")
	if got := u.PCR11()[2]; got.Phase != "enter-initrd:leave-initrd" || got.PCR["sha256"] != want {
		t.Errorf("PCR 11 = %+v; want %s", got, want)
	}
}

// What the stub finds and what it measures changed from version to version.
func TestStubVersions(t *testing.T) {
	stub := readStub(t)
	as := func(v string) []byte { // the same stub, calling itself version v
		i := bytes.Index(stub, []byte("systemd-stub 252"))
		if i < 0 {
			t.Skip("the installed stub is not version 252")
		}
		b := bytes.Clone(stub)
		copy(b[i+len("systemd-stub "):], v)
		return b
	}
	linux := uki.Section{Name: ".linux", Data: kernelPE(t)}
	uname := uki.Section{Name: ".uname", Data: []byte("6.1.0")}
	names := func(u *UKI) (n []string) {
		for _, s := range u.Sections {
			n = append(n, s.Name)
		}
		return n
	}
	for v, want := range map[string][]string{
		"252": {".linux"},
		"254": {".linux", ".uname", ".sbat"},
		"257": {".linux", ".uname", ".sbat"},
	} {
		u, err := ReadUKI(build(t, as(v), uname, linux))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, names(u)); d != "" {
			t.Errorf("stub %s measures (-want +got):\n%s", v, d)
		}
	}
	for name, tt := range map[string]struct {
		version string
		extra   uki.Section
		want    string
	}{
		"unknown version":        {"259", uname, "what it measures is not known"},
		"auto device tree":       {"257", uki.Section{Name: ".dtbauto", Data: []byte("d")}, "depend on the machine"},
		"profile":                {"257", uki.Section{Name: ".profile", Data: []byte("p")}, "depend on the machine"},
		"name compared by start": {"252", uki.Section{Name: ".dtbauto", Data: []byte("d")}, "could be taken for"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadUKI(build(t, as(tt.version), linux, tt.extra))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("ReadUKI error = %v; want one with %q", err, tt.want)
			}
		})
	}
}

// Padding counts: what is measured is the section as it lies in memory.
func TestPadding(t *testing.T) {
	b := build(t, readStub(t), uki.Section{Name: ".linux", Data: kernelPE(t)}, uki.Section{Name: ".osrel", Data: []byte("a")})
	i := bytes.Index(b, []byte(".osrel\x00\x00"))
	b[i+8], b[i+9] = 0x00, 0x10 // VirtualSize 4096
	u, err := ReadUKI(b)
	if err != nil {
		t.Fatal(err)
	}
	want := independent11(".linux\x00", string(kernelPE(t)), ".osrel\x00", "a"+strings.Repeat("\x00", 4095))
	if got := u.PCR11()[0].PCR["sha256"]; got != want {
		t.Errorf("PCR 11 = %s; want %s", got, want)
	}
	copy(b[i+8:], "\xff\xff\xff\x7f")
	if _, err := ReadUKI(b); err == nil {
		t.Error("ReadUKI accepted a section 2 GiB larger in memory than in the file")
	}
}

func TestPredict(t *testing.T) {
	stub, loader := readStub(t), kernelPE(t)
	linux := uki.Section{Name: ".linux", Data: loader}
	in := Input{
		UKI:       build(t, stub, linux, uki.Section{Name: ".cmdline", Data: []byte("roothash=1")}),
		Installer: build(t, stub, linux, uki.Section{Name: ".cmdline", Data: []byte("turnout.mode=installer")}),
		Loader:    loader,
	}
	m, err := Predict(in)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{
		"disk":      {AppLoader, AppUKI, AppKernel},
		"network":   {AppUKI, AppKernel},
		"installer": {AppInstaller, AppKernel},
	}
	got := map[string][]string{}
	for _, p := range m.Paths {
		for _, a := range p.Applications {
			got[p.Name] = append(got[p.Name], a.Name)
			if a.Optional != (a.Name == AppKernel) {
				t.Errorf("%s: %s optional = %v", p.Name, a.Name, a.Optional)
			}
		}
		if len(p.PCR4["sha256"]) != 64 || len(p.PCR4["sha384"]) != 96 {
			t.Errorf("%s: PCR 4 = %v", p.Name, p.PCR4)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("applications (-want +got):\n%s", d)
	}
	if m.PCR11[0].PCR["sha256"] == m.Installer11[0].PCR["sha256"] {
		t.Error("both UKIs have one PCR 11")
	}
	if len(m.Sections) != 2 || m.Sections[1].Name != ".cmdline" || m.Sections[1].Digest["sha256"] != digest("sha256", "roothash=1") {
		t.Errorf("sections = %+v", m.Sections)
	}
	if want := digest("sha256", "r\x00o\x00o\x00t\x00h\x00a\x00s\x00h\x00=\x001\x00\x00\x00"); m.Cmdline["sha256"] != want {
		t.Errorf("cmdline event = %v; want %s", m.Cmdline, want)
	}
	in.Loader = []byte("MZ")
	if _, err := Predict(in); err == nil {
		t.Error("Predict accepted a loader that is no PE file")
	}
}

func TestCmdlineDigests(t *testing.T) {
	want, err := cmdlineDigests([]byte("a b"))
	if err != nil || want == nil {
		t.Fatal(want, err)
	}
	for _, same := range []string{"a b\n", "a\tb \r\n ", "a b\x00c"} {
		if got, err := cmdlineDigests([]byte(same)); err != nil || !cmp.Equal(want, got) {
			t.Errorf("cmdlineDigests(%q) = %v, %v; want %v", same, got, err, want)
		}
	}
	if got, err := cmdlineDigests([]byte(" \n")); err != nil || got != nil {
		t.Errorf("cmdlineDigests of nothing = %v, %v", got, err)
	}
	if _, err := cmdlineDigests([]byte("ä")); err == nil {
		t.Error("a command line that is not ASCII was accepted")
	}
}

// The digest that sbsign puts into a signature is the digest of the file
// before (padded) and after signing.
func TestAuthenticodeAgainstSbsign(t *testing.T) {
	for _, tool := range []string{"sbsign", "openssl"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
	dir := t.TempDir()
	key, crt, in, out := filepath.Join(dir, "k"), filepath.Join(dir, "c"), filepath.Join(dir, "in"), filepath.Join(dir, "out")
	run := func(args ...string) {
		t.Helper()
		if b, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, b)
		}
	}
	run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=test", "-keyout", key, "-out", crt)
	for name, file := range map[string][]byte{
		"loader": kernelPE(t),
		"uki":    build(t, readStub(t), uki.Section{Name: ".linux", Data: kernelPE(t)}),
	} {
		t.Run(name, func(t *testing.T) {
			for len(file)%8 != 0 {
				file = append(file, 0)
			}
			if err := os.WriteFile(in, file, 0o600); err != nil {
				t.Fatal(err)
			}
			run("sbsign", "--key", key, "--cert", crt, "--output", out, in)
			signed, err := os.ReadFile(out)
			if err != nil {
				t.Fatal(err)
			}
			before, err := Authenticode(file)
			if err != nil {
				t.Fatal(err)
			}
			after, err := Authenticode(signed)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(before, after); d != "" {
				t.Errorf("signing changed the digest:\n%s", d)
			}
			raw, _ := hex.DecodeString(before["sha256"])
			if !bytes.Contains(signed[len(file):], raw) {
				t.Errorf("digest %s is not in the signature made by sbsign", before["sha256"])
			}
		})
	}
}

// Nothing may panic, and no error may come with a result.
func FuzzReadUKI(f *testing.F) {
	f.Add([]byte("MZ"))
	if b, err := os.ReadFile("/usr/lib/systemd/boot/efi/linuxx64.efi.stub"); err == nil {
		f.Add(b)
		f.Add(b[:4096])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if d, err := Authenticode(b); (err == nil) == (d == nil) {
			t.Errorf("Authenticode returned %v and %v", d, err)
		}
		if u, err := ReadUKI(b); (err == nil) == (u == nil) {
			t.Errorf("ReadUKI returned %v and %v", u, err)
		}
	})
}

// Random damage to a real file must never panic.
func TestDamaged(t *testing.T) {
	good := build(t, readStub(t), uki.Section{Name: ".linux", Data: kernelPE(t)})
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		b := bytes.Clone(good)
		for range 1 + r.IntN(4) {
			b[r.IntN(1024)] = byte(r.Uint32())
		}
		im, err := parsePE(b)
		if err != nil {
			continue
		}
		im.authenticodeParts() //nolint:errcheck // only panics matter
		if v, err := im.stubVersion(); err == nil {
			ruleFor(v) //nolint:errcheck // only panics matter
		}
	}
	for n := 0; n < len(good); n += 97 {
		if _, err := ReadUKI(good[:n]); err == nil {
			t.Fatalf("ReadUKI accepted a file cut at %d of %d bytes", n, len(good))
		}
	}
}
