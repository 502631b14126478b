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

// stubVersion reads the version from the stub's .sdmagic section, which holds
// "#### LoaderInfo: systemd-stub 252.39-1~deb12u2 ####".
func (im *image) stubVersion() (string, error) {
	for _, s := range im.sections {
		if s.name != magicSection {
			continue
		}
		text, _, _ := bytes.Cut(im.file(s), []byte{0})
		v, ok := strings.CutPrefix(string(text), "#### LoaderInfo: systemd-stub ")
		v, ok2 := strings.CutSuffix(v, " ####")
		if ok && ok2 && v != "" && len(v) < 64 {
			return v, nil
		}
		return "", fmt.Errorf("section %s is not of systemd-stub", magicSection)
	}
	return "", fmt.Errorf("no section %s: the file was not made from systemd's EFI stub", magicSection)
}

// ruleFor returns what the stub of that version does.
func ruleFor(version string) (stubRule, error) {
	digits := version
	if i := strings.IndexFunc(version, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		digits = version[:i]
	}
	major, err := strconv.Atoi(digits)
	if err != nil {
		return stubRule{}, fmt.Errorf("systemd-stub version %q does not start with a number", version)
	}
	rule, ok := stubRules[major]
	if !ok {
		return stubRule{}, fmt.Errorf("systemd-stub %s: what it measures is not known; use the stub of systemd 252, 254 or 257", version)
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
