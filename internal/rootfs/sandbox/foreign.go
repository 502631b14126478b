package sandbox

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// miscDir is where the kernel is told who runs programs for other processors.
const miscDir = "/proc/sys/fs/binfmt_misc"

// native is the processor of the build host.
var native = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// emulator runs the programs of another processor.
type emulator struct {
	arch        string // as Debian and Go call it
	name        string // of the entry in miscDir
	programs    []string
	magic, mask string // of its programs' ELF headers, as binfmt_misc reads them
}

var emulators = map[elf.Machine]emulator{
	elf.EM_AARCH64: {"arm64", "turnout-aarch64", []string{"qemu-aarch64-static", "qemu-aarch64"},
		`\x7f\x45\x4c\x46\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00`,
		`\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff`},
	elf.EM_X86_64: {"amd64", "turnout-x86_64", []string{"qemu-x86_64-static", "qemu-x86_64"},
		`\x7f\x45\x4c\x46\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x3e\x00`,
		`\xff\xff\xff\xff\xff\xfe\xfe\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff`},
}

// canRun makes sure that this host runs the programs of the tree at root: as
// they are, or, if they are for another processor, through qemu-user. The
// kernel keeps what it is told until it restarts. Call it in a mount
// namespace of its own.
func canRun(root, hostArch string) error {
	tree, err := machineOf(filepath.Join(root, "bin/cat"))
	if err != nil || tree == native[hostArch] {
		return err
	}
	e, known := emulators[tree]
	if !known {
		return fmt.Errorf("its programs are for %s, which this host does not run", tree)
	}
	if _, err := os.Stat(filepath.Join(miscDir, "register")); err != nil {
		if err := unix.Mount("binfmt_misc", miscDir, "binfmt_misc", 0, ""); err != nil {
			return fmt.Errorf("its programs are for %s: mounting %s: %w; build on an %s host", e.arch, miscDir, err, e.arch)
		}
	}
	if handled(miscDir, e) {
		return nil
	}
	program, err := e.find()
	if err != nil {
		return err
	}
	// F: the kernel opens the emulator now, and needs no file of the tree.
	line := ":" + e.name + ":M::" + e.magic + ":" + e.mask + ":" + program + ":F"
	err = os.WriteFile(filepath.Join(miscDir, "register"), []byte(line), 0)
	if err != nil && !errors.Is(err, os.ErrExist) { // another build was first
		return fmt.Errorf("its programs are for %s: having %s run them: %w; build on an %s host", e.arch, program, err, e.arch)
	}
	return nil
}

// machineOf reads for which processor a program of the tree is.
func machineOf(path string) (elf.Machine, error) {
	f, err := elf.Open(path)
	if err != nil {
		return 0, fmt.Errorf("reading for which processor its programs are: %w", err)
	}
	return f.Machine, f.Close()
}

// handled reports whether the kernel knows who runs the emulator's programs,
// wherever their root is.
func handled(dir string, e emulator) bool {
	want := strings.ReplaceAll(e.magic, `\x`, "")
	entries, _ := filepath.Glob(filepath.Join(dir, "*"))
	for _, name := range entries {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		on, magic, fixed := false, false, false
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			on = on || line == "enabled"
			magic = magic || line == "magic "+want
			if flags, ok := strings.CutPrefix(line, "flags: "); ok {
				fixed = strings.Contains(flags, "F")
			}
		}
		if on && magic && fixed {
			return true
		}
	}
	return false
}

// find looks for an emulator that needs no libraries: there are none of this
// host in the tree.
func (e emulator) find() (string, error) {
	for _, name := range e.programs {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		if path, err = filepath.EvalSymlinks(path); err != nil || isDynamic(path) {
			continue
		}
		return path, nil
	}
	return "", fmt.Errorf("its programs are for %s: install qemu-user-static, which runs them here, or build on an %[1]s host", e.arch)
}

func isDynamic(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return true
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return true
		}
	}
	return false
}
