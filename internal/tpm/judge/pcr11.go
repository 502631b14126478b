package judge

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/tpm/eventlog"
	"github.com/turnout-project/turnout/internal/tpm/measure"
)

// extendPhase extends a value with the words of a boot phase. A nil value
// stays nil.
func extendPhase(bank string, value []byte, phase string) []byte {
	if value == nil {
		return nil
	}
	for _, d := range known[bank].phases[phase] {
		value = eventlog.Extend(bank, value, d)
	}
	return value
}

// wantPhase returns the phase that a stage attests in: the installer and a
// stranded initrd before the root was entered, the system after.
func wantPhase(s fleet.Stage) string {
	if s == fleet.StageSystem {
		return measure.Phases[2]
	}
	return measure.Phases[1]
}

// expected11 returns what the manifest says of PCR 11 for the stage.
func (c *court) expected11() ([]manifest.PhaseValue, []manifest.UKISection) {
	m := c.in.Manifest.Measurements
	if c.in.Stage == fleet.StageInstaller {
		return m.Installer11, m.SectionsInstaller
	}
	return m.PCR11, m.Sections
}

// judgePCR11 compares the quoted value with the manifest's, and explains a
// difference by the log.
func (c *court) judgePCR11() {
	if !c.proven[11] {
		return
	}
	values, sections := c.expected11()
	want := wantPhase(c.in.Stage)
	quoted := hexOf(c.in.PCRs[11])
	value := func(phase string) string {
		i := slices.IndexFunc(values, func(v manifest.PhaseValue) bool { return v.Phase == phase })
		if i < 0 {
			return ""
		}
		return values[i].PCR[c.in.Bank]
	}
	expected := value(want)
	if expected == "" {
		c.find(KindRequest, 11, "manifest", fmt.Sprintf("the manifest has no %s value of PCR 11 for phase %q", c.in.Bank, want))
		return
	}
	seen := *c.phase(c.logValue(11))
	c.verdict.Phase = seen
	if quoted == expected {
		return
	}
	if value(seen) == quoted {
		f := c.find(KindPhase, 11, "boot phase", fmt.Sprintf("the boot is in phase %q, expected is %q: the initrd did not measure its words, or something did before it", seen, want))
		f.Expected, f.Seen = expected, quoted
		return
	}
	f := c.find(KindPCRValue, 11, "UKI sections", "the sections of the UKI that was started are not those that were built")
	f.Expected, f.Seen = expected, quoted
	c.explainSections(sections)
}

// explainSections finds the first event of PCR 11 that is not as built.
func (c *court) explainSections(sections []manifest.UKISection) {
	type step struct {
		section  string
		digest   []byte
		contents bool
	}
	var want []step
	for _, s := range sections {
		d, err := hex.DecodeString(s.Digest[c.in.Bank])
		if err != nil || len(d) == 0 {
			return
		}
		want = append(want,
			step{s.Name, eventlog.Hash(c.in.Bank, append([]byte(s.Name), 0)), false},
			step{s.Name, d, true})
	}
	i := 0
	for _, e := range c.eventsOf(11) {
		if i == len(want) {
			f := c.unexpected(e, "the UKI has a section more than was built: "+e.Describe())
			c.verdict.Findings = append(c.verdict.Findings, f)
			return
		}
		if w := want[i]; !bytes.Equal(w.digest, e.Digest(c.in.Bank)) {
			f := c.unexpected(e, fmt.Sprintf("section %s of the UKI differs", w.section))
			if !w.contents {
				f.Detail = fmt.Sprintf("the UKI has section %s where %s was built", e.Describe(), w.section)
			}
			f.What, f.Expected = "section "+w.section, hexOf(w.digest)
			c.verdict.Findings = append(c.verdict.Findings, f)
			return
		}
		i++
	}
	if i < len(want) {
		c.find(KindEvent, 11, "section "+want[i].section, fmt.Sprintf("the UKI has no section %s", want[i].section))
	}
}
