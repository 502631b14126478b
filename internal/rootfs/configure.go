package rootfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/deb"
	"github.com/turnout-project/turnout/internal/rootfs/sandbox"
)

// policyRC makes invoke-rc.d and deb-systemd-invoke start nothing.
const policyRC = "/usr/sbin/policy-rc.d"

// configure lets the packages' scripts and dpkg bring the tree to life, in a
// sandbox: first the preinst scripts, then base-files and base-passwd, on
// which all others build, then everything in dpkg's own order.
func (b *build) configure(ctx context.Context) error {
	log, err := os.Create(b.logPath())
	if err != nil {
		return err
	}
	defer log.Close()
	if err := b.tree.WriteFile(policyRC, []byte("#!/bin/sh\nexit 101\n"), 0o755); err != nil {
		return err
	}
	box, err := sandbox.Open(b.dir, sandbox.Options{Covers: []sandbox.Cover{
		{Path: "/usr/sbin/update-initramfs", With: "/bin/true"}, // an image's initrd is not made in it
	}})
	if err != nil {
		return err
	}
	defer box.Close()
	c := &configurer{build: b, box: box, log: log}
	if err := c.run(ctx); err != nil {
		return err
	}
	if err := box.Close(); err != nil {
		return err
	}
	return b.tree.Remove(policyRC)
}

// configurer runs programs in the sandbox and keeps their output.
type configurer struct {
	*build
	box *sandbox.Sandbox
	log io.Writer
}

func (c *configurer) run(ctx context.Context) error {
	for _, p := range c.debs {
		if p.diverts() {
			continue
		}
		if err := c.preinst(ctx, p); err != nil {
			return err
		}
	}
	if err := c.unpackDiverting(ctx); err != nil {
		return err
	}
	if err := c.dpkg(ctx, "--force-depends", "--configure", "base-passwd", "base-files"); err != nil {
		return err
	}
	return c.dpkg(ctx, "--configure", "-a")
}

// unpackDiverting unpacks the packages that divert files of others: each one
// after its preinst, heeding the diversions made so far.
func (c *configurer) unpackDiverting(ctx context.Context) error {
	any := false
	for _, p := range c.debs {
		if !p.diverts() {
			continue
		}
		any = true
		if err := c.writeInfo(p); err != nil { // the script must be there before it runs
			return err
		}
		if err := c.preinst(ctx, p); err != nil {
			return err
		}
		all, err := c.diversions()
		if err != nil {
			return err
		}
		c.unpacker.divert(all)
		if err := c.unpacker.unpack(ctx, p, divertedFor(p.Name, all)); err != nil {
			return err
		}
		if err := c.writeInfo(p); err != nil {
			return err
		}
	}
	if !any {
		return nil
	}
	if err := c.unpacker.finishDirs(); err != nil {
		return err
	}
	return c.writeStatus(func(*unpacked) bool { return true })
}

// diversion moves a file that any package but one ships.
type diversion struct{ from, to, by string } // absolute paths; by ":" is of no package

// diversions reads what dpkg-divert has noted: three lines each.
func (b *build) diversions() ([]diversion, error) {
	text, err := b.tree.ReadFile(adminDir + "/diversions")
	if err != nil || len(text) == 0 {
		return nil, err
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	if len(lines)%3 != 0 {
		return nil, fmt.Errorf("%s/diversions has %d lines, not a multiple of three", adminDir, len(lines))
	}
	var all []diversion
	for d := range slices.Chunk(lines, 3) {
		all = append(all, diversion{d[0], d[1], d[2]})
	}
	return all, nil
}

// divertedFor maps the paths of a package's files that are diverted.
func divertedFor(pkg string, all []diversion) map[string]string {
	moved := map[string]string{}
	for _, d := range all {
		if d.by != pkg {
			moved[d.from] = d.to
		}
	}
	return moved
}

// preinst runs the package's preinst script as dpkg does at a first
// installation, unless it could do nothing then.
func (c *configurer) preinst(ctx context.Context, p *unpacked) error {
	script, ok := p.control.Files["preinst"]
	if !ok || idleAtInstall(script.Data) {
		return nil
	}
	env := append(c.env(),
		"DEBCONF_PACKAGE="+p.Name, // debconf knows preinst scripts in dpkg's own place only
		"DPKG_MAINTSCRIPT_PACKAGE="+p.Name, "DPKG_MAINTSCRIPT_PACKAGE_REFCOUNT=1",
		"DPKG_MAINTSCRIPT_ARCH="+p.Architecture, "DPKG_MAINTSCRIPT_NAME=preinst",
		"DPKG_ADMINDIR=/"+adminDir, "DPKG_ROOT=", "DPKG_RUNNING_VERSION="+c.dpkgVersion())
	err := c.exec(ctx, env, "/"+adminDir+"/info/"+p.infoName()+".preinst", "install")
	if err != nil {
		return fmt.Errorf("preinst of package %s: %w", p.Name, err)
	}
	return nil
}

// idleLine matches the lines of scripts that do nothing at a first
// installation: dpkg-maintscript-helper acts on upgrades only
// (dpkg-maintscript-helper(1)).
var idleLine = regexp.MustCompile(`^\s*(#.*|set -eu?|exit 0|dpkg-maintscript-helper (rm_conffile|mv_conffile|symlink_to_dir|dir_to_symlink) .*)?\s*$`)

func idleAtInstall(script []byte) bool {
	for line := range bytes.Lines(script) {
		if !idleLine.Match(line) {
			return false
		}
	}
	return true
}

func (b *build) dpkgVersion() string {
	for _, p := range b.debs {
		if p.Name == "dpkg" {
			return p.Version
		}
	}
	return ""
}

// env is the whole environment of what runs in the sandbox.
func (b *build) env() []string {
	return []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "SHELL=/bin/sh", "LC_ALL=C.UTF-8", "TZ=UTC",
		"DEBIAN_FRONTEND=noninteractive", "DEBCONF_NONINTERACTIVE_SEEN=true", "DEBCONF_NOWARNINGS=yes",
		fmt.Sprintf("SOURCE_DATE_EPOCH=%d", b.SourceDateEpoch),
		"SYSTEMD_OFFLINE=1", "INITRD=No", "PERL_HASH_SEED=0", "PYTHONHASHSEED=0", "PYTHONDONTWRITEBYTECODE=1",
	}
}

func (c *configurer) dpkg(ctx context.Context, args ...string) error {
	// Stopping at the first error leaves its cause in the last lines.
	args = append([]string{"/usr/bin/dpkg", "--no-pager", "--log=/dev/null", "--abort-after=1"}, args...)
	return c.exec(ctx, c.env(), args...)
}

// exec runs one program; its output goes to the log, and its last lines into
// the error.
func (c *configurer) exec(ctx context.Context, env []string, args ...string) error {
	fmt.Fprintf(c.log, "+ %s\n", strings.Join(args, " "))
	out := &watcher{log: c.log, total: int64(len(c.debs)), progress: c.progress}
	err := c.box.Run(ctx, sandbox.Command{Args: args, Env: env, Output: out})
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return &ScriptError{Packages: out.failed(), Tail: out.tail(), Log: c.logPath(), Err: err}
}

// ScriptError says that a package could not be configured.
type ScriptError struct {
	Packages []string // as dpkg names them; empty if it was no package
	Tail     string   // the last lines of output
	Log      string   // path of the whole output
	Err      error
}

func (e *ScriptError) Error() string {
	what := "a package script failed"
	if len(e.Packages) > 0 {
		what = "package " + strings.Join(e.Packages, ", ") + " failed"
	}
	return fmt.Sprintf("%s (%v); the whole output is in %q, its last lines are:\n%s", what, e.Err, e.Log, e.Tail)
}

func (e *ScriptError) Unwrap() error { return e.Err }

// watcher copies output to the log, keeps its last lines and counts the
// packages that dpkg sets up.
type watcher struct {
	log      io.Writer
	total    int64
	done     int64
	progress func(stage string, done, total int64)
	line     []byte
	last     []string
	broken   []string
}

const tailLines = 15

func (w *watcher) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		line, after, ended := bytes.Cut(rest, []byte("\n"))
		w.line = append(w.line, line...)
		rest = after
		if ended {
			w.endLine()
		}
	}
	return w.log.Write(b)
}

var brokenPackage = regexp.MustCompile(`^dpkg: error processing package (\S+) `)

func (w *watcher) endLine() {
	line := string(w.line)
	w.line = w.line[:0]
	if strings.HasPrefix(line, "Setting up ") {
		w.done++
		w.progress("configure", w.done, w.total)
	}
	if m := brokenPackage.FindStringSubmatch(line); m != nil {
		w.broken = append(w.broken, m[1])
	}
	if w.last = append(w.last, line); len(w.last) > tailLines {
		w.last = w.last[1:]
	}
}

// failed returns the packages that dpkg gave up on: the first has the cause,
// others may only depend on it.
func (w *watcher) failed() []string { return w.broken }

func (w *watcher) tail() string {
	if len(w.line) > 0 {
		w.endLine()
	}
	return "  " + strings.Join(w.last, "\n  ")
}

// installed reads what dpkg has in the tree; a package that is not fully
// installed is an error.
func (b *build) installed() ([]Installed, error) {
	text, err := b.tree.ReadFile(adminDir + "/status")
	if err != nil {
		return nil, err
	}
	ps, err := deb.ParseParagraphs(text)
	if err != nil {
		return nil, fmt.Errorf("%s/status: %w", adminDir, err)
	}
	var all []Installed
	for _, p := range ps {
		if s := p.Get("Status"); s != "install ok installed" {
			return nil, fmt.Errorf("package %s ended as %q; see %q", p.Get("Package"), s, b.logPath())
		}
		all = append(all, Installed{p.Get("Package"), p.Get("Version"), p.Get("Architecture")})
	}
	if len(all) != len(b.Packages) {
		return nil, errors.New("dpkg's database does not hold every package that was unpacked")
	}
	return all, nil
}
