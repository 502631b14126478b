package kmod

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// MissingError tells that a module cannot be loaded, because one that it
// depends on is not in the image.
type MissingError struct {
	Module string // that nobody can load
	Needs  string // and what it lacks
	By     string // the module that depends on Needs, if it is not Module itself
}

func (e *MissingError) Error() string {
	s := fmt.Sprintf("kernel module %s cannot be loaded: the image has no module %s", e.Module, e.Needs)
	if e.By != "" && e.By != e.Module {
		s += ", which " + e.By + " depends on"
	}
	return s
}

// CheckDepends returns a *MissingError for the first module below
// updates/dkms of a modules folder, /lib/modules/<release>, that could not be
// loaded for want of another. depmod says nothing of those: it leaves out
// what is not there.
func CheckDepends(dir string) error {
	t := moduleTree{dir: dir, files: map[string]string{}, builtin: map[string]bool{}}
	if err := t.read(); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(dir, "updates/dkms/*.ko"))
	if err != nil {
		return err
	}
	for _, f := range files {
		rel, err := filepath.Rel(dir, f)
		if err != nil {
			return err
		}
		if err := t.follow(rel, moduleName(rel), nil); err != nil {
			return err
		}
	}
	return nil
}

// moduleTree is what a modules folder has, by the names that modules call one
// another.
type moduleTree struct {
	dir     string
	files   map[string]string // name to file
	builtin map[string]bool
}

func moduleName(file string) string {
	base, _, _ := strings.Cut(path.Base(file), ".")
	return strings.ReplaceAll(base, "-", "_")
}

func (t *moduleTree) read() error {
	if err := t.lines("modules.dep", func(line string) {
		file, _, _ := strings.Cut(line, ":")
		t.files[moduleName(file)] = file
	}); err != nil {
		return err
	}
	err := t.lines("modules.builtin", func(line string) { t.builtin[moduleName(line)] = true })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (t *moduleTree) lines(name string, f func(string)) error {
	r, err := os.Open(filepath.Join(t.dir, name))
	if err != nil {
		return err
	}
	defer r.Close()
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		f(s.Text())
	}
	return s.Err()
}

// follow looks at a module and all that it depends on. above are the modules
// on the way to it.
func (t *moduleTree) follow(file, top string, above []string) error {
	data, err := os.ReadFile(filepath.Join(t.dir, file))
	if err != nil {
		return err
	}
	m, err := inspect(path.Base(file), data)
	if err != nil {
		return err
	}
	// Debian's files have other names than the modules in them.
	t.files[strings.ReplaceAll(m.Name, "-", "_")] = file
	for _, need := range m.Depends {
		need = strings.ReplaceAll(need, "-", "_")
		if t.builtin[need] || slices.Contains(above, need) {
			continue
		}
		next, ok := t.files[need]
		if !ok {
			next, ok = t.sibling(file, need)
		}
		if !ok {
			return &MissingError{Module: top, Needs: need, By: moduleName(file)}
		}
		if err := t.follow(next, top, append(slices.Clone(above), need)); err != nil {
			return err
		}
	}
	return nil
}

// sibling finds a module by the name inside it, among those beside file.
func (t *moduleTree) sibling(file, name string) (string, bool) {
	dir := path.Dir(file)
	files, err := filepath.Glob(filepath.Join(t.dir, dir, "*.ko"))
	if err != nil {
		return "", false
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		if m, err := inspect(filepath.Base(f), data); err == nil && strings.ReplaceAll(m.Name, "-", "_") == name {
			return path.Join(dir, filepath.Base(f)), true
		}
	}
	return "", false
}
