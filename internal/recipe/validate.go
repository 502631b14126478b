package recipe

import (
	"fmt"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const defaultKeyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// defaults fills in what a recipe may leave out.
func (r *Recipe) defaults() {
	fill := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	fill(&r.Architecture, "amd64")
	fill(&r.Updates, "disabled")
	fill(&r.Base.Keyring, defaultKeyring)
	fill(&r.Boot.Verify, "full")
	for i := range r.Files {
		f := &r.Files[i]
		fill(&f.Owner, "root:root")
		switch {
		case f.IsFolder():
			fill(&f.Mode, "0755")
		case f.Link == "":
			fill(&f.Mode, "0644")
		}
	}
	for i := range r.Users {
		fill(&r.Users[i].Shell, "/usr/sbin/nologin")
		fill(&r.Users[i].Home, "/nonexistent")
	}
	r.driverDefaults()
	r.gpuDefaults()
}

// rule is a pattern and what it says in words.
type rule struct {
	re   *regexp.Regexp
	want string
}

func newRule(re, want string) rule { return rule{regexp.MustCompile(`^(?:` + re + `)$`), want} }

var (
	nameRule      = newRule(`[a-z0-9][a-z0-9._-]{0,62}`, `up to 63 lower-case letters, digits, ".", "_", "-"`)
	versionRule   = newRule(`[A-Za-z0-9][A-Za-z0-9._+~-]{0,62}`, `up to 63 letters, digits, ".", "_", "+", "~", "-"`)
	releaseRule   = newRule(`[a-z][a-z0-9-]*`, `a code name such as "bookworm"`)
	suiteRule     = newRule(`[a-z0-9][a-z0-9./-]*`, `a suite such as "bookworm-security"`)
	componentRule = newRule(`[a-z][a-z0-9./-]*`, `a component such as "main"`)
	kernelRule    = newRule(`linux-image-[0-9][0-9a-z.+-]*(\*[0-9a-z.+-]*)?`, `a package such as "linux-image-6.1.0-50-amd64", or "linux-image-6.1.0-*-amd64" for the newest of a series`)
	packageRule   = newRule(`[a-z0-9][a-z0-9+.-]+`, `a Debian package name`)
	pinRule       = newRule(`[0-9][0-9A-Za-z.+:~-]*\*?`, `a Debian version, or the start of one and "*" for a series`)
	exactRule     = newRule(`[0-9][0-9A-Za-z.+:~-]*`, `an exact Debian version`)
	cmdlineRule   = newRule(`[!-~]+`, `one kernel parameter without spaces`)
	prefixRule    = newRule(`!?[A-Za-z0-9_][A-Za-z0-9_./-]*`, `a path below the kernel's module folder such as "drivers/media/", or "!" and a path to be kept`)
	modeRule      = newRule(`[0-7]{3,4}`, `an octal mode such as "0644"`)
	ownerRule     = newRule(`[a-z_][a-z0-9_-]*:[a-z_][a-z0-9_-]*`, `"user:group"`)
	unitRule      = newRule(`[A-Za-z0-9:_.\\@-]+\.(service|socket|timer|target|path|mount|automount|swap|slice)`, `a systemd unit with its suffix such as "fstrim.timer"`)
	sysctlRule    = newRule(`[a-z0-9_][A-Za-z0-9_./-]*`, `a sysctl name such as "vm.swappiness"`)
	modprobeRule  = newRule(`(alias|blacklist|install|options|remove|softdep) [^\n]+`, `a modprobe.d line such as "blacklist nouveau"`)
	userRule      = newRule(`[a-z_][a-z0-9_-]{0,31}`, `a Linux user name`)
	moduleRule    = newRule(`[A-Za-z0-9_-]+`, `a kernel module name`)
	labelRule     = newRule(`[a-z0-9][a-z0-9._/-]*`, `a label of lower-case letters, digits, ".", "_", "/", "-"`)
	oneLineRule   = newRule(`[^\n\x00]*`, `one line`)
)

// match refuses a value that does not follow a rule.
func (r *Recipe) match(field, value string, want rule) error {
	if want.re.MatchString(value) {
		return nil
	}
	return r.Errorf(field, "", "%s: %q is not %s", field, value, want.want)
}

func (r *Recipe) matchAll(field string, values []string, want rule) error {
	for i, v := range values {
		if err := r.match(fmt.Sprintf("%s[%d]", field, i), v, want); err != nil {
			return err
		}
	}
	return nil
}

// required refuses a recipe without field.
func (r *Recipe) required(field, value, example string) error {
	if value != "" {
		return nil
	}
	if r.has(field) {
		return r.Errorf(field, "for example "+example, "%s is empty", field)
	}
	return r.Errorf(parent(field), fmt.Sprintf("for example %s", example), "%s is missing", field)
}

func oneOf(value string, values ...string) bool { return slices.Contains(values, value) }

// validate returns the first fault of a merged recipe.
func (r *Recipe) validate() error {
	for _, part := range []func() error{
		r.validateNames, r.validateBase, r.validateKernel, r.validatePackages, r.validateFiles,
		r.validateServices, r.validateSystem, r.validateUsers, r.validateBoot, r.validateDisk, r.validateHealth,
		r.validateDriver, r.validateFirmware, r.validateGPU, r.validateEgress,
	} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

// first returns the first error.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *Recipe) validateNames() error {
	if !oneOf(r.Architecture, "amd64", "arm64") {
		return r.Errorf("architecture", "", "architecture %q is not amd64 or arm64", r.Architecture)
	}
	if r.Updates != "disabled" {
		return r.Errorf("updates", "images change by rollout only; leave the key out", "updates: %q is not accepted, only \"disabled\"", r.Updates)
	}
	for key, value := range r.Labels {
		if err := first(r.match("labels."+key, key, labelRule), r.match("labels."+key, value, oneLineRule)); err != nil {
			return err
		}
	}
	return first(
		r.required("name", r.Name, "name: rack-base"),
		r.match("name", r.Name, nameRule),
		r.required("version", r.Version, `version: "1.0"`),
		r.match("version", r.Version, versionRule),
	)
}

func (r *Recipe) validateBase() error {
	b := r.Base
	if err := first(
		r.required("base.distribution", b.Distribution, "distribution: debian"),
		r.required("base.release", b.Release, "release: bookworm"),
		r.match("base.release", b.Release, releaseRule),
	); err != nil {
		return err
	}
	if b.Distribution != "debian" {
		return r.Errorf("base.distribution", "", "base.distribution %q is not supported, only debian", b.Distribution)
	}
	if !filepath.IsAbs(b.Keyring) || filepath.Clean(b.Keyring) != b.Keyring {
		return r.Errorf("base.keyring", "for example "+defaultKeyring, "base.keyring %q is not an absolute path", b.Keyring)
	}
	if len(b.Sources) == 0 {
		return r.Errorf("base.sources", "list at least one apt archive with uri, suites and components", "base.sources is missing")
	}
	for i, s := range b.Sources {
		if err := r.validateSource(fmt.Sprintf("base.sources[%d]", i), s); err != nil {
			return err
		}
	}
	return nil
}

func (r *Recipe) validateSource(field string, s Source) error {
	if err := r.required(field+".uri", s.URI, "uri: http://deb.debian.org/debian"); err != nil {
		return err
	}
	u, err := url.Parse(s.URI)
	if err != nil || !oneOf(u.Scheme, "http", "https") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || strings.ContainsAny(s.URI, " []\"'\\\n\t") {
		return r.Errorf(field+".uri", "", "%s.uri: %q is not the http or https address of an archive", field, s.URI)
	}
	if u.User != nil {
		return r.Errorf(field+".uri", "recipes carry no secrets; use a mirror that needs none", "%s.uri has a user name or password in it", field)
	}
	if len(s.Suites) == 0 {
		return r.Errorf(field+".suites", "for example suites: [bookworm]", "%s.suites is missing", field)
	}
	if len(s.Components) == 0 {
		return r.Errorf(field+".components", "for example components: [main]", "%s.components is missing", field)
	}
	return first(r.matchAll(field+".suites", s.Suites, suiteRule), r.matchAll(field+".components", s.Components, componentRule))
}

func (r *Recipe) validateKernel() error {
	k := r.Kernel
	if err := r.required("kernel.package", k.Package, "package: linux-image-6.1.0-50-amd64"); err != nil {
		return err
	}
	if strings.HasPrefix(k.Package, "linux-image-") && !kernelRule.re.MatchString(k.Package) {
		return r.Errorf("kernel.package", "name the kernel itself, such as linux-image-6.1.0-50-"+r.Architecture+", or linux-image-6.1.0-*-"+r.Architecture+" for the newest of a series", "kernel.package %q does not pin a kernel", k.Package)
	}
	if !strings.HasSuffix(k.Package, "-"+r.Architecture) {
		return r.Errorf("kernel.package", "", "kernel.package %q is not for architecture %s", k.Package, r.Architecture)
	}
	if k.Version != "" {
		if err := r.match("kernel.version", k.Version, exactRule); err != nil {
			return err
		}
	}
	return first(
		r.match("kernel.package", k.Package, kernelRule),
		r.matchAll("kernel.cmdline", k.Cmdline, cmdlineRule),
		r.matchAll("kernel.exclude_modules", k.ExcludeModules, prefixRule),
	)
}

// Reporters are packages whose purpose is to tell their maker what a system
// has or does. Images have none of them; verify looks again, since a package
// may come by a dependency.
var Reporters = []string{"apport", "canonical-livepatch", "kerneloops", "popularity-contest", "ubuntu-report", "whoopsie"}

// updaters are packages whose purpose is to change a running system.
var updaters = []string{"unattended-upgrades", "packagekit", "fwupd", "snapd", "apt-daily", "needrestart", "cron-apt"}

func (r *Recipe) validatePackages() error {
	seen := map[string]bool{}
	for i, p := range r.Packages {
		if err := r.validatePackage(fmt.Sprintf("packages[%d]", i), p, seen); err != nil {
			return err
		}
	}
	return nil
}

// validatePackage judges one package of a list; seen has the names so far.
func (r *Recipe) validatePackage(field, p string, seen map[string]bool) error {
	name, version, pinned := strings.Cut(p, "=")
	if err := r.match(field, name, packageRule); err != nil {
		return err
	}
	if pinned {
		if version == "latest" || version == "newest" {
			return r.Errorf(field, "write "+name+": the lock takes the newest, and keeps it", "%s: %q is not a Debian version", field, version)
		}
		if err := r.match(field, version, pinRule); err != nil {
			return err
		}
	}
	switch {
	case strings.HasPrefix(name, "linux-image-"):
		return r.Errorf(field, "an image has one kernel; take the package out of the list", "two kernels: %s beside kernel.package %s", name, r.Kernel.Package)
	case oneOf(name, Reporters...):
		return r.Errorf(field, "nodes tell nobody but their own server; take the package out of the list", "package %s sends reports to its maker", name)
	case oneOf(name, updaters...):
		return r.Errorf(field, "images change by rollout only; take the package out of the list", "package %s changes a running system", name)
	case seen[name]:
		return r.Errorf(field, "", "package %s is listed twice", name)
	}
	seen[name] = true
	return nil
}

func (r *Recipe) validateFiles() error {
	seen := map[string]bool{}
	for i, f := range r.Files {
		field := fmt.Sprintf("files[%d]", i)
		if err := r.validateFile(field, f); err != nil {
			return err
		}
		if p := path.Clean(f.Path); seen[p] {
			return r.Errorf(field+".path", "", "file %s is listed twice", f.Path)
		} else {
			seen[p] = true
		}
	}
	return nil
}

// noFiles are places where a file of a recipe would be hidden or in the way.
var noFiles = map[string]string{
	"/proc": "is mounted over at boot", "/sys": "is mounted over at boot", "/dev": "is mounted over at boot",
	"/run": "is mounted over at boot", "/tmp": "is mounted over at boot",
	"/usr/lib/turnout": "is written by imgbuild", "/boot": "is not part of the image",
}

func (r *Recipe) validateFile(field string, f File) error {
	if err := r.required(field+".path", f.Path, "path: /etc/motd"); err != nil {
		return err
	}
	clean := strings.TrimSuffix(f.Path, "/")
	if !strings.HasPrefix(f.Path, "/") || path.Clean(f.Path) != clean || strings.ContainsAny(f.Path, "\x00\n") {
		return r.Errorf(field+".path", "", "%s.path: %q is not an absolute path without \".\", \"..\" and \"//\"", field, f.Path)
	}
	for dir, why := range noFiles {
		if clean == dir || strings.HasPrefix(clean, dir+"/") {
			return r.Errorf(field+".path", "", "%s.path: %s %s", field, dir, why)
		}
	}
	if err := r.validateFileKind(field, f); err != nil {
		return err
	}
	if f.Link != "" {
		if f.Mode != "" {
			return r.Errorf(field+".mode", "", "%s: a link has no mode", f.Path)
		}
		return first(r.match(field+".link", f.Link, oneLineRule), r.match(field+".owner", f.Owner, ownerRule))
	}
	return first(r.match(field+".mode", f.Mode, modeRule), r.match(field+".owner", f.Owner, ownerRule))
}

func (r *Recipe) validateFileKind(field string, f File) error {
	var kinds []string
	for _, k := range []string{"source", "content", "link"} {
		if r.has(field + "." + k) {
			kinds = append(kinds, k)
		}
	}
	switch {
	case f.IsFolder() && len(kinds) > 0:
		return r.Errorf(field+"."+kinds[0], "take the \"/\" off the path for a file", "%s is a folder and has no %s", f.Path, kinds[0])
	case !f.IsFolder() && len(kinds) == 0:
		return r.Errorf(field, "end the path with \"/\" for a folder", "%s has none of source, content and link", f.Path)
	case len(kinds) > 1:
		return r.Errorf(field+"."+kinds[1], "", "%s has both %s and %s", f.Path, kinds[0], kinds[1])
	case len(kinds) == 1 && kinds[0] != "content" && f.Source == "" && f.Link == "":
		return r.Errorf(field+"."+kinds[0], "", "%s: %s is empty", f.Path, kinds[0])
	case filepath.IsAbs(f.Source):
		return r.Errorf(field+".source", "put the file beside the recipe", "%s: source %s is not relative to the recipe", f.Path, f.Source)
	}
	return nil
}
