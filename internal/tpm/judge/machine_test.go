package judge_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/initrd"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/secureboot"
	"github.com/turnout-project/turnout/internal/tpm/eventlog"
	"github.com/turnout-project/turnout/internal/tpm/judge"
	"github.com/turnout-project/turnout/internal/tpm/measure"
	"github.com/turnout-project/turnout/internal/tpm/quote"
	"github.com/turnout-project/turnout/internal/uki"
)

var (
	update = flag.Bool("update", false, "write what the machines showed to testdata")
	efiDir = flag.String("efi", "/usr/lib/systemd/boot/efi", "folder of systemd's EFI stub and loader")
)

// evidence is what testdata/dumpinit prints.
type evidence struct {
	EK, AK, Nonce, Log     []byte
	Quote, Signature       []byte
	PCRs                   map[int][]byte
	Quote384, Signature384 []byte
	PCRs384                map[int][]byte
	TPM                    string
}

// lab has what the machines are made of.
type lab struct {
	kernel, init, stub, loader []byte
	nonce                      []byte
}

// newLab skips the test, or fails it where CI is set, if something is
// missing.
func newLab(t *testing.T) *lab {
	t.Helper()
	if testing.Short() {
		t.Skip("boots machines")
	}
	lacks := func(err error) {
		t.Helper()
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	for _, tool := range []string{"qemu-system-x86_64", "swtpm", "mformat", "mcopy", "dpkg-deb", "apt-get"} {
		if _, err := exec.LookPath(tool); err != nil {
			lacks(err)
		}
	}
	l := &lab{nonce: make([]byte, 32)}
	rand.Read(l.nonce) //nolint:errcheck // never fails
	for name, b := range map[string]*[]byte{"linuxx64.efi.stub": &l.stub, "systemd-bootx64.efi": &l.loader} {
		var err error
		if *b, err = os.ReadFile(filepath.Join(*efiDir, name)); err != nil {
			lacks(err)
		}
	}
	var err error
	if l.kernel, err = debianKernel(t); err != nil {
		lacks(err)
	}
	bin := filepath.Join(t.TempDir(), "init")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", bin, "./testdata/dumpinit")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if l.init, err = os.ReadFile(bin); err != nil {
		t.Fatal(err)
	}
	return l
}

// debianKernel fetches the newest small kernel that apt knows.
func debianKernel(t *testing.T) ([]byte, error) {
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "apt-cache", "depends", "linux-image-cloud-amd64").Output()
	if err != nil {
		return nil, fmt.Errorf("apt-cache: %w", err)
	}
	pkg := regexp.MustCompile(`linux-image-[0-9][0-9a-z.+-]*-cloud-amd64`).Find(out)
	if pkg == nil {
		return nil, fmt.Errorf("apt knows no linux-image-cloud-amd64; run apt-get update")
	}
	cmd := exec.CommandContext(t.Context(), "apt-get", "-o", "APT::Sandbox::User=root", "download", string(pkg))
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("apt-get download %s: %w: %s", pkg, err, out)
	}
	debs, _ := filepath.Glob(filepath.Join(dir, "*.deb"))
	if len(debs) != 1 {
		return nil, fmt.Errorf("apt-get download gave %d packages", len(debs))
	}
	if out, err := exec.CommandContext(t.Context(), "dpkg-deb", "-x", debs[0], dir).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("dpkg-deb: %w: %s", err, out)
	}
	kernels, _ := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-*"))
	if len(kernels) != 1 {
		return nil, fmt.Errorf("%s holds %d kernels", debs[0], len(kernels))
	}
	return os.ReadFile(kernels[0])
}

// uki makes a UKI that runs dumpinit. Without no_timer_check the kernel
// panics now and then on a busy host: its check wants ten ticks of an emulated
// timer in time ("IO-APIC + timer doesn't work").
func (l *lab) uki(t *testing.T, mode string) []byte {
	t.Helper()
	var rd bytes.Buffer
	if err := initrd.Build(&rd, initrd.Contents{Init: l.init, Release: "any"}); err != nil {
		t.Fatal(err)
	}
	b, err := uki.Build(l.stub, []uki.Section{
		{Name: ".osrel", Data: []byte("ID=turnout\nIMAGE_ID=turnout\nVERSION_ID=1\nPRETTY_NAME=\"test machine\"\n")},
		{Name: ".cmdline", Data: fmt.Appendf(nil, "console=ttyS0 quiet panic=-1 no_timer_check mode=%s nonce=%x", mode, l.nonce)},
		{Name: ".uname", Data: []byte("6.1.0-test")},
		{Name: ".initrd", Data: rd.Bytes()},
		{Name: ".linux", Data: l.kernel},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// machine is how one boot differs from the plain one.
type machine struct {
	uki, loader []byte
	network     bool   // PXE from QEMU's own TFTP server instead of the disk
	code, vars  string // firmware files
	http        bool   // a network and no more: what is booted is in vars
}

// boot runs a machine and returns what dumpinit printed.
func boot(t *testing.T, m machine) evidence {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, b []byte) {
		t.Helper()
		if err := os.WriteFile(at(name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
	vars, err := os.ReadFile(m.vars)
	if err != nil {
		t.Fatal(err)
	}
	write("vars.fd", vars)
	write("uki.efi", m.uki)
	args := []string{
		"-machine", "q35,smm=on", "-global", "driver=cfi.pflash01,property=secure,value=on", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1024",
		"-display", "none", "-nodefaults", "-no-reboot", "-serial", "file:" + at("serial"),
		"-drive", "if=pflash,format=raw,unit=0,readonly=on,file=" + m.code,
		"-drive", "if=pflash,format=raw,unit=1,file=" + at("vars.fd"),
		"-chardev", "socket,id=tpm,path=" + at("tpm.sock"), "-tpmdev", "emulator,id=tpm0,chardev=tpm", "-device", "tpm-crb,tpmdev=tpm0",
		"-device", "virtio-rng-pci",
	}
	if m.http {
		args = append(args, "-netdev", "user,id=n", "-device", "virtio-net-pci,netdev=n,romfile=")
	} else if m.network {
		args = append(args, "-netdev", "user,id=n,tftp="+dir+",bootfile=uki.efi", "-device", "virtio-net-pci,netdev=n,romfile=,bootindex=1")
	} else {
		write("loader.efi", m.loader)
		write("loader.conf", []byte("timeout 0\n"))
		run("truncate", "-s", "100M", at("esp.img"))
		run("mformat", "-i", at("esp.img"), "-F", "::")
		run("mmd", "-i", at("esp.img"), "::/EFI", "::/EFI/BOOT", "::/EFI/Linux", "::/loader")
		run("mcopy", "-i", at("esp.img"), at("loader.efi"), "::/EFI/BOOT/BOOTX64.EFI")
		run("mcopy", "-i", at("esp.img"), at("uki.efi"), "::/EFI/Linux/g000001-aaaaaaaaaaaa.efi")
		run("mcopy", "-i", at("esp.img"), at("loader.conf"), "::/loader/loader.conf")
		args = append(args, "-drive", "if=none,id=d,format=raw,file="+at("esp.img"), "-device", "virtio-blk-pci,drive=d,bootindex=1")
	}
	tpm := exec.CommandContext(ctx, "swtpm", "socket", "--tpm2", "--tpmstate", "dir="+dir, "--ctrl", "type=unixio,path="+at("tpm.sock"))
	if err := tpm.Start(); err != nil {
		t.Fatal(err)
	}
	defer tpm.Wait()         //nolint:errcheck // killed
	defer tpm.Process.Kill() //nolint:errcheck // it ends with QEMU
	for ctx.Err() == nil {
		if _, err := os.Stat(at("tpm.sock")); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	start := time.Now()
	out, err := exec.CommandContext(ctx, "qemu-system-x86_64", args...).CombinedOutput()
	serial, _ := os.ReadFile(at("serial")) //nolint:errcheck // empty then
	t.Logf("machine ran for %.0f s", time.Since(start).Seconds())
	_, line, ok := strings.Cut(string(serial), "EVIDENCE ")
	if err != nil || !ok {
		t.Fatalf("qemu: %v %s\nserial console:\n%s", err, out, serial)
	}
	line, _, _ = strings.Cut(line, "\n")
	var e evidence
	if err := json.Unmarshal([]byte(strings.TrimSpace(line)), &e); err != nil {
		t.Fatalf("%v in %q", err, line)
	}
	return e
}

// judgeBoth verifies the quotes of both banks and judges them.
func judgeBoth(t *testing.T, e evidence, m *manifest.Manifest, path string, stage fleet.Stage) map[string]fleet.Verdict {
	t.Helper()
	out := map[string]fleet.Verdict{}
	for _, b := range []struct {
		name   string
		quote  []byte
		sig    []byte
		values map[int][]byte
	}{{"sha256", e.Quote, e.Signature, e.PCRs}, {"sha384", e.Quote384, e.Signature384, e.PCRs384}} {
		a, err := quote.Verify(quote.Expect{AK: e.AK, Nonce: e.Nonce, Bank: b.name, PCRs: judge.Selection}, b.quote, b.sig, b.values)
		if err != nil {
			t.Fatal(err)
		}
		out[b.name] = judge.Judge(judge.Input{
			Manifest: m, Digest: manifest.DigestOf([]byte("image")), Path: path, Stage: stage, Bank: b.name, PCRs: a.PCRs, Log: e.Log,
		})
	}
	return out
}

// predict makes the manifest that the builder would.
func predict(t *testing.T, slot, installer, loader []byte) *manifest.Manifest {
	t.Helper()
	ms, err := measure.Predict(measure.Input{UKI: slot, Installer: installer, Loader: loader})
	if err != nil {
		t.Fatal(err)
	}
	return &manifest.Manifest{SchemaVersion: manifest.Version, Name: "test", Version: "1", Measurements: ms}
}

// Real firmware, real loader, real stub, real kernel, software TPM: what was
// predicted is what is measured, and what was changed is named.
func TestMachine(t *testing.T) {
	l := newLab(t)
	slot, installer := l.uki(t, "system"), l.uki(t, "installer")
	m := predict(t, slot, installer, l.loader)
	changed := bytes.Replace(slot, []byte("test machine"), []byte("evil machine"), 1)
	version := strings.SplitN(m.Measurements.StubVersion, ".", 2)[0]
	const plainCode, plainVars = "/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"

	keys, err := secureboot.Generate("Turnout test")
	if err != nil {
		t.Fatal(err)
	}
	signed := func(t *testing.T, pe []byte) []byte {
		t.Helper()
		b, err := keys.DB.Sign(pe)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, tt := range []struct {
		name    string
		machine func(t *testing.T) (machine, *manifest.Manifest)
		path    string
		stage   fleet.Stage
		apps    int // applications in PCR 4
		check   func(t *testing.T, v fleet.Verdict)
	}{
		{"disk", func(*testing.T) (machine, *manifest.Manifest) {
			return machine{uki: slot, loader: l.loader, code: plainCode, vars: plainVars}, m
		}, "disk", fleet.StageSystem, 3, nil},
		{"network", func(*testing.T) (machine, *manifest.Manifest) {
			return machine{uki: slot, network: true, code: plainCode, vars: plainVars}, m
		}, "network", fleet.StageSystem, 2, nil},
		{"http", func(t *testing.T) (machine, *manifest.Manifest) {
			uri, taken := serve(t, slot)
			t.Cleanup(func() {
				if taken.Load() != 1 {
					t.Errorf("the firmware took the UKI by HTTP %d times; want once", taken.Load())
				}
			})
			return machine{uki: slot, http: true, code: plainCode, vars: uriBoot(t, plainVars, uri)}, m
		}, "network", fleet.StageSystem, 2, nil},
		{"secureboot", func(t *testing.T) (machine, *manifest.Manifest) {
			s, i, ld := signed(t, slot), signed(t, installer), signed(t, l.loader)
			return machine{uki: s, loader: ld, code: "/usr/share/OVMF/OVMF_CODE_4M.secboot.fd", vars: enrolled(t, keys, plainVars)}, predict(t, s, i, ld)
		}, "disk", fleet.StageSystem, 2, nil},
		{"changed", func(*testing.T) (machine, *manifest.Manifest) {
			return machine{uki: changed, loader: l.loader, code: plainCode, vars: plainVars}, m
		}, "disk", fleet.StageSystem, 3, func(t *testing.T, v fleet.Verdict) {
			for _, want := range []string{"PCR 4 event ", "(UKI): expected ", "not the one that was built", "section .osrel of the UKI differs"} {
				if v.Accepted || !strings.Contains(v.Summary, want) {
					t.Errorf("accepted %v: %s; want refused with %q", v.Accepted, v.Summary, want)
				}
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mach, mf := tt.machine(t)
			e := boot(t, mach)
			if n := applications(t, e.Log); n != tt.apps {
				t.Errorf("PCR 4 shows %d applications; want %d", n, tt.apps)
			}
			for bank, v := range judgeBoth(t, e, mf, tt.path, tt.stage) {
				t.Logf("%s: %s", bank, v.Summary)
				if tt.check != nil {
					tt.check(t, v)
					continue
				}
				if !v.Accepted || v.Path != tt.path {
					t.Errorf("%s verdict: %+v", bank, v)
				}
			}
			if *update {
				keep(t, fmt.Sprintf("ovmf-stub%s-%s", version, tt.name), e, mf, tt.path)
			}
		})
	}
}

// applications counts the programs in PCR 4 of a log.
func applications(t *testing.T, log []byte) int {
	t.Helper()
	l, err := eventlog.Parse(log)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range l.Events {
		if e.PCR == 4 && e.Type == eventlog.EFIBootServicesApp {
			n++
		}
	}
	return n
}

// enrolled writes a variable file of firmware that trusts keys.
func enrolled(t *testing.T, keys *secureboot.Keys, vars string) string {
	t.Helper()
	b, err := os.ReadFile(vars)
	if err != nil {
		t.Fatal(err)
	}
	if b, err = keys.EnrolOVMF(b); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "vars.fd")
	if err := os.WriteFile(out, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return out
}

// fixture is a kept boot: testdata/<machine>/evidence.json.
type fixture struct {
	Path         string
	AK, Nonce    string // base64
	Quote        string
	Signature    string
	PCRs         map[int]string // hex
	PCRs384      map[int]string
	Measurements manifest.Measurements
}

func keep(t *testing.T, name string, e evidence, m *manifest.Manifest, path string) {
	t.Helper()
	b64 := base64.StdEncoding.EncodeToString
	f := fixture{
		Path: path, AK: b64(e.AK), Nonce: b64(e.Nonce), Quote: b64(e.Quote), Signature: b64(e.Signature),
		PCRs: map[int]string{}, PCRs384: map[int]string{}, Measurements: m.Measurements,
	}
	for p := range e.PCRs {
		f.PCRs[p], f.PCRs384[p] = hex.EncodeToString(e.PCRs[p]), hex.EncodeToString(e.PCRs384[p])
	}
	dir := filepath.Join("testdata", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string][]byte{"evidence.json": append(b, '\n'), "eventlog.bin": e.Log} {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
