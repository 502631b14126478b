package lock

import (
	"fmt"
	"regexp"
)

// FamilyError tells that packages which work at equal versions only have
// different ones.
type FamilyError struct {
	Family string
	A, B   Package
}

func (e *FamilyError) Error() string {
	return fmt.Sprintf("the %s is of two versions: %s is %s (%s), %s is %s (%s)", e.Family,
		e.A.Name, Upstream(e.A.Version), e.A.Version, e.B.Name, Upstream(e.B.Version), e.B.Version)
}

// family is a set of packages of one upstream version, exact to its last
// field: the kernel module refuses libraries of 570.124.04 when it is
// 570.124.06 itself.
type family struct {
	name           string
	source, binary *regexp.Regexp // which packages belong to it, by source package or else by name
	exceptions     *regexp.Regexp // and which do not
}

var families = []family{{
	name:       "NVIDIA driver",
	source:     regexp.MustCompile(`^(nvidia-graphics-drivers|nvidia-open-gpu-kernel-modules|firmware-nvidia-graphics|fabric-?manager|nvidia-fabric-?manager)`),
	binary:     regexp.MustCompile(`^(nvidia-(driver|kernel|open-kernel|open-gpu-kernel|open|dkms|firmware|utils|compute-utils|headless|alternative|smi|fabricmanager|imex)(-|$)|libnvidia-(cfg|common|compute|decode|encode|extra|fbc|gl|ml|nscq|ptxjitcompiler)|libcuda1$|firmware-nvidia-gsp)`),
	exceptions: regexp.MustCompile(`^(nvidia-kernel-common|nvidia-driver-assistant|nvidia-driver-pinning-.*)$`),
}}

func (f family) has(p Package) bool {
	if f.exceptions.MatchString(p.Name) {
		return false
	}
	return p.Source != "" && f.source.MatchString(p.Source) || f.binary.MatchString(p.Name)
}

// CheckFamilies returns a *FamilyError for the first two packages of ps that
// belong to one family but not to one version.
func CheckFamilies(ps []Package) error {
	for _, fam := range families {
		var first *Package
		for i, p := range ps {
			switch {
			case !fam.has(p):
			case first == nil:
				first = &ps[i]
			case Upstream(p.Version) != Upstream(first.Version):
				return &FamilyError{Family: fam.name, A: *first, B: p}
			}
		}
	}
	return nil
}
