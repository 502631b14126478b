package kmod

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ulikunitz/xz"
)

// Module is a compiled kernel module.
type Module struct {
	File    string // name of its file, "nvidia-current-open-uvm.ko"
	Name    string // NVIDIA's, "nvidia-uvm"
	Version string
	Kernel  string // release of its vermagic
	Depends []string

	data []byte // not compressed
}

// signature ends every signed module (scripts/sign-file.c).
const signature = "~Module signature appended~\n"

// maxModule bounds what a compressed module may become, in bytes.
const maxModule = 512 << 20

// Read looks into a module that was just compiled, and refuses one that is
// signed; file is its name, for the suffix and for errors. A module that is
// compressed is not so any more afterwards: what is packed and signed is the
// module itself.
func Read(file string, data []byte) (Module, error) {
	m, err := inspect(file, data)
	if err == nil && bytes.HasSuffix(m.data, []byte(signature)) {
		return m, fmt.Errorf("module %s is signed, by a key that the build root made up", file)
	}
	return m, err
}

// inspect looks into any module.
func inspect(file string, data []byte) (Module, error) {
	plain := data
	if bare, ok := strings.CutSuffix(file, ".xz"); ok {
		r, err := xz.NewReader(bytes.NewReader(data))
		if err == nil {
			plain, err = io.ReadAll(io.LimitReader(r, maxModule))
		}
		if err != nil {
			return Module{}, fmt.Errorf("module %s: %w", file, err)
		}
		file = bare
	}
	m := Module{File: file, data: plain}
	e, err := elf.NewFile(bytes.NewReader(plain))
	if err != nil {
		return m, fmt.Errorf("module %s: %w", file, err)
	}
	section := e.Section(".modinfo")
	if section == nil {
		return m, fmt.Errorf("module %s has no section .modinfo", file)
	}
	info, err := section.Data()
	if err != nil {
		return m, fmt.Errorf("module %s: %w", file, err)
	}
	for field := range strings.SplitSeq(string(info), "\x00") {
		key, value, _ := strings.Cut(field, "=")
		switch key {
		case "name":
			m.Name = strings.ReplaceAll(value, "_", "-")
		case "version":
			m.Version = value
		case "vermagic":
			m.Kernel, _, _ = strings.Cut(value, " ")
		case "depends":
			m.Depends = strings.FieldsFunc(value, func(r rune) bool { return r == ',' })
		}
	}
	return m, nil
}

// verify reads the modules and refuses those that are not what the recipe
// pins.
func (s *Spec) verify(files []string) ([]Module, error) {
	var all []Module
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		m, err := Read(filepath.Base(name), data)
		if err != nil {
			return nil, err
		}
		switch {
		case m.Kernel != s.Kernel:
			return nil, fmt.Errorf("module %s was compiled for kernel %q, the image has %s", m.File, m.Kernel, s.Kernel)
		case m.Version != s.Driver:
			return nil, fmt.Errorf("module %s is of version %q, the recipe pins driver %s", m.File, m.Version, s.Driver)
		}
		all = append(all, m)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("driver %s has no kernel module", s.Driver)
	}
	return all, nil
}

// sign signs the modules that are to be packed.
func (s *Spec) sign(modules []Module) error {
	if s.Sign == nil {
		return nil
	}
	for i := range modules {
		m := &modules[i]
		signed, err := s.Sign(m.data)
		if err == nil && (!bytes.HasPrefix(signed, m.data) || !bytes.HasSuffix(signed, []byte(signature))) {
			err = errors.New("what came back is not the module with a signature")
		}
		if err != nil {
			return fmt.Errorf("signing module %s: %w", m.File, err)
		}
		m.data = signed
	}
	return nil
}

// choose picks the modules that are wanted; one that is missing is an error.
func (s *Spec) choose(all []Module) ([]Module, error) {
	if s.Modules == nil {
		return all, nil
	}
	var out []Module
	for _, want := range s.Modules {
		i := slices.IndexFunc(all, func(m Module) bool { return m.Name == strings.ReplaceAll(want, "_", "-") })
		if i < 0 {
			return nil, fmt.Errorf("module %s was not built; driver %s for kernel %s has %s", want, s.Driver, s.Kernel, names(all))
		}
		out = append(out, all[i])
	}
	slices.SortFunc(out, func(a, b Module) int { return strings.Compare(a.File, b.File) })
	return out, nil
}

func names(ms []Module) string {
	var out []string
	for _, m := range ms {
		out = append(out, m.Name)
	}
	return strings.Join(out, ", ")
}
