package compat

import (
	"fmt"
	"strings"
)

const (
	cdmmBranch = 580 // the first with the option
	cdmmSource = "NVIDIA/open-gpu-kernel-modules kernel-open/nvidia/nv-reg.h @595.45.04; a survey of GPU fleets quoting the R580 release notes"
)

func (c *checker) cdmm() {
	on := c.in.CDMM == "on" || strings.Trim(c.in.NVReg["NVreg_CoherentGPUMemoryMode"], `"`) == "driver"
	var coherent []string
	for _, b := range c.boards {
		if b.Coherent {
			coherent = append(coherent, b.ID)
		}
	}
	n := c.in.Driver.Branch
	switch {
	case on && n != 0 && n < cdmmBranch:
		c.add(Error, "gpu.cdmm", cdmmSource, fmt.Sprintf("it came with R%d", cdmmBranch), "R%d does not know NVreg_CoherentGPUMemoryMode", n)
	case on && len(coherent) == 0 && len(c.boards) > 0:
		c.add(Info, "gpu.cdmm", cdmmSource, "", "gpu.cdmm has no effect on these boards: their memory is not coherent with the CPU's")
	case !on && len(coherent) > 0 && n >= cdmmBranch && c.in.Kubernetes:
		c.add(Warning, "gpu", cdmmSource, "set gpu.cdmm: on", "%s without CDMM: Linux counts the GPUs' memory as its own, and Kubernetes reports too much memory", list(coherent))
	case !on && c.in.CDMM == "" && len(coherent) > 0 && n >= cdmmBranch:
		c.add(Info, "gpu", cdmmSource, "set gpu.cdmm: on or off", "%s: who manages the GPUs' memory is left to the driver's default, which newer branches change", list(coherent))
	}
}

// initrdOptions: options in /etc/modprobe.d are not in the initrd, so a driver
// loaded there would start without them.
func (c *checker) initrdOptions() {
	if len(c.in.NVReg) == 0 && c.in.CDMM == "" {
		return
	}
	for i, m := range c.in.InitrdModules {
		if strings.HasPrefix(m, "nvidia") {
			c.add(Error, fmt.Sprintf("boot.modules[%d]", i), "Azure/azhpc-images: options that are not in the initramfs are not applied at the first load",
				"leave it to the booted system", "the initrd loads %s, and the options of gpu are not in the initrd", m)
		}
	}
}

const vgpuSource = "docs.nvidia.com/vgpu release notes: R525 (v15) and later, host and guest of one branch, or a host of a later branch with guests of the branch before, or of a later LTSB with guests of the LTSB before; before that one branch only"

// vgpuMixed is the first branch whose hosts take guests of an older one.
const vgpuMixed = 525

func (c *checker) vgpu() {
	v, own := c.in.VGPU, c.in.Driver
	if v.Role == "" || own.Branch == 0 {
		return
	}
	if own.Flavour == "open" {
		c.archs(func(b Board, a Architecture) {
			if strings.HasPrefix(a.ID, "turing") || strings.HasPrefix(a.ID, "ampere") {
				c.add(Warning, "driver.flavour", "forums.developer.nvidia.com/t/unix-graphics-feature-deprecation-schedule/60588", "take the proprietary flavour",
					"with vGPU the open kernel modules are recommended from Ada on, %s is %s", b.ID, a.Name)
			}
		})
	}
	for i, peer := range v.Peers {
		host, guest := own.Branch, BranchOf(peer)
		hostVersion, guestVersion := own.Version, peer
		if v.Role == "guest" {
			host, guest = guest, host
			hostVersion, guestVersion = guestVersion, hostVersion
		}
		if why := c.vgpuMatch(host, guest, hostVersion, guestVersion); why != "" {
			c.add(Error, fmt.Sprintf("gpu.vgpu.peers[%d]", i), vgpuSource, "update hosts first, then guests", "vGPU host R%d and guest R%d do not match: %s", host, guest, why)
		}
	}
}

// vgpuMatch says why host and guest do not match, or "".
func (c *checker) vgpuMatch(host, guest int, hostVersion, guestVersion string) string {
	switch {
	case guest > host || guest == host && Less(hostVersion, guestVersion):
		return "the guest is newer than the host"
	case guest == host:
		return ""
	case host < vgpuMixed:
		return "hosts of this branch take guests of their own branch only"
	case guest == c.before(host, ""):
		return ""
	}
	h, _ := c.t.Branch(host)
	if h.Type == "LTSB" && guest == c.before(host, "LTSB") {
		return ""
	}
	return "the guest's branch is neither the one before the host's nor, for long-term branches, the long-term branch before"
}

// before returns the branch of the vGPU release before that of branch n, of a
// type or of any; 0 is none.
func (c *checker) before(n int, kind string) int {
	best := 0
	for _, b := range c.t.Branches {
		if b.VGPU != 0 && b.Branch < n && b.Branch > best && (kind == "" || b.Type == kind) {
			best = b.Branch
		}
	}
	return best
}
