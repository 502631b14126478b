package sdboot_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/abslot/crashtest"
	"github.com/turnout-project/turnout/internal/abslot/guest"
	"github.com/turnout-project/turnout/internal/abslot/sdboot"
	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/disk/fatdir"
	"github.com/turnout-project/turnout/internal/efivar"
	"github.com/turnout-project/turnout/internal/uki"
)

const (
	loaderFile = "/usr/lib/systemd/boot/efi/systemd-bootx64.efi"
	stubFile   = "/usr/lib/systemd/boot/efi/linuxx64.efi.stub"
	ovmfCode   = "/usr/share/OVMF/OVMF_CODE_4M.fd"
	ovmfVars   = "/usr/share/OVMF/OVMF_VARS_4M.fd"
	loaderGUID = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f" // systemd's vendor GUID
	osrel      = "ID=turnout-test\nVERSION_ID=1\nIMAGE_ID=turnout-test\nIMAGE_VERSION=1\nPRETTY_NAME=test\n"
)

// In a guest this program says which entry was started.
func TestMain(m *testing.M) {
	if !guest.IsInit() {
		os.Exit(m.Run())
	}
	guest.Main(func() error {
		const vars = "/sys/firmware/efi/efivars"
		if err := unix.Mount("efivarfs", vars, "efivarfs", 0, ""); err != nil {
			return err
		}
		entry, err := efivar.String(vars, "LoaderEntrySelected", loaderGUID)
		if err != nil {
			return err
		}
		counted, err := efivar.String(vars, "LoaderBootCountPath", loaderGUID)
		if err != nil || counted == "" {
			counted = "none"
		}
		cmdline, err := os.ReadFile("/proc/cmdline")
		fmt.Printf("@@ %s %s %s\n", entry, counted, strings.Fields(string(cmdline))[0])
		return err
	})
}

// TestAgainstLoader starts a virtual machine with the real loader on real
// firmware once per row, and holds what it did against the model: which file
// was started, what it is called afterwards, what the variables say. The
// writes of the firmware are recorded, and the power is cut at each.
func TestAgainstLoader(t *testing.T) {
	loader, stub := loaderFile, stubFile
	if dir := os.Getenv("TURNOUT_TEST_LOADERS"); dir != "" { // of another release
		loader, stub = filepath.Join(dir, filepath.Base(loaderFile)), filepath.Join(dir, filepath.Base(stubFile))
	}
	guest.NeedFile(t, loader, stub, ovmfCode, ovmfVars)
	lab := newLab(t, loader, stub)
	for _, tt := range []struct {
		name  string
		files []string // nil goes on with what the loader left
	}{
		{"armed", []string{"g000001-aaaaaaaaaaaa.efi", "g000002-bbbbbbbbbbbb+2.efi"}},
		{"trying", nil},
		{"out of tries", nil},
		{"all bad", []string{"g000001-aaaaaaaaaaaa+0-50.efi", "g000002-bbbbbbbbbbbb+0-2.efi"}},
		{"generations are numbers, remnants go last", []string{"G00000~1.EFI", "g1000000-bbbbbbbbbbbb+3.efi", "g999999-aaaaaaaaaaaa.efi", "cccccccccccc.new"}},
		{"two names of one stem", []string{"g000001-aaaaaaaaaaaa.efi", "g000002-bbbbbbbbbbbb+1-1.efi", "g000002-bbbbbbbbbbbb.efi"}},
	} {
		if !t.Run(tt.name, func(t *testing.T) { lab.boot(t, tt.files) }) {
			return
		}
	}
	t.Run("the firmware refuses the rename", lab.refused)
	t.Logf("visited %d states of the firmware's renames", lab.states)
}

// lab is a disk, and what can be started from it.
type lab struct {
	dir     string
	kernel  guest.Kernel
	initrd  []byte
	loader  []byte
	stub    []byte
	layout  disk.Layout
	esp     disk.Partition
	content map[[32]byte]bool // UKIs that were put on the disk
	states  int
}

func newLab(t *testing.T, loader, stub string) *lab {
	l := &lab{dir: t.TempDir(), kernel: guest.DebianKernel(t), content: map[[32]byte]bool{}}
	l.initrd = l.kernel.Initrd(t, guest.Build(t, "test", "-c", "."), "efivarfs")
	var err error
	if l.loader, err = os.ReadFile(loader); err != nil {
		t.Fatal(err)
	}
	if l.stub, err = os.ReadFile(stub); err != nil {
		t.Fatal(err)
	}
	g := disk.Geometry{SizeBytes: 640 * disk.MiB, SectorSize: 512}
	if l.layout, err = disk.Plan(g, disk.Want{RootBytes: disk.MiB, ESPBytes: 300 * disk.MiB}); err != nil {
		t.Fatal(err)
	}
	if l.esp, err = l.layout.Partition(disk.LabelESP); err != nil {
		t.Fatal(err)
	}
	return l
}

// refused makes a UKI read-only, so that the firmware does not open it for
// writing: the loader starts it all the same, without a word that it counted,
// which is what abslot.Recount goes by.
func (l *lab) refused(t *testing.T) {
	const file = "g000002-bbbbbbbbbbbb+2.efi"
	guest.Need(t, "mattrib")
	files := []string{"g000001-aaaaaaaaaaaa.efi", file}
	l.format(t, files)
	guest.Output(t, "", "mattrib", "+r", "-i", fmt.Sprintf("%s@@%d", l.path("disk.img"), l.esp.StartBytes), "::EFI/Linux/"+file)
	console := l.run(t)
	if diff := cmp.Diff(files, slices.Sorted(slices.Values(l.names(t, nil)))); diff != "" {
		t.Errorf("files after the boot (-before +after):\n%s", diff)
	}
	_, said, ok := strings.Cut(console, "@@ ")
	if words := strings.Fields(said); !ok || len(words) < 3 || words[2] != "turnout.entry=g000002-bbbbbbbbbbbb" || !abslot.NeedsRecount(files, words[0], strings.TrimPrefix(words[1], "none")) {
		t.Errorf("the guest said:\n%s", console)
	}
}

func (l *lab) path(name string) string { return filepath.Join(l.dir, name) }

// boot puts files on a fresh disk, starts it once and compares.
func (l *lab) boot(t *testing.T, files []string) {
	if files != nil {
		l.format(t, files)
	}
	before := l.names(t, nil)
	selected, _ := sdboot.Select(before)
	wantFile, want, _ := sdboot.Boot(before)
	console := l.run(t)
	got := l.names(t, nil)
	if diff := cmp.Diff(slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(got))); diff != "" {
		t.Errorf("files after the boot (-model +loader):\n%s", diff)
	}
	counted := "none"
	if !slices.Equal(before, want) {
		counted = `\EFI\Linux\` + wantFile
	}
	// systemd-boot of Debian 12 names the entry with its counter, that of 13 without.
	var lines []string
	for _, id := range []string{sdboot.ID(selected), stem(selected) + ".efi"} {
		lines = append(lines, fmt.Sprintf("@@ %s %s turnout.entry=%s", id, counted, stem(wantFile)))
	}
	if !strings.Contains(console, lines[0]) && !strings.Contains(console, lines[1]) {
		t.Errorf("the model says %q; the guest said:\n%s", lines, console)
	}
	l.cutPower(t, before, want)
}

// stem names a UKI whatever its counters.
func stem(file string) string {
	s, _, _ := strings.Cut(strings.TrimSuffix(sdboot.ID(file), ".efi"), "+")
	return s
}

func (l *lab) format(t *testing.T, files []string) {
	t.Helper()
	image := l.path("disk.img")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, l.layout.SizeBytes); err != nil {
		t.Fatal(err)
	}
	kernel, err := os.ReadFile(l.kernel.Image)
	if err != nil {
		t.Fatal(err)
	}
	content := disk.ESPFiles("amd64", l.loader)
	for _, f := range files {
		u, err := uki.Build(l.stub, []uki.Section{
			{Name: ".osrel", Data: []byte(osrel)},
			{Name: ".cmdline", Data: []byte("turnout.entry=" + stem(f) + " console=ttyS0 quiet panic=-1")},
			{Name: ".initrd", Data: l.initrd}, {Name: ".linux", Data: kernel},
		})
		if err != nil {
			t.Fatal(err)
		}
		content["EFI/Linux/"+f] = u
		l.content[sha256.Sum256(u)] = true
	}
	if err := disk.Create(t.Context(), image, l.layout, content); err != nil {
		t.Fatal(err)
	}
}

// run starts the machine and keeps the disk as it was before.
func (l *lab) run(t *testing.T) string {
	t.Helper()
	guest.Output(t, "", "cp", "--sparse=always", l.path("disk.img"), l.path("before.img"))
	guest.Output(t, "", "cp", ovmfVars, l.path("vars.fd"))
	if err := os.WriteFile(l.path("log.img"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return guest.Run(t, "-machine", "q35",
		"-drive", "if=pflash,format=raw,readonly=on,file="+ovmfCode, "-drive", "if=pflash,format=raw,file="+l.path("vars.fd"),
		"-blockdev", "driver=file,node-name=data,filename="+l.path("disk.img"),
		"-blockdev", "driver=file,node-name=log,filename="+l.path("log.img"),
		"-blockdev", "driver=blklogwrites,node-name=disk,file=data,log=log",
		"-device", "virtio-blk-pci,drive=disk,write-cache=on,bootindex=0")
}

// names returns the files in EFI/Linux in directory order, of the disk or of
// a state of it.
func (l *lab) names(t *testing.T, r io.ReaderAt) []string {
	t.Helper()
	if r == nil {
		f, err := os.Open(l.path("disk.img"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r = f
	}
	names, _ := l.read(t, r)
	return names
}

func (l *lab) read(t *testing.T, r io.ReaderAt) (names []string, content map[string][32]byte) {
	t.Helper()
	v, err := fatdir.Open(r, l.esp.StartBytes)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := v.List("EFI/Linux")
	if err != nil {
		t.Fatal(err)
	}
	content = map[string][32]byte{}
	for _, e := range entries {
		b, err := v.ReadFile(e)
		if err != nil {
			t.Fatal(err)
		}
		names, content[e.Name] = append(names, e.Name), sha256.Sum256(b)
	}
	return names, content
}

// cutPower checks every state in which a cut during the boot leaves the disk:
// what was not being counted is untouched, and the loader, started again,
// takes a whole UKI.
func (l *lab) cutPower(t *testing.T, before, after []string) {
	base, err := os.Open(l.path("before.img"))
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	logFile, err := os.Open(l.path("log.img"))
	if err != nil {
		t.Fatal(err)
	}
	defer logFile.Close()
	ops, err := crashtest.ReadLog(logFile)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	err = crashtest.Log{Base: base, Ops: ops}.States(crashtest.Bounds{AllSubsets: 10, Random: 50}, func(where string, s *crashtest.State) error {
		l.states++
		names, content := l.read(t, s)
		seen[strings.Join(names, " ")]++
		for _, f := range before {
			if slices.Contains(after, f) && !slices.Contains(names, f) {
				return fmt.Errorf("%s: %s is gone: %q", where, f, names)
			}
		}
		selected, ok := sdboot.Select(names)
		if !ok || !l.content[content[selected]] {
			return fmt.Errorf("%s: the loader would start %q, no whole UKI, of %q", where, selected, names)
		}
		return nil
	})
	if err != nil {
		t.Errorf("power cut %v", err)
	}
	for _, n := range slices.Sorted(maps.Keys(seen)) {
		t.Logf("%d writes and flushes; %d states show %s", len(ops), seen[n], n)
	}
}
