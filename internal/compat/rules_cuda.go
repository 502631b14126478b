package compat

import (
	"fmt"
	"slices"
)

// toolkits calls f for each CUDA version of the input.
func (c *checker) toolkits(f func(field, cuda string, family CUDAFamily)) {
	for i, cuda := range c.in.CUDA {
		fam, _ := find(c.t.Families, func(f CUDAFamily) bool { return f.Major == BranchOf(cuda) })
		f(fmt.Sprintf("gpu.cuda[%d]", i), cuda, fam)
	}
}

// cudaFloor compares with the lowest driver of the major version, which is an
// error, and with the driver the toolkit came with, which is a warning: minor
// versions are compatible, with less features.
func (c *checker) cudaFloor() {
	d := c.in.Driver
	c.toolkits(func(field, cuda string, fam CUDAFamily) {
		toolkit, known := find(c.t.Toolkits, func(t Toolkit) bool { return t.CUDA == cuda && t.Release == "GA" })
		switch {
		case !known:
			c.add(Warning, field, "", "give newer tables with --compat-data", "CUDA %s is in no table", cuda)
		case d.Branch == 0 || d.atLeast(toolkit.Driver):
		case fam.MinBranch == 0:
			c.add(Error, field, toolkit.Source, "take a driver from "+toolkit.Driver+" on", "CUDA %s needs driver %s; this is the %s", cuda, toolkit.Driver, d)
		case d.Branch < fam.MinBranch || fam.MinDriver != "" && !d.atLeast(fam.MinDriver):
			if c.forwardCompat(cuda) {
				c.add(Info, field, fam.Source, "it works on data-centre boards only", "CUDA %s runs on the %s by its cuda-compat package", cuda, d)
				return
			}
			c.add(Error, field, fam.Source, fmt.Sprintf("take a driver of R%d or later, or the package cuda-compat of that toolkit", fam.MinBranch),
				"CUDA %s needs R%d at least; this is the %s", cuda, fam.MinBranch, d)
		default:
			c.add(Warning, field, toolkit.Source, "workloads that compile PTX at run time need the newer driver",
				"CUDA %s came with driver %s; on the %s it runs with less features", cuda, toolkit.Driver, d)
		}
	})
}

// forwardCompat tells whether the image has the package that lets a newer
// toolkit run on an older driver.
func (c *checker) forwardCompat(cuda string) bool {
	v, err := ParseVersion(cuda)
	if err != nil {
		return false
	}
	name := fmt.Sprintf("cuda-compat-%d-%d", v.field(0), v.field(1))
	return slices.ContainsFunc(c.in.Components, func(p Component) bool { return p.Package == name })
}

func (c *checker) cudaArch() {
	c.toolkits(func(field, cuda string, _ CUDAFamily) {
		c.archs(func(b Board, a Architecture) {
			switch {
			case a.LastCUDA != 0 && BranchOf(cuda) > a.LastCUDA:
				c.add(Error, field, a.Source, fmt.Sprintf("stay on CUDA %d for these boards", a.LastCUDA), "CUDA %s has dropped %s (%s): CUDA %d is the last for %s", cuda, b.ID, b.Product, a.LastCUDA, a.Name)
			case a.FirstCUDA != "" && Less(cuda, a.FirstCUDA):
				c.add(Error, field, a.Source, "take CUDA "+a.FirstCUDA+" or later", "CUDA %s does not know %s (%s): %s came with CUDA %s", cuda, b.ID, b.Product, a.Name, a.FirstCUDA)
			}
		})
	})
}
