package image

import (
	"debug/elf"
	"errors"
	"fmt"
)

var elfMachine = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// checkAgent refuses a node agent that could not be the first process of an
// initrd: a program for another architecture, or one that needs a loader.
func checkAgent(path, architecture string) (err error) {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("%w: node agent: %w; build it with `make build` or name it with --nodeagent", ErrOptions, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if want := elfMachine[architecture]; f.Machine != want {
		return fmt.Errorf("%w: node agent %s is for %s, the image for %s", ErrOptions, path, f.Machine, want)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%w: node agent %s is not static; build it with CGO_ENABLED=0", ErrOptions, path)
		}
	}
	return nil
}
