// Package recipe holds what a person asks of an image: the YAML file in
// recipes/, parsed strictly and validated with file, line and column. It
// resolves nothing and fetches nothing; that is lock's work.
package recipe

import (
	"strings"

	"github.com/turnout-project/turnout/internal/manifest"
)

// Recipe is one recipe with what it extends already merged in.
type Recipe struct {
	Path   string `yaml:"-"` // file it was read from; sources of Files are relative to its folder
	Digest string `yaml:"-"` // "sha256:…" over the merged recipe and every file it embeds
	// Request is "sha256:…" over what is asked of the package archive alone
	// (architecture, base, kernel package, packages). A lock answers a
	// Request: a changed sysctl leaves it fresh, and recipes that differ in
	// other things only may share one.
	Request string `yaml:"-"`

	Name         string `yaml:"name"`
	Version      string `yaml:"version"`
	Architecture string `yaml:"architecture"` // "amd64" (default) or "arm64"
	Extends      string `yaml:"extends"`      // another recipe, relative to this one; its fields are the defaults
	Base         Base   `yaml:"base"`
	Kernel       Kernel `yaml:"kernel"`
	// Packages beside the kernel and what Debian calls essential: "name" or
	// "name=version" (exact), or "name=1.2.*" (series; the lock is exact).
	Packages []string          `yaml:"packages"`
	Remove   []string          `yaml:"remove"` // names in Packages of what it extends that this recipe leaves out; applied by Load
	Files    []File            `yaml:"files"`
	Services Services          `yaml:"services"`
	Sysctl   map[string]string `yaml:"sysctl"`   // written to /etc/sysctl.d/50-turnout.conf
	Modprobe []string          `yaml:"modprobe"` // lines of /etc/modprobe.d/50-turnout.conf
	Users    []User            `yaml:"users"`
	Boot     manifest.Boot     `yaml:"boot"`
	Health   manifest.Health   `yaml:"health"`
	Updates  string            `yaml:"updates"` // only "disabled" (default) is accepted
	Labels   map[string]string `yaml:"labels"`

	// The sections below do not exist for the digests of a recipe without them.
	Update   manifest.Update `yaml:"update" json:",omitzero"`
	Disk     manifest.Disk   `yaml:"disk" json:",omitzero"`
	Driver   Driver          `yaml:"driver" json:",omitzero"`
	Firmware Firmware        `yaml:"firmware" json:",omitzero"`
	GPU      GPU             `yaml:"gpu" json:",omitzero"`
	Egress   Egress          `yaml:"egress" json:",omitzero"`

	places map[string]Place // where each field was written, by name as in Place
}

// Base is the distribution an image is made of.
type Base struct {
	Distribution string   `yaml:"distribution"` // "debian"
	Release      string   `yaml:"release"`      // "bookworm"
	Sources      []Source `yaml:"sources"`
	Keyring      string   `yaml:"keyring"` // absolute path of an apt keyring on the build host
}

// Source is one apt archive.
type Source struct {
	URI        string   `yaml:"uri"`
	Suites     []string `yaml:"suites"`
	Components []string `yaml:"components"`
}

// Kernel pins the one kernel of an image.
type Kernel struct {
	// Package is "linux-image-6.1.0-50-amd64", or with one * for the digits
	// of the ABI number, "linux-image-6.1.0-*-amd64": the newest there is.
	// The package of a lock is lock.File.Kernel.
	Package string   `yaml:"package"`
	Version string   `yaml:"version"` // exact package version; "" takes what the archive has and the lock pins it
	Cmdline []string `yaml:"cmdline"` // added to what every image gets
	// ExcludeModules are path prefixes below /lib/modules/<release>/kernel/
	// left out of the image ("sound/", "drivers/media/"), firmware included;
	// "!drivers/gpu/drm/drm.ko" keeps what another prefix would leave out.
	ExcludeModules []string `yaml:"exclude_modules"`
}

// File is a file, folder or link put into the root. A Path that ends in "/"
// is a folder and has none of Source, Content and Link; any other has exactly
// one of them (Content may be "": an empty file).
type File struct {
	Path    string `yaml:"path"`    // absolute, without "." and ".."
	Source  string `yaml:"source"`  // file, relative to the folder of Recipe.Path, or
	Content string `yaml:"content"` // text, or
	Link    string `yaml:"link"`    // target of a symbolic link
	Mode    string `yaml:"mode"`    // octal, default "0644", "0755" for folders; none for links
	Owner   string `yaml:"owner"`   // "user:group", default "root:root"
}

// IsFolder tells whether f is a folder.
func (f File) IsFolder() bool { return strings.HasSuffix(f.Path, "/") }

// Services are systemd units switched at build time.
type Services struct {
	Enable []string `yaml:"enable"`
	Mask   []string `yaml:"mask"`
}

// User is an account; there are no passwords in recipes.
type User struct {
	Name   string   `yaml:"name"`
	UID    int      `yaml:"uid"`
	Groups []string `yaml:"groups"`
	Shell  string   `yaml:"shell"`
	Home   string   `yaml:"home"`
}
