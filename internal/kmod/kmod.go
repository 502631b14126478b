// Package kmod compiles the kernel modules of a driver for the one kernel of
// an image, in a root file system of its own that is thrown away: the image
// gets no compiler, no sources and no DKMS. What comes out is a .deb with the
// modules alone, to be unpacked with the image's other packages.
//
// Whether a driver compiles for a kernel nobody can say but the compiler. A
// failure names the driver, the kernel and the first error, and never leaves
// an image without its modules: each one is looked into before it is packed.
//
// It needs root and the machine's own architecture, as internal/rootfs does.
package kmod

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/rootfs"
)

// Format names the way in which modules are made. It is part of every key of
// a cache of them, and changes when the same packages would give other bytes.
const Format = "turnout kernel modules 1"

// Spec is what modules are made from.
type Spec struct {
	// Packages are the root to compile in, Sources among them.
	Packages []lock.Package
	// Sources are the names of packages with DKMS sources. They are unpacked,
	// not installed: what they depend on concerns the image.
	Sources      []string
	DebPath      func(sha256 string) string // where a package is
	Kernel       string                     // release, uname -r
	Architecture string                     // "amd64", "arm64"
	Driver       string                     // NVIDIA's version, "535.261.03"
	// Modules are the ones to be packed, by NVIDIA's names ("nvidia-uvm").
	// nil packs all that the sources build.
	Modules []string
	// Sign appends a signature to a module. nil leaves modules unsigned.
	Sign            func(module []byte) ([]byte, error)
	SourceDateEpoch int64
	WorkDir         string // of this build alone; what is left there can be removed
	LogPath         string // the compiler's output is kept here if it fails; "" keeps it in WorkDir
	Log             *slog.Logger
	Progress        func(stage string, done, total int64) // nil: quiet
}

// Name is the name of the package of modules.
func (s *Spec) Name() string { return "turnout-modules-" + s.Kernel }

// Version is its version: that of the sources, Debian's part included.
func (s *Spec) Version() (string, error) {
	for _, name := range s.Sources {
		if p, ok := lock.Find(s.Packages, name); ok {
			return p.Version, nil
		}
	}
	return "", fmt.Errorf("%w: none of the sources %v is among the packages", ErrSpec, s.Sources)
}

// ErrSpec is wrapped by errors of a Spec that cannot be.
var ErrSpec = errors.New("cannot compile this driver")

// Key names what Compile makes by everything it is made from: not by Modules
// and Sign, which choose and sign afterwards.
func (s *Spec) Key() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\nkernel %s\narchitecture %s\ndriver %s\nsources %s\nepoch %d\n",
		Format, s.Kernel, s.Architecture, s.Driver, strings.Join(s.Sources, " "), s.SourceDateEpoch)
	for _, p := range s.Packages {
		fmt.Fprintf(&b, "%s %s %s\n", p.Name, p.Version, p.SHA256)
	}
	return b.String()
}

// Compile compiles the modules, all that the sources have, into the new
// folder dir. On error there is no dir.
func Compile(ctx context.Context, s Spec, dir string) error {
	if err := s.fill(); err != nil {
		return err
	}
	if _, err := s.Version(); err != nil {
		return err
	}
	root, err := s.root(ctx)
	if err != nil {
		return err
	}
	s.Progress("compile", 0, 0)
	files, err := s.compile(ctx, root)
	if err != nil {
		return err
	}
	modules, err := s.verify(files)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for _, m := range modules {
		if err := os.WriteFile(filepath.Join(dir, m.File), m.data, 0o644); err != nil {
			return errors.Join(err, os.RemoveAll(dir))
		}
	}
	return nil
}

// Pack writes the package of the modules that Compile left in dir to the file
// out: those of Modules, signed by Sign. On error nothing is at out.
func Pack(s Spec, dir, out string) error {
	version, err := s.Version()
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.ko"))
	if err != nil {
		return err
	}
	all, err := s.verify(files)
	if err != nil {
		return err
	}
	modules, err := s.choose(all)
	if err != nil {
		return err
	}
	if err := s.sign(modules); err != nil {
		return err
	}
	if err := s.pack(out, version, modules); err != nil {
		return errors.Join(err, os.Remove(out))
	}
	return nil
}

func (s *Spec) fill() error {
	switch {
	case s.Kernel == "" || s.Driver == "" || s.Architecture == "" || s.WorkDir == "":
		return fmt.Errorf("%w: kernel, driver, architecture or work folder is missing", ErrSpec)
	case machine[s.Architecture] == "":
		return fmt.Errorf("%w: architecture %q", ErrSpec, s.Architecture)
	}
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	if s.Progress == nil {
		s.Progress = func(string, int64, int64) {}
	}
	if s.LogPath == "" {
		s.LogPath = filepath.Join(s.WorkDir, "make.log")
	}
	return nil
}

// machine are the kernel's names for architectures.
var machine = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// root makes the root file system to compile in and returns its path.
func (s *Spec) root(ctx context.Context) (string, error) {
	installed := slices.DeleteFunc(slices.Clone(s.Packages), func(p lock.Package) bool { return slices.Contains(s.Sources, p.Name) })
	res, err := rootfs.Build(ctx, rootfs.Spec{
		Packages: installed, DebPath: s.DebPath, SourceDateEpoch: s.SourceDateEpoch,
		WorkDir: filepath.Join(s.WorkDir, "buildroot"), Log: s.Log,
		Progress: func(stage string, done, total int64) { s.Progress("root "+stage, done, total) },
	})
	if err != nil {
		return "", fmt.Errorf("root to compile the driver in: %w", err)
	}
	for _, name := range s.Sources {
		p, ok := lock.Find(s.Packages, name)
		if !ok {
			return "", fmt.Errorf("%w: package %s is not in the lock", ErrSpec, name)
		}
		if err := unpackSources(ctx, s.DebPath(p.SHA256), res.Dir); err != nil {
			return "", err
		}
	}
	return res.Dir, nil
}
