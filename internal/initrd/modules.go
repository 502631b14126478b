package initrd

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// Module is one kernel module file.
type Module struct {
	Name string // with underscores, as lsmod shows it
	Path string // below /lib/modules/<release>/, without the suffix of a compression
	file string // on the build host
}

// InitrdPath is where the module lies in an initrd.
func (m Module) InitrdPath(release string) string {
	return path.Join("/usr/lib/modules", release, m.Path)
}

// ErrNoModule is wrapped when a module is neither in the tree nor built into
// the kernel.
var ErrNoModule = errors.New("kernel module not found")

// Modules returns the modules of set with everything they depend on, in load
// order. tree is the folder of one kernel release (…/lib/modules/<release>)
// that depmod has run over: hard dependencies come from modules.dep, soft ones
// from modules.softdep. What is built into the kernel is left out. A required
// module that does not exist is an error that wraps ErrNoModule.
func Modules(tree string, set Set) ([]Module, error) {
	t, err := readTree(tree)
	if err != nil {
		return nil, err
	}
	for _, r := range []struct {
		names    []string
		required bool
	}{{set.Required, true}, {set.Optional, false}} {
		for _, n := range r.names {
			if err := t.add(n, r.required); err != nil {
				return nil, err
			}
		}
	}
	return t.order, nil
}

// tableNames are the files of a tree that Modules reads, made by depmod and
// by the kernel's build. Only the first must exist.
var tableNames = []string{"modules.dep", "modules.builtin", "modules.softdep", "modules.alias"}

// tree is what depmod and the kernel build say of one release.
type tree struct {
	dir     string
	files   map[string]string   // name -> path as in modules.dep
	deps    map[string][]string // name -> names
	pre     map[string][]string // soft dependencies
	post    map[string][]string
	alias   map[string][]string // exact aliases only
	builtin map[string]bool
	seen    map[string]bool
	order   []Module
}

func readTree(dir string) (*tree, error) {
	t := &tree{
		dir: dir, files: map[string]string{}, deps: map[string][]string{}, pre: map[string][]string{},
		post: map[string][]string{}, alias: map[string][]string{}, builtin: map[string]bool{}, seen: map[string]bool{},
	}
	lines := []func(string){t.depLine, func(l string) { t.builtin[moduleName(l)] = true }, t.softdepLine, t.aliasLine}
	for i, name := range tableNames {
		err := eachLine(filepath.Join(dir, name), lines[i])
		if errors.Is(err, fs.ErrNotExist) && i > 0 {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("modules of the kernel: %w", err)
		}
	}
	return t, nil
}

func eachLine(file string, do func(string)) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // read only
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		if l := strings.TrimSpace(s.Text()); l != "" && l[0] != '#' {
			do(l)
		}
	}
	return s.Err()
}

// depLine reads "kernel/fs/ext4/ext4.ko: kernel/fs/mbcache.ko …".
func (t *tree) depLine(l string) {
	file, deps, ok := strings.Cut(l, ":")
	if !ok {
		return
	}
	n := moduleName(file)
	t.files[n] = file
	for _, d := range strings.Fields(deps) {
		t.deps[n] = append(t.deps[n], moduleName(d))
	}
}

// softdepLine reads "softdep ext4 pre: crc32c post: …".
func (t *tree) softdepLine(l string) {
	f := strings.Fields(l)
	if len(f) < 3 || f[0] != "softdep" {
		return
	}
	n := moduleName(f[1])
	var into map[string][]string
	for _, w := range f[2:] {
		switch {
		case w == "pre:":
			into = t.pre
		case w == "post:":
			into = t.post
		case into != nil:
			into[n] = append(into[n], w)
		}
	}
}

// aliasLine reads "alias crc32c crc32c_intel" and skips patterns.
func (t *tree) aliasLine(l string) {
	if f := strings.Fields(l); len(f) == 3 && !strings.ContainsAny(f[1], "*?[") {
		a := moduleName(f[1])
		t.alias[a] = append(t.alias[a], moduleName(f[2]))
	}
}

// add appends a module after what it needs. A name that is only an alias
// stands for every module that has it.
func (t *tree) add(name string, required bool) error {
	n := moduleName(name)
	if t.seen[n] || t.builtin[n] {
		return nil
	}
	file, ok := t.files[n]
	if !ok {
		return t.addAlias(name, n, required)
	}
	t.seen[n] = true
	for _, d := range t.pre[n] {
		if err := t.add(d, false); err != nil {
			return err
		}
	}
	for _, d := range t.deps[n] {
		if err := t.add(d, true); err != nil {
			return fmt.Errorf("%w, which %s needs", err, name)
		}
	}
	m := Module{Name: n, Path: plainPath(file), file: filepath.Join(t.dir, filepath.FromSlash(file))}
	if _, err := os.Stat(m.file); err != nil {
		return fmt.Errorf("modules of the kernel: modules.dep is out of date: %w", err)
	}
	t.order = append(t.order, m)
	for _, d := range t.post[n] {
		if err := t.add(d, false); err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) addAlias(name, n string, required bool) error {
	if len(t.alias[n]) == 0 && required {
		return fmt.Errorf("%w: %s in %s", ErrNoModule, name, filepath.Base(t.dir))
	}
	t.seen[n] = true
	for _, m := range t.alias[n] {
		if err := t.add(m, required); err != nil {
			return err
		}
	}
	return nil
}

// Subset copies the tables of a tree and the modules that Modules finds in it
// for set to the folder dst, so that Modules gives the same answer there.
func Subset(dst, tree string, set Set) error {
	modules, err := Modules(tree, set)
	if err != nil {
		return err
	}
	for _, m := range modules {
		rel, err := filepath.Rel(tree, m.file)
		if err != nil {
			return fmt.Errorf("kernel module %s: %w", m.Name, err)
		}
		if err := copyFile(filepath.Join(dst, rel), m.file); err != nil {
			return fmt.Errorf("kernel module %s: %w", m.Name, err)
		}
	}
	for _, name := range tableNames {
		err := copyFile(filepath.Join(dst, name), filepath.Join(tree, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("modules of the kernel: %w", err)
		}
	}
	return nil
}

func copyFile(dst, src string) error {
	b, err := os.ReadFile(src)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
		return err
	}
	return os.WriteFile(dst, b, 0o644)
}

// moduleName turns "kernel/fs/nls/nls_iso8859-1.ko.xz" into "nls_iso8859_1".
func moduleName(file string) string {
	return strings.ReplaceAll(strings.TrimSuffix(path.Base(plainPath(file)), ".ko"), "-", "_")
}

func plainPath(file string) string {
	return strings.TrimSuffix(strings.TrimSuffix(file, ".xz"), ".zst")
}

// read returns the module, decompressed.
func (m Module) read() ([]byte, error) {
	f, err := os.Open(m.file)
	if err != nil {
		return nil, fmt.Errorf("kernel module %s: %w", m.Name, err)
	}
	defer func() { _ = f.Close() }() // read only
	var r io.Reader = bufio.NewReader(f)
	switch path.Ext(m.file) {
	case ".xz":
		r, err = xz.NewReader(r)
	case ".zst":
		var z *zstd.Decoder
		if z, err = zstd.NewReader(r); err == nil {
			defer z.Close()
			r = z
		}
	}
	if err != nil {
		return nil, fmt.Errorf("kernel module %s: %w", m.Name, err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("kernel module %s: %w", m.Name, err)
	}
	return b, nil
}
