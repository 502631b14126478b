package judge

import (
	"bytes"
	"encoding/hex"
	"fmt"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/tpm/eventlog"
)

// judgeZero requires the PCRs that nothing may be measured into to be empty.
func (c *court) judgeZero() {
	for _, p := range c.in.Manifest.Measurements.Zero {
		v, ok := c.in.PCRs[p]
		if ok && len(v) > 0 && bytes.Equal(v, make([]byte, len(v))) {
			continue
		}
		if p == 12 && c.ownCmdline(v) {
			continue
		}
		f := c.find(KindPCRValue, p, "empty PCR", fmt.Sprintf("something was added to the UKI at boot: a command line, credentials or extensions are measured into PCR %d", p))
		f.Expected, f.Seen = hexOf(make([]byte, eventlog.Size(c.in.Bank))), hexOf(v)
		c.nameAddition(f)
	}
}

// nameAddition points a finding to the first event of its PCR that is not the
// UKI's own command line.
func (c *court) nameAddition(f *fleet.Finding) {
	own := c.in.Manifest.Measurements.Cmdline[c.in.Bank]
	if !c.proven[f.PCR] {
		return
	}
	for _, e := range c.eventsOf(f.PCR) {
		if d := hexOf(e.Digest(c.in.Bank)); d != own {
			f.Event, f.What, f.Expected, f.Seen = e.Index, e.String(), "", d
			return
		}
	}
}

// ownCmdline reports whether PCR 12 holds nothing but the slot UKI's own
// command line. Old loaders pass it to the UKI and measure it; with Secure
// Boot off the stub measures it a second time.
func (c *court) ownCmdline(value []byte) bool {
	if c.in.Stage == fleet.StageInstaller {
		return false // nothing lies between the firmware and the installer
	}
	d, err := hex.DecodeString(c.in.Manifest.Measurements.Cmdline[c.in.Bank])
	if err != nil || len(d) != eventlog.Size(c.in.Bank) {
		return false
	}
	v := make([]byte, len(d))
	for range 2 {
		v = eventlog.Extend(c.in.Bank, v, d)
		if bytes.Equal(v, value) {
			return true
		}
	}
	return false
}
