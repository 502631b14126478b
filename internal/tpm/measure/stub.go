package measure

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// stubRule is what one major version of systemd-stub does.
type stubRule struct {
	sections []string // measured into PCR 11, in this order
	prefix   bool     // section names are compared by prefix, and the last match counts
	kernel   bool     // the kernel is started with LoadImage, which the firmware measures
}

// The sections measured, oldest first. .pcrsig stands between .sbat and
// .pcrpkey in systemd's list and is never measured.
var (
	sections252 = []string{".linux", ".osrel", ".cmdline", ".initrd", ".splash", ".dtb", ".pcrpkey"}
	sections254 = []string{".linux", ".osrel", ".cmdline", ".initrd", ".splash", ".dtb", ".uname", ".sbat", ".pcrpkey"}
	sections257 = []string{".linux", ".osrel", ".cmdline", ".initrd", ".ucode", ".splash", ".dtb", ".uname", ".sbat",
		".pcrpkey", ".profile", ".dtbauto", ".hwids"}
)

// stubRules holds the versions whose source was read. A version that is not
// here is an error: a wrong prediction would refuse good nodes. From 258 on
// the stub starts the kernel without LoadImage (systemd pull request 37372).
var stubRules = map[int]stubRule{
	252: {sections: sections252, prefix: true, kernel: true}, // Debian 12
	254: {sections: sections254, prefix: true, kernel: true}, // Debian 12 backports
	257: {sections: sections257, kernel: true},               // Debian 13
}

// unpredictable are sections of which the stub chooses by the machine it runs
// on, or by what the user picked.
var unpredictable = []string{".profile", ".dtbauto"}

const magicSection = ".sdmagic"

// Programs of systemd that name themselves in their .sdmagic section.
const (
	programStub   = "systemd-stub"
	programLoader = "systemd-boot"
)

// version reads a program's version from its .sdmagic section, which holds
// "#### LoaderInfo: systemd-stub 252.39-1~deb12u2 ####".
func (im *image) version(program string) (string, error) {
	for _, s := range im.sections {
		if s.name != magicSection {
			continue
		}
		text, _, _ := bytes.Cut(im.file(s), []byte{0})
		v, ok := strings.CutPrefix(string(text), "#### LoaderInfo: "+program+" ")
		v, ok2 := strings.CutSuffix(v, " ####")
		if ok && ok2 && v != "" && len(v) < 64 {
			return v, nil
		}
		return "", fmt.Errorf("section %s is not of %s", magicSection, program)
	}
	return "", fmt.Errorf("no section %s: the file is not, or not made from, %s", magicSection, program)
}

// major returns the number that a version starts with.
func major(version string) (int, error) {
	digits := version
	if i := strings.IndexFunc(version, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		digits = version[:i]
	}
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0, fmt.Errorf("version %q does not start with a number", version)
	}
	return n, nil
}

// ruleFor returns what the stub of that version does.
func ruleFor(version string) (stubRule, error) {
	n, err := major(version)
	if err != nil {
		return stubRule{}, fmt.Errorf("%s: %w", programStub, err)
	}
	rule, ok := stubRules[n]
	if !ok {
		return stubRule{}, fmt.Errorf("%s %s: what it measures is not known; use that of systemd 252, 254 or 257", programStub, version)
	}
	return rule, nil
}

// find returns the section that the stub takes for name, or nil. Files in
// which stubs could disagree (two candidates) are refused.
func (r stubRule) find(im *image, name string) (*header, error) {
	var found *header
	for i, s := range im.sections {
		match := s.name == name || r.prefix && strings.HasPrefix(s.name, name)
		if !match {
			continue
		}
		if found != nil || s.name != name {
			return nil, fmt.Errorf("section %q could be taken for %q by systemd-stub; build the UKI without it", s.name, name)
		}
		found = &im.sections[i]
	}
	if found != nil && found.virtualSize != 0 && slices.Contains(r.sections, name) && slices.Contains(unpredictable, name) {
		return nil, fmt.Errorf("section %s makes the measurements depend on the machine; build the UKI without it", name)
	}
	return found, nil
}

// errNoKernel is returned for a PE file on the stub that has no .linux.
var errNoKernel = errors.New("the UKI has no .linux section")
