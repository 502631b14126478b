package compat

import (
	"fmt"
	"slices"
	"strings"
)

// roles calls f for each component that the tables know.
func (c *checker) roles(f func(Component, PackageRow)) {
	for _, p := range c.in.Components {
		if row, ok := c.t.Package(p.Package); ok {
			f(p, row)
		}
	}
}

func (c *checker) withRole(role string) []Component {
	var out []Component
	c.roles(func(p Component, row PackageRow) {
		if row.Role == role {
			out = append(out, p)
		}
	})
	return out
}

// fieldOf is where the recipe asks for the component.
func (c *checker) fieldOf(p Component) string {
	if p.Field != "" {
		return p.Field
	}
	return c.driverField()
}

func (c *checker) toolkitDriver() {
	c.roles(func(p Component, row PackageRow) {
		switch row.Role {
		case "toolkit-driver":
			c.add(Error, c.fieldOf(p), row.Source, "take the toolkit without its driver (cuda-toolkit-…) in the workload's container, and the driver by the section driver",
				"package %s brings the driver that comes with a CUDA toolkit, which is not for production", p.Package)
		case "driver-metapackage":
			c.add(Error, c.fieldOf(p), row.Source, "name the parts you need in driver.packages; driver.version pins them",
				"package %s stands for a whole driver, desktop and all, of whatever version is newest", p.Package)
		}
	})
}

// family compares the version of every part of the driver with the pin, or,
// when only a branch is pinned, with that of the kernel modules. Prefixes do
// not count: 570.124.06 and 570.124.04 do not work together.
func (c *checker) family() {
	want, by := c.in.Driver.Version, "driver.version"
	var parts []Component
	c.roles(func(p Component, row PackageRow) {
		if row.Family && p.Version != "" {
			parts = append(parts, p)
			if want == "" && (row.Role == "module-source" || row.Role == "module-support") {
				want, by = p.Version, p.Package
			}
		}
	})
	if want == "" && len(parts) > 0 {
		want, by = parts[0].Version, parts[0].Package
	}
	for _, p := range parts {
		switch {
		case c.in.Driver.Version == "" && c.in.Driver.Branch != 0 && BranchOf(p.Version) != c.in.Driver.Branch:
			c.add(Error, c.fieldOf(p), "", "run `imgbuild lock`", "%s is %s (%s), the recipe pins R%d", p.Package, p.Version, p.Full, c.in.Driver.Branch)
		case p.Version != want:
			c.add(Error, c.fieldOf(p), "", c.pinHint(parts),
				"the driver is of two versions: %s is %s (%s), %s says %s; they must be equal to the last field", p.Package, p.Version, p.Full, by, want)
		}
	}
}

// pinHint names the version that most of the parts have.
func (c *checker) pinHint(parts []Component) string {
	count, best := map[string]int{}, ""
	for _, p := range parts {
		count[p.Version]++
		if best == "" || count[p.Version] > count[best] {
			best = p.Version
		}
	}
	return fmt.Sprintf("%d of %d parts are %s; pin that with driver.version and run `imgbuild lock`, which says what the archive has in whole", count[best], len(parts), best)
}

func (c *checker) companion() {
	c.roles(func(p Component, row PackageRow) {
		if n := c.in.Driver.Branch; row.Companion && n != 0 && p.Version != "" && BranchOf(p.Version) > n {
			c.add(Error, c.fieldOf(p), row.Source, fmt.Sprintf("pin %s to R%d or older in packages", p.Package, n), "%s is %s, newer than the driver's branch R%d", p.Package, p.Version, n)
		}
	})
}

func (c *checker) flavourPackages() {
	want := c.in.Driver.Flavour
	c.roles(func(p Component, row PackageRow) {
		if want != "" && row.Flavour != "" && row.Flavour != want {
			c.add(Error, c.fieldOf(p), row.Source, "take it out, or set driver.flavour: "+row.Flavour, "package %s is of the %s kernel modules, driver.flavour is %s", p.Package, row.Flavour, want)
		}
	})
}

// driverParts looks into a lock for what the driver cannot do without.
func (c *checker) driverParts() {
	d := c.in.Driver
	if d.Branch == 0 || !c.in.Locked {
		return
	}
	if len(c.withRole("module-source"))+len(c.withRole("module-binary")) == 0 {
		c.add(Error, "driver", "", "run `imgbuild lock`", "the lock has no kernel modules of the %s, neither built nor as sources", d)
	}
	images, _ := c.t.GSPImages(c.in.Boards)
	if len(c.withRole("gsp-firmware")) == 0 && (d.Flavour == "open" || len(images) > 0) {
		c.add(Error, "driver", "", "run `imgbuild lock`", "the lock has no GSP firmware, without which open kernel modules start no GPU")
	}
}

func (c *checker) driverSection() {
	for _, p := range append(c.withRole("module-source"), c.withRole("dkms")...) {
		if !p.Build {
			c.add(Error, c.fieldOf(p), "", "use the section driver: imgbuild compiles the modules for the pinned kernel in a root of its own",
				"package %s would compile kernel modules in the image, which has no compiler and cannot change", p.Package)
		}
	}
}

func (c *checker) nouveauFirmware() {
	for _, p := range c.withRole("nouveau-firmware") {
		if c.in.Driver.Branch != 0 {
			c.add(Error, c.fieldOf(p), "Start9Labs PR 3693", "take it out", "package %s is firmware for nouveau: 159 MB that NVIDIA's driver cannot use, and that kept GB10 from booting", p.Package)
		}
	}
}

func (c *checker) excludedPackage() {
	c.roles(func(p Component, row PackageRow) {
		if row.Role == "excluded" && !p.Build {
			c.add(Warning, c.fieldOf(p), row.Source, "take it out", "package %s is desktop or helper software of the driver, which no server needs", p.Package)
		}
	})
}

func (c *checker) platform() (Platform, bool) {
	return c.t.PlatformFor(c.in.Platform, c.in.Boards, c.in.Count)
}

// missing tells whether the platform needs what, and no component is of role.
func (c *checker) missing(what, role string) (Platform, bool) {
	p, ok := c.platform()
	if !ok || c.in.Driver.Branch == 0 || !slices.Contains(p.Needs, what) || len(c.withRole(role)) > 0 {
		return Platform{}, false
	}
	return p, true
}

func (c *checker) fabricManager() {
	if p, missing := c.missing("fabric-manager", "fabric-manager"); missing {
		c.add(Error, "driver.packages", p.Source, fmt.Sprintf("add nvidia-fabricmanager-%d", c.in.Driver.Branch),
			"%s has NVSwitches, and the image no fabric manager: every CUDA program would fail with error 802 while nvidia-smi looks healthy", p.ID)
	}
	if p, ok := c.platform(); !ok && c.in.Platform == "" && c.in.Driver.Branch != 0 && c.in.Count == 0 {
		for _, b := range c.boards {
			if b.NVSwitchAt != 0 && len(c.withRole("fabric-manager")) == 0 {
				c.add(Info, c.field(b), p.Source, "set gpu.platform, or gpu.count", "%s may be on a baseboard with NVSwitches; nothing is checked for it", b.ID)
			}
		}
	}
}

func (c *checker) nvlink5() {
	if p, missing := c.missing("nvlsm", "nvlsm"); missing {
		c.add(Error, "driver.packages", p.Source, fmt.Sprintf("add nvlink5-%d", c.in.Driver.Branch),
			"%s has NVLink 5, and the image no NVLink subnet manager: the fabric would stay \"In Progress\" for ever", p.ID)
	}
	p, ok := c.platform()
	if !ok || !slices.Contains(p.Needs, "ib_umad") || c.in.Driver.Branch == 0 {
		return
	}
	if !slices.ContainsFunc(c.in.ModulesLoad, func(m string) bool { return strings.ReplaceAll(m, "-", "_") == "ib_umad" }) {
		c.add(Error, "gpu.platform", p.Source, "load it by a file in /etc/modules-load.d", "%s manages its NVSwitches through ib_umad, which the image does not load", p.ID)
	}
}

func (c *checker) imex() {
	if p, missing := c.missing("imex", "imex"); missing {
		c.add(Error, "driver.packages", p.Source, fmt.Sprintf("add nvidia-imex-%d", c.in.Driver.Branch), "%s is one NVLink domain, and the image has no IMEX", p.ID)
	}
	if p, ok := c.platform(); ok && p.Domain {
		c.add(Info, "gpu.platform", p.Source, "give the nodes of a rack one failure domain in the pool", "the nodes of a %s rack must run one driver version: they move together", p.ID)
	}
}
