// Package imagediff tells in what two images differ: packages, kernel, files,
// kernel modules, boot files, expected measurements, tools. It reads the root
// file systems with unsquashfs and needs no root.
package imagediff

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/turnout-project/turnout/internal/image"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
)

// Change is one value that differs; "" is one that is not there.
type Change struct {
	Name string `json:"name"`
	Old  string `json:"old,omitempty"`
	New  string `json:"new,omitempty"`
}

// Part is one blob of an image.
type Part struct {
	Name     string `json:"name"` // "root", "UKI", …
	OldBytes int64  `json:"oldSize"`
	NewBytes int64  `json:"newSize"`
	Changed  bool   `json:"changed"`
}

// Module is a kernel module, by its name without suffix.
type Module struct {
	Name   string `json:"name"`
	Change string `json:"change"` // "added", "removed", "changed"
}

// Side is one of the two images.
type Side struct {
	Label  string `json:"label"`
	Digest string `json:"digest"`
	Lock   string `json:"lock"` // digest of the lock file
}

// Diff is in what two images differ. Empty lists mean that nothing does.
type Diff struct {
	Old          Side     `json:"old"`
	New          Side     `json:"new"`
	Facts        []Change `json:"facts,omitempty"` // name, version, kernel, recipe, lock, …
	Tools        []Change `json:"tools,omitempty"` // programs of the build host
	Packages     []Change `json:"packages,omitempty"`
	Modules      []Module `json:"modules,omitempty"`
	Config       []Change `json:"config,omitempty"` // kernel configuration: CONFIG_… with "y", "m", a value, or "" where it is not set
	Health       []Change `json:"health,omitempty"`
	Measurements []Change `json:"measurements,omitempty"`
	Parts        []Part   `json:"parts"`
	Files        []File   `json:"files,omitempty"` // sorted by path
	// Unknown says what could not be compared, and why.
	Unknown []string `json:"unknown,omitempty"`
	// First says in one sentence where the bytes of the roots begin to differ
	// and why; "" when they do not.
	First string `json:"first,omitempty"`
}

// Same tells whether the images are one image.
func (d *Diff) Same() bool { return d.Old.Digest == d.New.Digest }

// Source is an image in a layout.
type Source struct {
	Layout *oci.Layout
	Digest string
}

// Options are what Compare can do more with.
type Options struct {
	// Package returns the path of a package by its SHA-256, "" if it is not
	// at hand. Kernel configurations are not part of images: they come from the
	// kernels' packages.
	Package func(sha256 string) (path string)
}

// Compare compares two images.
func Compare(ctx context.Context, old, new Source, o Options) (*Diff, error) {
	a, err := old.Layout.Image(old.Digest)
	if err != nil {
		return nil, err
	}
	b, err := new.Layout.Image(new.Digest)
	if err != nil {
		return nil, err
	}
	d := &Diff{Old: side(a), New: side(b)}
	d.manifests(a.Manifest, b.Manifest)
	if err := d.packages(ctx, old, a, new, b, o); err != nil {
		return nil, err
	}
	if a.Manifest.Root.Digest == b.Manifest.Root.Digest {
		return d, nil
	}
	var trees [2]*root
	g, gctx := errgroup.WithContext(ctx)
	for i, s := range []struct {
		src Source
		img *oci.Image
	}{{old, a}, {new, b}} {
		g.Go(func() (err error) {
			trees[i], err = readRoot(gctx, s.src.Layout, s.img.Manifest.Root.Digest)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	d.Files = compareFiles(trees[0], trees[1])
	d.Modules = modules(trees[0], trees[1])
	d.First = d.explain()
	return d, nil
}

func side(img *oci.Image) Side {
	return Side{img.Manifest.Label(), img.Digest, img.Manifest.LockDigest}
}

// changes collects what differs.
type changes []Change

func (c *changes) add(name, old, new string) {
	if old != new {
		*c = append(*c, Change{name, old, new})
	}
}

// manifests compares what the manifests say.
func (d *Diff) manifests(a, b *manifest.Manifest) {
	var facts, tools, health, measured changes
	facts.add("name", a.Name, b.Name)
	facts.add("version", a.Version, b.Version)
	facts.add("architecture", a.Architecture, b.Architecture)
	facts.add("kernel", a.Kernel.Release+" ("+a.Kernel.Version+")", b.Kernel.Release+" ("+b.Kernel.Version+")")
	facts.add("recipe", a.RecipeDigest, b.RecipeDigest)
	facts.add("lock", a.LockDigest, b.LockDigest)
	facts.add("root hash", a.Verity.RootHash, b.Verity.RootHash)
	facts.add("watchdog", text(a.Boot.Watchdog), text(b.Boot.Watchdog))
	facts.add("verify", a.Boot.Verify, b.Boot.Verify)
	facts.add("initrd modules", strings.Join(a.Boot.Modules, " "), strings.Join(b.Boot.Modules, " "))
	facts.add("systemd-stub", a.Measurements.StubVersion, b.Measurements.StubVersion)
	for _, name := range keys(a.Tools, b.Tools) {
		tools.add(name, a.Tools[name], b.Tools[name])
	}
	health.add("soak", text(a.Health.Soak), text(b.Health.Soak))
	ca, cb := checks(a.Health), checks(b.Health)
	for _, name := range keys(ca, cb) {
		health.add(name, ca[name], cb[name])
	}
	ma, mb := measurements(a.Measurements), measurements(b.Measurements)
	for _, name := range keys(ma, mb) {
		measured.add(name, ma[name], mb[name])
	}
	d.Facts, d.Tools, d.Health, d.Measurements = facts, tools, health, measured
	for _, p := range []struct {
		name string
		a, b manifest.Blob
	}{{"root", a.Root, b.Root}, {"verity tree", a.Verity.Blob, b.Verity.Blob}, {"UKI", a.UKI, b.UKI}, {"installer UKI", a.Installer, b.Installer}, {"loader", a.Loader, b.Loader}} {
		d.Parts = append(d.Parts, Part{p.name, p.a.SizeBytes, p.b.SizeBytes, p.a.Digest != p.b.Digest})
	}
}

// text writes a value as JSON does, without the quotes of a string.
func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return strings.Trim(string(b), `"`)
}

// keys are the keys of both maps, sorted.
func keys[V any](a, b map[string]V) []string {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]V{}
	}
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}

func checks(h manifest.Health) map[string]string {
	m := map[string]string{}
	for _, c := range h.Checks {
		m[c.Name] = text(c)
	}
	return m
}

// measurements names every value that a TPM would show, and the sections of
// the UKIs that PCR 11 comes of.
func measurements(m manifest.Measurements) map[string]string {
	all := map[string]string{}
	for _, p := range m.Paths {
		all["PCR 4 "+p.Name] = p.PCR4["sha256"]
	}
	for _, list := range []struct {
		name     string
		phases   []manifest.PhaseValue
		sections []manifest.UKISection
	}{{"", m.PCR11, m.Sections}, {"installer ", m.Installer11, m.SectionsInstaller}} {
		for _, p := range list.phases {
			phase := p.Phase
			if phase == "" {
				phase = "before userspace"
			}
			all["PCR 11 "+list.name+phase] = p.PCR["sha256"]
		}
		for _, s := range list.sections {
			all["section "+list.name+s.Name] = s.Digest["sha256"]
		}
	}
	return all
}

// packages compares the package lists of the images.
func (d *Diff) packages(ctx context.Context, old Source, a *oci.Image, new Source, b *oci.Image, o Options) error {
	pa, err := image.PackageList(old.Layout, a)
	if err != nil {
		return err
	}
	pb, err := image.PackageList(new.Layout, b)
	if err != nil {
		return err
	}
	for _, c := range lock.Diff(&lock.File{Packages: pa}, &lock.File{Packages: pb}) {
		change := Change{c.Name, c.Old, c.New}
		if c.Rebuilt {
			change.New += " (other bytes)"
		}
		d.Packages = append(d.Packages, change)
	}
	ka, _ := lock.Find(pa, a.Manifest.Kernel.Package)
	kb, _ := lock.Find(pb, b.Manifest.Kernel.Package)
	return d.kernelConfig(ctx, ka, kb, o)
}

// explain names the first file that differs, or what else may be the reason.
func (d *Diff) explain() string {
	if len(d.Files) > 0 {
		return d.Files[0].String()
	}
	if len(d.Tools) > 0 {
		var tools []string
		for _, t := range d.Tools {
			tools = append(tools, fmt.Sprintf("%s %s and %s", t.Name, t.Old, t.New))
		}
		return "the files are the same but packed otherwise: by " + strings.Join(tools, ", ")
	}
	return "the files are the same but packed otherwise, by the same tools"
}
