//go:build linux

package boot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ModulesList names the kernel modules of the initrd, one path per line, each
// after those it needs.
const ModulesList = "/usr/lib/turnout/modules.list"

// softdog is loaded only when the machine has no watchdog of its own.
const softdog = "softdog"

// moduleName returns the kernel's name of a module file.
func moduleName(path string) string {
	base := filepath.Base(path)
	name, _, _ := strings.Cut(base, ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// readModules returns the paths of the list; lines that are empty or start
// with # are skipped. A missing list is an initrd without modules.
func readModules(list string) ([]string, error) {
	b, err := os.ReadFile(list)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			out = append(out, filepath.Join("/", line))
		}
	}
	return out, nil
}

// loadModules loads all but softdog. A module whose hardware is absent is no
// error, and no other failure stops the boot: what needs the module says so.
func loadModules(paths []string, log Log) {
	loaded := 0
	for _, p := range paths {
		if moduleName(p) == softdog {
			continue
		}
		switch err := loadModule(p); {
		case err == nil:
			loaded++
		case errors.Is(err, unix.EEXIST), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		default:
			log("module %s: %v", p, err)
		}
	}
	log("%d of %d kernel modules loaded", loaded, len(paths))
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil {
		return fmt.Errorf("loading it: %w", err)
	}
	return nil
}

// modulePath returns the path of the module with that name, or "".
func modulePath(paths []string, name string) string {
	for _, p := range paths {
		if moduleName(p) == name {
			return p
		}
	}
	return ""
}
