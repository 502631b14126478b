package imagediff

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/turnout-project/turnout/internal/deb"
	"github.com/turnout-project/turnout/internal/lock"
)

// kernelConfig compares the configurations of two kernels. One that cannot be
// had is told, and is no error.
func (d *Diff) kernelConfig(ctx context.Context, old, new lock.Package, o Options) error {
	if old.SHA256 == new.SHA256 {
		return nil
	}
	var configs [2]map[string]string
	for i, p := range []lock.Package{old, new} {
		path := ""
		if o.Package != nil {
			path = o.Package(p.SHA256)
		}
		if path == "" {
			d.Unknown = append(d.Unknown, fmt.Sprintf("kernel configuration: package %s %s is not in the store; `imgbuild lock` or --store brings it", p.Name, p.Version))
			return nil
		}
		var err error
		if configs[i], err = readConfig(ctx, path); ctx.Err() != nil {
			return ctx.Err()
		} else if err != nil {
			d.Unknown = append(d.Unknown, fmt.Sprintf("kernel configuration: package %s %s: %v", p.Name, p.Version, err))
			return nil
		}
	}
	var all changes
	for _, name := range keys(configs[0], configs[1]) {
		all.add(name, configs[0][name], configs[1][name])
	}
	d.Config = all
	return nil
}

// maxConfig bounds a kernel configuration, in bytes; those of distributions
// have a quarter of one.
const maxConfig = 8 << 20

// readConfig reads /boot/config-<release> of a kernel's package.
func readConfig(ctx context.Context, path string) (map[string]string, error) {
	p, err := deb.Open(path, deb.Options{})
	if err != nil {
		return nil, err
	}
	errFound := errors.New("found")
	var text []byte
	err = p.Walk(ctx, func(e deb.Entry, r io.Reader) error {
		if e.Type != deb.File || !strings.HasPrefix(e.Name, "boot/config-") {
			return nil
		}
		var err error
		if text, err = io.ReadAll(io.LimitReader(r, maxConfig)); err != nil {
			return err
		}
		return errFound
	})
	switch {
	case errors.Is(err, errFound):
		err = nil
	case err == nil:
		err = errors.New("has no /boot/config-<release>")
	}
	return parseConfig(text), errors.Join(err, p.Close())
}

// parseConfig reads lines of CONFIG_NAME=value. "# CONFIG_NAME is not set" and
// a name that is not there mean the same.
func parseConfig(text []byte) map[string]string {
	m := map[string]string{}
	for line := range bytes.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(string(line)), "=")
		if ok && strings.HasPrefix(name, "CONFIG_") {
			m[name] = value
		}
	}
	return m
}
