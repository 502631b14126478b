package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/deb"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/recipe"
	"github.com/turnout-project/turnout/internal/rootfs"
)

// forbiddenPackages change a running system by themselves.
var forbiddenPackages = []string{"unattended-upgrades", "packagekit", "snapd", "fwupd", "needrestart", "apticron", "cron-apt"}

// PolicyError tells why a root that was just built is not made into an image.
type PolicyError struct{ Violations []rootfs.Violation }

// Error returns one line per violation.
func (e *PolicyError) Error() string {
	var b strings.Builder
	b.WriteString("the root file system breaks the rules of an image; mask the units, or leave out the packages or files:")
	for _, v := range e.Violations {
		b.WriteString("\n  " + v.String())
	}
	return b.String()
}

// Policy returns what in an unpacked root breaks the rules of every root file
// system (rootfs.Policy) or is not what the manifest says: other packages than
// may be, what would run by itself, another kernel, an agent that would not
// run.
func Policy(root string, m *manifest.Manifest) ([]string, error) {
	c := policyCheck{root: root}
	for _, v := range rootfs.Policy(os.DirFS(root)) {
		c.fault("%s", v)
	}
	for _, check := range []func(*manifest.Manifest) error{c.packages, c.hooks, c.kernels, c.agent} {
		if err := check(m); err != nil {
			return nil, err
		}
	}
	return c.faults, nil
}

type policyCheck struct {
	root   string
	faults []string
}

func (c *policyCheck) fault(format string, args ...any) {
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}

func (c *policyCheck) path(p string) string { return filepath.Join(c.root, p) }

// read returns a file of the root, nil if there is none.
func (c *policyCheck) read(p string) ([]byte, error) {
	b, err := os.ReadFile(c.path(p))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

func (c *policyCheck) packages(*manifest.Manifest) error {
	b, err := c.read("var/lib/dpkg/status")
	if err != nil {
		return err
	}
	if b == nil {
		c.fault("the root has no package database /var/lib/dpkg/status")
		return nil
	}
	ps, err := deb.ParseParagraphs(b)
	if err != nil {
		return fmt.Errorf("package database: %w", err)
	}
	for _, p := range ps {
		name, status := p.Get("Package"), p.Get("Status")
		if slices.Contains(forbiddenPackages, name) {
			c.fault("package %s is installed: it updates a system by itself", name)
		}
		if slices.Contains(recipe.Reporters, name) {
			c.fault("package %s is installed: it sends reports to its maker", name)
		}
		if !strings.HasSuffix(status, " ok installed") {
			c.fault("package %s is not configured: its status is %q", name, status)
		}
	}
	return nil
}

// hooks looks for what cron and kernel packages would run.
func (c *policyCheck) hooks(*manifest.Manifest) error {
	for _, pattern := range []string{"etc/cron.*/apt*", "etc/cron.*/unattended*", "etc/cron.*/dpkg", "var/spool/cron/crontabs/*", "etc/kernel/*.d/*"} {
		names, err := filepath.Glob(c.path(pattern))
		if err != nil {
			return err
		}
		for _, n := range names {
			c.fault("/%s would run by itself", strings.TrimPrefix(n, c.root+"/"))
		}
	}
	return nil
}

func (c *policyCheck) kernels(m *manifest.Manifest) error {
	deps, err := filepath.Glob(c.path("usr/lib/modules/*/modules.dep"))
	if err != nil {
		return err
	}
	var releases []string
	for _, d := range deps {
		releases = append(releases, filepath.Base(filepath.Dir(d)))
	}
	if !slices.Equal(releases, []string{m.Kernel.Release}) {
		c.fault("the root has the modules of kernels %v, want those of %s alone", releases, m.Kernel.Release)
	}
	return nil
}

// agent checks that the agent is there, starts, and knows whom to believe.
func (c *policyCheck) agent(m *manifest.Manifest) error {
	if fi, err := os.Stat(c.path(agentPath)); err != nil || fi.Mode().Perm()&0o111 == 0 {
		c.fault("%s is missing or no program", agentPath)
	}
	for _, unit := range []string{agentUnit, guardUnit} {
		if _, err := os.Lstat(c.path("etc/systemd/system/multi-user.target.wants/" + unit)); err != nil {
			c.fault("%s is not enabled", unit)
		}
	}
	trust, err := c.read(manifest.TrustPath)
	if err != nil {
		return err
	}
	if _, err := manifest.DecodeTrust(trust); err != nil {
		c.fault("%s: %v", manifest.TrustPath, err)
	}
	b, err := c.read(manifest.ImagePath)
	if err != nil {
		return err
	}
	var id manifest.Identity
	if err := json.Unmarshal(b, &id); err != nil || id.Name != m.Name || id.Version != m.Version || id.Kernel != m.Kernel {
		c.fault("%s says %q %q, kernel %q; the manifest says %q %q, %q", manifest.ImagePath, id.Name, id.Version, id.Kernel.Release, m.Name, m.Version, m.Kernel.Release)
	}
	return nil
}

// Unsquash unpacks a squashfs file below dir and returns the root of the tree.
func Unsquash(ctx context.Context, file, dir string) (string, error) {
	tree := filepath.Join(dir, "root")
	out, err := exec.CommandContext(ctx, "unsquashfs", "-no-progress", "-quiet", "-no-xattrs", "-d", tree, file).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return "", errors.New("unsquashfs is needed; install squashfs-tools")
	}
	if err != nil {
		return "", fmt.Errorf("unsquashfs: %w: %s", err, bytes.TrimSpace(out))
	}
	return tree, nil
}
