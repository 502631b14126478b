package compat

import (
	"fmt"
	"slices"
	"strings"
)

func boardField(i int) string { return fmt.Sprintf("gpu.boards[%d]", i) }

// field returns where the recipe names the board.
func (c *checker) field(b Board) string { return boardField(slices.Index(c.in.Boards, b.ID)) }

func (c *checker) boardKnown() {
	for i, name := range c.in.Boards {
		if _, ok := c.t.Board(name); !ok {
			c.add(Error, boardField(i), "", "the boards are "+list(c.t.BoardNames()), "board %q is in no table", name)
		}
	}
	if c.in.Platform == "" {
		return
	}
	p, ok := c.t.PlatformOf(c.in.Platform)
	if !ok {
		c.add(Error, "gpu.platform", "", "the platforms are "+list(c.t.PlatformNames()), "platform %q is in no table", c.in.Platform)
		return
	}
	for _, b := range c.boards {
		if !slices.Contains(p.Boards, b.ID) {
			c.add(Error, c.field(b), p.Source, "it takes "+list(p.Boards), "platform %s has no %s", p.ID, b.ID)
		}
	}
	if c.in.Count != 0 && c.in.Count != p.GPUs {
		c.add(Error, "gpu.count", p.Source, "", "platform %s has %d GPUs per node, gpu.count is %d", p.ID, p.GPUs, c.in.Count)
	}
}

func (c *checker) archMachine() {
	for _, b := range c.boards {
		if b.Machine != "" && c.in.Architecture != "" && b.Machine != c.in.Architecture {
			c.add(Error, c.field(b), b.Source, "set architecture: "+b.Machine, "%s is soldered to an %s CPU, the image is for %s", b.Product, b.Machine, c.in.Architecture)
		}
	}
}

// archs calls f for each board with its architecture.
func (c *checker) archs(f func(Board, Architecture)) {
	for _, b := range c.boards {
		if a, ok := c.t.Arch(b.Arch); ok {
			f(b, a)
		}
	}
}

func (c *checker) archBranch() {
	n := c.in.Driver.Branch
	if n == 0 {
		return
	}
	c.archs(func(b Board, a Architecture) {
		if a.LastBranch != 0 && n > a.LastBranch {
			c.add(Error, c.driverField(), a.Source, fmt.Sprintf("take a driver of branch %d or older for it, or give these nodes a pool of their own", a.LastBranch),
				"R%d does not drive %s (%s): R%d is the last branch for %s", n, b.ID, b.Product, a.LastBranch, a.Name)
		}
	})
}

func (c *checker) archFlavour() {
	d := c.in.Driver
	if d.Branch == 0 {
		return
	}
	if first, ok := find(c.t.Branches, func(b Branch) bool { return b.FirstOpen }); ok && d.Flavour == "open" && d.Branch < first.Branch {
		c.add(Error, "driver.flavour", first.Source, fmt.Sprintf("take R%d or later, or driver.flavour: proprietary", first.Branch), "R%d has no open kernel modules", d.Branch)
	}
	c.archs(func(b Board, a Architecture) {
		switch {
		case d.Flavour == "open" && a.Open == "impossible":
			c.add(Error, "driver.flavour", a.Source, "set driver.flavour: proprietary", "open kernel modules do not drive %s (%s): %s GPUs have no GSP", b.ID, b.Product, a.Name)
		case d.Flavour == "proprietary" && a.Open == "required":
			c.add(Error, "driver.flavour", a.Source, "set driver.flavour: open", "proprietary kernel modules do not drive %s (%s): %s needs the open ones", b.ID, b.Product, a.Name)
		}
	})
}

// mixedBoards looks at the boards together: even if each is fine with some
// driver, there must be one for all of them.
func (c *checker) mixedBoards() {
	var oldest, open, closed []string
	last, floor := 0, 0
	c.archs(func(b Board, a Architecture) {
		if a.LastBranch != 0 && (last == 0 || a.LastBranch < last) {
			last, oldest = a.LastBranch, []string{b.ID}
		}
		floor = max(floor, BranchOf(b.MinDriver))
		switch a.Open {
		case "required":
			open = append(open, b.ID)
		case "impossible":
			closed = append(closed, b.ID)
		}
	})
	const hint = "make a recipe and a pool for each"
	switch {
	case len(open) > 0 && len(closed) > 0:
		c.add(Error, "gpu.boards", "", hint, "no driver serves a node with %s and %s: open kernel modules are required for the first and impossible for the second", list(open), list(closed))
	case last != 0 && floor > last:
		c.add(Error, "gpu.boards", "", hint, "no driver serves these boards together: R%d is the last branch for %s, another needs R%d", last, list(oldest), floor)
	}
}

func (c *checker) boardMinimum() {
	if c.in.Driver.Branch == 0 {
		return
	}
	for _, b := range c.boards {
		if b.MinDriver != "" && !c.in.Driver.atLeast(b.MinDriver) {
			c.add(Error, c.driverField(), b.Source, "take "+b.MinDriver+" or later", "%s is older than board %s (%s), which needs %s", c.in.Driver, b.ID, b.Product, b.MinDriver)
		}
	}
}

func (c *checker) kernelFloor() {
	d, k := c.in.Driver, c.in.kernelVersion()
	if d.Branch == 0 || d.Flavour != "open" || k == "" {
		return
	}
	var floor KernelFloor
	for _, f := range c.t.KernelFloors {
		if d.Branch >= f.FromBranch && f.FromBranch >= floor.FromBranch {
			floor = f
		}
	}
	if floor.Kernel != "" && Less(k, floor.Kernel) {
		c.add(Error, "kernel.package", floor.Source, "", "open kernel modules of R%d need Linux %s or later, the recipe pins %s", d.Branch, floor.Kernel, k)
	}
}

// kernelVersion is the best that is known of the kernel's version: that of
// its sources, or the start of its release.
func (in Input) kernelVersion() string {
	if in.Kernel.Version != "" {
		return in.Kernel.Version
	}
	v, _, _ := strings.Cut(in.Kernel.Release, "-")
	return v
}
