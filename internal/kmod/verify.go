package kmod

import (
	"bytes"
	"debug/elf"
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

	data []byte
}

// signature ends every signed module (scripts/sign-file.c).
const signature = "~Module signature appended~\n"

// Read looks into a module; file is its name, for the suffix and for errors.
func Read(file string, data []byte) (Module, error) {
	m := Module{File: file, data: data}
	plain := data
	if strings.HasSuffix(file, ".xz") {
		r, err := xz.NewReader(bytes.NewReader(data))
		if err == nil {
			plain, err = io.ReadAll(r)
		}
		if err != nil {
			return m, fmt.Errorf("module %s: %w", file, err)
		}
	}
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
	if bytes.HasSuffix(plain, []byte(signature)) {
		return m, fmt.Errorf("module %s is signed, by a key that the build root made up", file)
	}
	return m, nil
}

// verify reads the modules, refuses those that are not what the recipe pins,
// and returns the ones to be packed.
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
	return s.choose(all)
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
