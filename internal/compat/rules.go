package compat

import (
	"slices"
)

// RuleInfo describes a rule.
type RuleInfo struct {
	Name   string
	Policy bool   // can be accepted: it is about what is wise, not about what works
	Text   string // what it finds
}

type rule struct {
	name   string
	policy bool
	text   string
	run    func(*checker)
}

// rules in the order in which they are applied. docs/compat.md describes each.
var rules = []rule{
	{"board-known", false, "a board or platform that the tables do not have", (*checker).boardKnown},
	{"arch-machine", false, "a board that is soldered to another kind of CPU", (*checker).archMachine},
	{"arch-branch", false, "an architecture that the driver branch has dropped", (*checker).archBranch},
	{"arch-flavour", false, "kernel modules of a flavour that does not drive an architecture", (*checker).archFlavour},
	{"mixed-boards", false, "boards that no one driver serves together", (*checker).mixedBoards},
	{"board-minimum", false, "a driver older than a board", (*checker).boardMinimum},
	{"branch-known", true, "a branch without a row", (*checker).branchKnown},
	{"branch-eol", true, "a branch past its end of life, or within 90 days of it", (*checker).branchEOL},
	{"branch-type", true, "a new feature branch, which nobody promises to support", (*checker).branchType},
	{"known-bad", true, "a combination of driver, board and kernel that is known not to work", (*checker).knownBad},
	{"kernel-floor", false, "open modules for a kernel that is too old", (*checker).kernelFloor},
	{"cuda-floor", false, "a CUDA toolkit that needs a newer driver", (*checker).cudaFloor},
	{"cuda-arch", false, "a CUDA toolkit that does not know an architecture", (*checker).cudaArch},
	{"toolkit-driver", false, "a driver that comes with a CUDA toolkit, or follows whatever is newest", (*checker).toolkitDriver},
	{"family", false, "parts of the driver that are not of one version, to the last field", (*checker).family},
	{"companion", true, "a tool of the driver that is of a newer branch", (*checker).companion},
	{"flavour-packages", false, "packages of the other flavour of kernel modules", (*checker).flavourPackages},
	{"driver-parts", false, "a locked image in which a part of the driver is missing", (*checker).driverParts},
	{"driver-section", false, "sources of kernel modules in the image, where nothing compiles them", (*checker).driverSection},
	{"nouveau-firmware", true, "firmware of the nouveau driver beside NVIDIA's", (*checker).nouveauFirmware},
	{"excluded-package", true, "user space of the driver that no server needs", (*checker).excludedPackage},
	{"fabric-manager", false, "NVSwitches without a fabric manager", (*checker).fabricManager},
	{"nvlink5", false, "NVLink 5 without its subnet manager or ib_umad", (*checker).nvlink5},
	{"imex", false, "a rack of one NVLink domain without IMEX", (*checker).imex},
	{"cdmm", true, "memory management of coherent boards", (*checker).cdmm},
	{"initrd-options", false, "the driver in the initrd, where its options are not", (*checker).initrdOptions},
	{"vgpu", false, "vGPU host and guest that do not match", (*checker).vgpu},
}

// Rules describes all rules of Check.
func Rules() []RuleInfo {
	var all []RuleInfo
	for _, r := range rules {
		all = append(all, RuleInfo{r.name, r.policy, r.text})
	}
	return append(all, extra...)
}

// extra are rules of other packages, which know recipes better; see Register.
var extra []RuleInfo

// Register makes the rules of another package known, so that recipes can
// accept their findings. It is for init functions.
func Register(rs ...RuleInfo) { extra = append(extra, rs...) }

// Rule returns the rule of that name.
func Rule(name string) (RuleInfo, bool) {
	return find(Rules(), func(r RuleInfo) bool { return r.Name == name })
}

// policies are the names of the rules that can be accepted.
func policies() []string {
	var names []string
	for _, r := range Rules() {
		if r.Policy {
			names = append(names, r.Name)
		}
	}
	slices.Sort(names)
	return names
}
