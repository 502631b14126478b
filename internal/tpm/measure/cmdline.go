package measure

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/turnout-project/turnout/internal/manifest"
)

// passesCmdline says which versions of systemd-boot hand the command line
// that is inside a UKI to that UKI as if a person had typed it. They measure
// it into PCR 12, and with Secure Boot off the stub does so again. (systemd
// 257 passes nothing; seen in the source of each version, and with 252 in a
// machine.)
var passesCmdline = map[int]bool{252: true, 254: true, 257: false}

// cmdlineEvent returns the digest of the event by which the loader measures
// the command line of u into PCR 12, or nil if it does not.
func (u *UKI) cmdlineEvent(loader []byte) (manifest.Digests, error) {
	im, err := parsePE(loader)
	if err != nil {
		return nil, err
	}
	version, err := im.version(programLoader)
	if err != nil {
		return nil, err
	}
	n, err := major(version)
	if err != nil {
		return nil, err
	}
	passes, known := passesCmdline[n]
	if !known {
		return nil, fmt.Errorf("%s %s: what it measures is not known; use that of systemd 252, 254 or 257", programLoader, version)
	}
	if !passes {
		return nil, nil
	}
	for _, s := range u.Sections {
		if s.Name == ".cmdline" {
			return cmdlineDigests(s.Data)
		}
	}
	return nil, nil
}

// cmdlineDigests hashes a command line as systemd-boot passes it on: control
// characters become spaces, spaces at the end go, and it is UTF-16 with a
// closing zero.
func cmdlineDigests(b []byte) (manifest.Digests, error) {
	text, _, _ := strings.Cut(string(b), "\x00")
	var wide []byte
	for _, r := range strings.TrimRight(strings.Map(spaceControl, text), " ") {
		if r > '~' {
			return nil, errors.New("the kernel command line holds a character that is not ASCII")
		}
		wide = binary.LittleEndian.AppendUint16(wide, uint16(r))
	}
	if len(wide) == 0 {
		return nil, nil
	}
	wide = append(wide, 0, 0)
	d := manifest.Digests{}
	for _, bank := range Banks {
		h := newHash(bank)
		h.Write(wide)
		d[bank] = hex.EncodeToString(h.Sum(nil))
	}
	return d, nil
}

func spaceControl(r rune) rune {
	if r <= 0x1f {
		return ' '
	}
	return r
}
