package kmod

import (
	"context"
	"io"
	"strings"

	"github.com/turnout-project/turnout/internal/deb"
	"github.com/turnout-project/turnout/internal/rootfs/tree"
)

// sourceDir is where packages put DKMS sources.
const sourceDir = "usr/src/"

// unpackSources unpacks what a package has below /usr/src into the tree at
// dir, and nothing else of it.
func unpackSources(ctx context.Context, path, dir string) error {
	p, err := deb.Open(path, deb.Options{})
	if err != nil {
		return err
	}
	defer p.Close()
	t, err := tree.OpenStrict(dir)
	if err != nil {
		return err
	}
	defer t.Close()
	return p.Walk(ctx, func(e deb.Entry, content io.Reader) error {
		if !strings.HasPrefix(e.Name+"/", sourceDir) {
			return nil
		}
		switch e.Type {
		case deb.Dir:
			return t.MkdirAll(e.Name, 0o755)
		case deb.Symlink:
			return t.Symlink(e.Link, e.Name)
		case deb.File:
			b, err := io.ReadAll(content)
			if err != nil {
				return err
			}
			return t.WriteFile(e.Name, b, e.Mode.Perm())
		}
		return nil
	})
}
