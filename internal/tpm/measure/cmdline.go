package measure

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"

	"github.com/turnout-project/turnout/internal/manifest"
)

// cmdlineEvent returns the digest of the event by which a systemd-boot of
// version 252 or 254 measures the command line of u into PCR 12. It hands the
// command line that is inside the UKI to the UKI as if a person had typed it,
// and measures it; with Secure Boot off the stub then does so again. Version
// 257 passes nothing. (Read in the source of each; seen in machines with 252
// and 257.) It is given whatever the image's own loader is: the ESP has one
// loader for both slots, perhaps that of another image. The result is nil if
// there is no command line.
func (u *UKI) cmdlineEvent() (manifest.Digests, error) {
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
