package rootfs

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/turnout-project/turnout/internal/deb"
)

// moduleFilter leaves kernel modules out of the tree, and remembers which
// firmware they would have asked for.
type moduleFilter struct {
	prefixes []string // below /usr/lib/modules/<release>/kernel/
	kept     []string // prefixes that overrule them
	mu       sync.Mutex
	firmware map[string]bool // names and patterns that excluded modules ask for
	count    int
}

func newModuleFilter(prefixes []string) *moduleFilter {
	f := &moduleFilter{firmware: map[string]bool{}}
	for _, p := range prefixes {
		if keep, ok := strings.CutPrefix(p, "!"); ok {
			f.kept = append(f.kept, keep)
		} else {
			f.prefixes = append(f.prefixes, p)
		}
	}
	return f
}

// excludes reports whether the file of that name in the tree is left out.
func (f *moduleFilter) excludes(name string) bool {
	rest, ok := strings.CutPrefix(name, "usr/lib/modules/")
	if !ok {
		return false
	}
	_, rest, ok = strings.Cut(rest, "/kernel/")
	starts := func(p string) bool { return strings.HasPrefix(rest, p) }
	return ok && slices.ContainsFunc(f.prefixes, starts) && !slices.ContainsFunc(f.kept, starts)
}

// maxModule bounds what is read of one kernel module.
const maxModule = 256 << 20

// note remembers the firmware of an excluded module.
func (f *moduleFilter) note(name string, content io.Reader) error {
	if !isModule(name) {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(content, maxModule))
	if err != nil {
		return err
	}
	names, err := moduleFirmware(name, data)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	for _, n := range names {
		f.firmware[n] = true
	}
	return nil
}

func isModule(name string) bool {
	return strings.HasSuffix(name, ".ko") || strings.HasSuffix(name, ".ko.xz") || strings.HasSuffix(name, ".ko.zst")
}

// moduleFirmware returns the firmware files a kernel module says it may load:
// the "firmware=" strings of its section .modinfo.
func moduleFirmware(name string, data []byte) ([]string, error) {
	data, err := plainModule(name, data)
	if err != nil {
		return nil, fmt.Errorf("kernel module %q: %w", name, err)
	}
	e, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("kernel module %q: %w", name, err)
	}
	s := e.Section(".modinfo")
	if s == nil {
		return nil, nil
	}
	info, err := s.Data()
	if err != nil {
		return nil, fmt.Errorf("kernel module %q: %w", name, err)
	}
	var names []string
	for field := range strings.SplitSeq(string(info), "\x00") {
		if n, ok := strings.CutPrefix(field, "firmware="); ok {
			names = append(names, n)
		}
	}
	return names, nil
}

func plainModule(name string, data []byte) ([]byte, error) {
	var r io.Reader
	var err error
	switch path.Ext(name) {
	case ".xz":
		r, err = xz.NewReader(bytes.NewReader(data))
	case ".zst":
		var z *zstd.Decoder
		if z, err = zstd.NewReader(bytes.NewReader(data), zstd.WithDecoderConcurrency(1)); err == nil {
			defer z.Close()
		}
		r = z
	default:
		return data, nil
	}
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(r, maxModule))
}

const firmwareDir = "usr/lib/firmware"

// pruneFirmware removes the firmware that only excluded modules ask for.
// Firmware no module at all asks for stays: user space may load it.
func (b *build) pruneFirmware(context.Context) error {
	f := b.unpacker.modules
	if len(f.firmware) == 0 || !b.tree.IsDir(firmwareDir) {
		return nil
	}
	kept, err := b.keptFirmware()
	if err != nil {
		return err
	}
	removed := 0
	for _, pattern := range slices.Sorted(maps.Keys(f.firmware)) {
		names, err := b.tree.Glob(path.Join(firmwareDir, path.Dir(pattern)), path.Base(pattern)+"*")
		if err != nil {
			continue // a pattern that cannot be one names nothing
		}
		for _, name := range names {
			rel := strings.TrimPrefix(name, firmwareDir+"/")
			bare := strings.TrimSuffix(strings.TrimSuffix(rel, ".xz"), ".zst")
			if ok, _ := path.Match(pattern, bare); !ok || wanted(kept, bare) {
				continue
			}
			if err := b.tree.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			removed++
		}
	}
	b.Log.Info("left kernel modules out", "modules", f.count, "firmware files", removed)
	return nil
}

func wanted(kept []string, name string) bool {
	return slices.ContainsFunc(kept, func(p string) bool { ok, _ := path.Match(p, name); return ok || p == name })
}

// keptFirmware returns the firmware names of the modules in the tree.
func (b *build) keptFirmware() ([]string, error) {
	kept := map[string]bool{}
	for _, s := range b.unpacker.writtenModules() {
		data, err := b.tree.ReadFile(s)
		if err != nil {
			return nil, err
		}
		names, err := moduleFirmware(s, data)
		if err != nil {
			return nil, err
		}
		for _, n := range names {
			kept[n] = true
		}
	}
	return slices.Sorted(maps.Keys(kept)), nil
}

// writtenModules returns the names of the kernel modules in the tree.
func (u *unpacker) writtenModules() []string {
	var names []string
	for i := range u.shards {
		for name, c := range u.shards[i].claims {
			if c.kind == deb.File && strings.HasPrefix(name, "usr/lib/modules/") && isModule(name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// kernel finds the one kernel of the tree: its release and image.
func (b *build) kernel() (release string, err error) {
	images, err := b.tree.Glob("boot", "vmlinu*-*")
	if err != nil {
		return "", err
	}
	switch len(images) {
	case 0:
		return "", nil
	case 1:
		_, release, _ := strings.Cut(path.Base(images[0]), "-")
		return release, nil
	}
	return "", fmt.Errorf("%w: more than one kernel in /boot: %s", ErrSpec, strings.Join(images, ", "))
}
