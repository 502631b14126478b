package rootfs

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/turnout-project/turnout/internal/deb"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/rootfs/tree"
)

// unpacked is one package of the tree.
type unpacked struct {
	lock.Package
	rank     int // order among packages; the lowest that ships a folder says how it looks
	path     string
	control  *deb.Control
	list     []string          // absolute paths as shipped, in order, for info/*.list
	dropped  map[string]bool   // paths of list that another package replaced
	md5      map[string]string // of conffiles, or of every file if the package has no md5sums
	replaces map[string]bool   // names in its Replaces field
}

// aliases are the folders of the top that are links into /usr. Packages may
// ship files below either name; the tree has one of them, below /usr.
var aliases = map[string]bool{"bin": true, "sbin": true, "lib": true, "lib32": true, "lib64": true, "libo32": true, "libx32": true}

// canonical returns the name in the tree of a name in a package.
func canonical(name string) string {
	if top, _, _ := strings.Cut(name, "/"); aliases[top] {
		return "usr/" + name
	}
	return name
}

// unpack reads every package and writes its files, several at once, the
// largest first. Packages whose preinst diverts files have to wait for
// configure, which runs that script before it unpacks them.
func (b *build) unpack(ctx context.Context) error {
	if err := b.readControls(ctx); err != nil {
		return err
	}
	strict, err := tree.OpenStrict(b.dir)
	if err != nil {
		return err
	}
	b.unpacker = newUnpacker(strict, b.Recipe.Kernel.ExcludeModules)
	var total, done int64
	queue := make([]*unpacked, 0, len(b.debs))
	for _, p := range b.debs {
		if !p.diverts() {
			total += p.SizeBytes
			queue = append(queue, p)
		}
	}
	slices.SortStableFunc(queue, func(x, y *unpacked) int { return cmp.Compare(y.SizeBytes, x.SizeBytes) })
	var mu sync.Mutex
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(b.Jobs)
	for _, p := range queue {
		g.Go(func() error {
			if err := b.unpacker.unpack(gctx, p, nil); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			done += p.SizeBytes
			b.progress("unpack", done, total)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := b.unpacker.finishDirs(); err != nil {
		return err
	}
	return b.linkAliases()
}

// readControls opens every package's control member and gives it its rank:
// base-files and base-passwd first, then by name.
func (b *build) readControls(ctx context.Context) error {
	b.debs = make([]*unpacked, len(b.Packages))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(b.Jobs)
	for i, p := range b.Packages {
		g.Go(func() error {
			if err := gctx.Err(); err != nil {
				return err
			}
			var err error
			b.debs[i], err = readControl(p, b.DebPath(p.SHA256))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	first := map[string]int{"base-files": -2, "base-passwd": -1}
	slices.SortFunc(b.debs, func(x, y *unpacked) int {
		return cmp.Or(cmp.Compare(first[x.Name], first[y.Name]), cmp.Compare(x.Name, y.Name), cmp.Compare(x.Architecture, y.Architecture))
	})
	for i, p := range b.debs {
		p.rank = i
		if i > 0 && b.debs[i-1].Name == p.Name && b.debs[i-1].Architecture == p.Architecture {
			return fmt.Errorf("%w: package %s is there twice (%s and %s)", ErrSpec, p.Name, b.debs[i-1].Version, p.Version)
		}
	}
	return nil
}

func readControl(p lock.Package, file string) (*unpacked, error) {
	d, err := deb.Open(file, deb.Options{})
	if err != nil {
		return nil, fmt.Errorf("package %s: %w", p.Name, err)
	}
	defer d.Close()
	c, err := d.Control()
	if err != nil {
		return nil, err
	}
	for _, f := range []struct{ field, want string }{{"Package", p.Name}, {"Version", p.Version}, {"Architecture", p.Architecture}} {
		if got := c.Get(f.field); got != f.want {
			return nil, fmt.Errorf("package %s: the lock says %s %q, the package %q: lock and store do not belong together", p.Name, f.field, f.want, got)
		}
	}
	u := &unpacked{Package: p, path: file, control: c, dropped: map[string]bool{}, md5: map[string]string{}, replaces: map[string]bool{}}
	for item := range strings.SplitSeq(c.Get("Replaces"), ",") {
		if f := strings.FieldsFunc(item, func(r rune) bool { return strings.ContainsRune(" \n\t(:", r) }); len(f) > 0 {
			u.replaces[f[0]] = true
		}
	}
	return u, nil
}

// diverts reports whether the package moves other packages' files away before
// it is unpacked. What every script needs to run at all is unpacked with the
// first: libc6 and essential packages of Debian 13 divert as well, but for
// upgrades from systems without a merged /usr, and files of their own.
func (p *unpacked) diverts() bool {
	if p.Name == "libc6" || p.control.Get("Essential") == "yes" {
		return false
	}
	return strings.Contains(string(p.control.Files["preinst"].Data), "dpkg-divert")
}

// linkAliases makes the links of merged-/usr.
func (b *build) linkAliases() error {
	for name := range aliases {
		if name == "bin" || name == "sbin" || name == "lib" {
			if err := b.tree.MkdirAll("usr/"+name, 0o755); err != nil {
				return err
			}
		} else if !b.tree.Exists("usr/" + name) {
			continue
		}
		if err := b.tree.Symlink("usr/"+name, name); err != nil {
			return err
		}
	}
	return nil
}
