package judge

import (
	"bytes"
	"errors"
	"fmt"
	"iter"

	"github.com/turnout-project/turnout/internal/tpm/eventlog"
	"github.com/turnout-project/turnout/internal/tpm/measure"
)

// firmwarePCRs are those of Selection whose value the firmware's log alone
// must lead to. PCR 11 gets the boot phases after the log ended.
var firmwarePCRs = []int{0, 1, 2, 3, 4, 5, 6, 7, 12, 13}

// readLog parses the log.
func (c *court) readLog() bool {
	log, err := eventlog.ParseBank(c.in.Log, c.in.Bank)
	var m *eventlog.MalformedError
	switch {
	case errors.Is(err, eventlog.ErrEmpty):
		c.find(KindNoLog, -1, "event log", "the node sent no event log: its firmware or kernel has none")
		return false
	case errors.As(err, &m):
		c.find(KindTruncated, -1, "event log", m.Error())
		return false
	case err != nil:
		c.find(KindTruncated, -1, "event log", err.Error())
		return false
	}
	if !log.Has(c.in.Bank) {
		detail := fmt.Sprintf("the event log has no %s digests", c.in.Bank)
		if !log.Agile {
			detail = fmt.Sprintf("the event log is in the old form with SHA-1 only, so that bank %s cannot be verified; kernels 4.16 to 5.2 ask the firmware for that form", c.in.Bank)
		}
		c.find(KindLogBank, -1, "event log", detail)
		return false
	}
	c.log = log
	c.replayed = log.Replay(c.in.Bank, Selection...)
	c.proven = map[int]bool{}
	return true
}

// eventsOf goes through the events that extended a PCR.
func (c *court) eventsOf(pcr int) iter.Seq2[int, eventlog.Event] {
	return func(yield func(int, eventlog.Event) bool) {
		for i := range c.log.Events {
			if e := &c.log.Events[i]; e.PCR == pcr && e.Extends() && !yield(i, *e) {
				return
			}
		}
	}
}

// logValue returns what the log says a PCR must be: the replayed value, or
// the reset value for one without events; nil if it cannot be known.
func (c *court) logValue(pcr int) []byte {
	if v, ok := c.replayed[pcr]; ok {
		return v
	}
	v, n := c.log.ReplayPCR(c.in.Bank, pcr, len(c.log.Events))
	if n == 0 {
		c.replayed[pcr] = v
	}
	return v
}

// replayAll requires the log to lead to the quoted values.
func (c *court) replayAll() {
	for _, p := range firmwarePCRs {
		if bytes.Equal(c.logValue(p), c.in.PCRs[p]) {
			c.proven[p] = true
			continue
		}
		f := c.find(KindReplay, p, "replay of the event log", c.explainReplay(p))
		f.Expected, f.Seen = hexOf(c.logValue(p)), hexOf(c.in.PCRs[p])
	}
	if c.phase(c.logValue(11)) != nil {
		c.proven[11] = true
		return
	}
	f := c.find(KindReplay, 11, "replay of the event log", c.explainReplay(11))
	f.Expected, f.Seen = hexOf(c.logValue(11)), hexOf(c.in.PCRs[11])
}

// phase returns the boot phase that leads from the log's value of PCR 11 to
// the quoted one, or nil.
func (c *court) phase(base []byte) *string {
	for _, p := range measure.Phases {
		if bytes.Equal(extendPhase(c.in.Bank, base, p), c.in.PCRs[11]) {
			return &p
		}
	}
	return nil
}

// explainReplay guesses why the log does not lead to a quoted value.
func (c *court) explainReplay(pcr int) string {
	quoted := c.in.PCRs[pcr]
	if c.logValue(pcr) == nil {
		return fmt.Sprintf("the log has events of PCR %d without a %s digest", pcr, c.in.Bank)
	}
	if _, n := c.log.ReplayPCR(c.in.Bank, pcr, len(c.log.Events)); n == 0 {
		return fmt.Sprintf("PCR %d was extended, but the log has no event for it", pcr)
	}
	if uniform(quoted) {
		return fmt.Sprintf("the log has events for PCR %d, but it was never extended", pcr)
	}
	for i := len(c.log.Events) - 1; i > 0; i-- {
		e := c.log.Events[i]
		if e.PCR != pcr || !e.Extends() {
			continue
		}
		if v, _ := c.log.ReplayPCR(c.in.Bank, pcr, i); bytes.Equal(v, quoted) {
			return fmt.Sprintf("the log has an event for PCR %d that the TPM never saw: event %d (%s)", pcr, i, e)
		}
	}
	if pcr == 5 && bytes.Equal(quoted, c.withExitBootServices()) {
		return "the log lacks the ExitBootServices events of PCR 5, a known firmware fault; update the firmware"
	}
	if pcr == 11 {
		return "PCR 11 was extended by something that is neither in the log nor a boot phase"
	}
	return fmt.Sprintf("the log does not lead to the value of PCR %d: events are missing or were changed", pcr)
}

// withExitBootServices returns PCR 5 as the log and the two events that some
// firmwares forget to log lead to.
func (c *court) withExitBootServices() []byte {
	v := c.logValue(5)
	for _, action := range []string{"Exit Boot Services Invocation", "Exit Boot Services Returned with Success"} {
		v = eventlog.Extend(c.in.Bank, v, eventlog.Hash(c.in.Bank, []byte(action)))
	}
	return v
}
