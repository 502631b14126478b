package device

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/google/go-tpm/tpm2"
)

// Info is what a TPM says of itself.
type Info struct {
	Manufacturer   string // "IFX", "AMD", "INTC", "IBM" (swtpm)
	Vendor         string // vendor's own text
	Firmware       string // "7.85.4555.0"
	LockoutCounter uint32 // failed authorisations that count for dictionary-attack lockout
	LockoutMax     uint32 // how many of them lock the TPM
	InLockout      bool   // it is locked. What this program does goes on: its keys are not subject to that
}

// String names the TPM for an inventory, and tells of a dictionary attack, or
// what looks like one: a power cut while an authorisation was under way
// counts too.
func (i Info) String() string {
	s := strings.TrimSpace(fmt.Sprintf("%s %s", strings.TrimSpace(i.Manufacturer+" "+i.Vendor), i.Firmware))
	switch {
	case i.InLockout:
		s += ", in dictionary-attack lockout"
	case i.LockoutCounter > 0:
		s += fmt.Sprintf(", dictionary-attack counter %d of %d", i.LockoutCounter, i.LockoutMax)
	}
	return s
}

// Info asks the TPM what it is.
func (d *Device) Info() (Info, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var p [7]uint32
	for i, id := range []tpm2.TPMPT{
		tpm2.TPMPTManufacturer, tpm2.TPMPTVendorString1, tpm2.TPMPTVendorString2, tpm2.TPMPTVendorString3,
		tpm2.TPMPTVendorString4, tpm2.TPMPTFirmwareVersion1, tpm2.TPMPTFirmwareVersion2,
	} {
		v, err := d.property(id)
		if err != nil {
			return Info{}, fmt.Errorf("asking the TPM what it is: %w", explain(err))
		}
		p[i] = v
	}
	info := Info{
		Manufacturer: letters(p[0]),
		Vendor:       letters(p[1:5]...),
		Firmware:     fmt.Sprintf("%d.%d.%d.%d", p[5]>>16, p[5]&0xffff, p[6]>>16, p[6]&0xffff),
	}
	if v, err := d.property(tpm2.TPMPTLockoutCounter); err == nil {
		info.LockoutCounter = v
	}
	if v, err := d.property(tpm2.TPMPTMaxAuthFail); err == nil {
		info.LockoutMax = v
	}
	const inLockout = 1 << 9 // of TPMA_PERMANENT (TPM 2.0 Part 2, section 8.6)
	if v, err := d.property(tpm2.TPMPTPermanent); err == nil {
		info.InLockout = v&inLockout != 0
	}
	return info, nil
}

// letters decodes text that is packed into numbers, printable ASCII only.
func letters(words ...uint32) string {
	var b strings.Builder
	for _, w := range words {
		for _, c := range binary.BigEndian.AppendUint32(nil, w) {
			if c >= ' ' && c <= '~' {
				b.WriteByte(c)
			}
		}
	}
	return strings.TrimSpace(b.String())
}

// property reads one TPM property.
func (d *Device) property(id tpm2.TPMPT) (uint32, error) {
	rsp, err := tpm2.GetCapability{Capability: tpm2.TPMCapTPMProperties, Property: uint32(id), PropertyCount: 1}.Execute(d.t)
	if err != nil {
		return 0, err
	}
	props, err := rsp.CapabilityData.Data.TPMProperties()
	if err != nil {
		return 0, err
	}
	for _, p := range props.TPMProperty {
		if p.Property == id {
			return p.Value, nil
		}
	}
	return 0, fmt.Errorf("the TPM has no property %#x", uint32(id))
}
