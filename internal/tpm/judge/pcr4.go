package judge

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/tpm/eventlog"
	"github.com/turnout-project/turnout/internal/tpm/measure"
)

func hexOf(b []byte) string { return hex.EncodeToString(b) }

// start is one attempt of the firmware to boot: the applications it loaded
// between "Calling" and the next "Returning" or the end of the log.
type start struct {
	apps     []eventlog.Event
	returned bool
}

// judgePCR4 checks what the firmware started.
func (c *court) judgePCR4() {
	if !c.proven[4] {
		return
	}
	starts, bad := c.starts()
	if bad != nil {
		c.verdict.Findings = append(c.verdict.Findings, *bad)
		return
	}
	for _, s := range starts[:len(starts)-1] {
		for _, e := range s.apps {
			if !c.known(e) {
				c.verdict.Findings = append(c.verdict.Findings, c.unexpected(e, "an unknown program ran before the image did"))
			}
		}
	}
	last := starts[len(starts)-1]
	if last.returned {
		c.find(KindEvent, 4, "boot attempt", "the last program that the firmware started gave up and returned to it")
		return
	}
	path, f := c.walk(last.apps)
	c.verdict.Path = path
	if f != nil {
		c.verdict.Findings = append(c.verdict.Findings, *f)
	}
}

// walk finds the boot path that the applications went, or what stopped the
// one that got furthest.
func (c *court) walk(apps []eventlog.Event) (path string, stopped *fleet.Finding) {
	furthest := -1
	for _, p := range c.candidates() {
		left, f := c.follow(p, apps)
		if f == nil {
			return p.Name, nil
		}
		if came := len(p.Applications) - left; came > furthest {
			furthest, stopped = came, f
		}
	}
	if stopped == nil {
		stopped = &fleet.Finding{
			Kind: KindRequest, PCR: 4, Event: -1, What: "manifest",
			Detail: fmt.Sprintf("the manifest has no boot path for stage %q", c.in.Stage),
		}
	}
	return "", stopped
}

// candidates returns the boot paths that are right for the stage, the one
// that the node claims first. Its claim decides nothing: each path starts the
// same UKI.
func (c *court) candidates() []manifest.BootPath {
	names := []string{measure.PathDisk, measure.PathNetwork}
	if c.in.Stage == fleet.StageInstaller {
		names = []string{measure.PathInstaller}
	}
	var out []manifest.BootPath
	for _, n := range names {
		p, ok := c.in.Manifest.Measurements.Path(n)
		switch {
		case !ok:
		case n == c.in.Path:
			out = append([]manifest.BootPath{p}, out...)
		default:
			out = append(out, p)
		}
	}
	return out
}

// starts splits the events of PCR 4 into boot attempts. Its structure is
// known by digests: Calling, one separator, applications, and for each failed
// boot option Returning, Calling.
func (c *court) starts() ([]start, *fleet.Finding) {
	known := known[c.in.Bank]
	out := []start{{}}
	separated := false
	for _, e := range c.eventsOf(4) {
		cur := &out[len(out)-1]
		switch d := e.Digest(c.in.Bank); {
		case known.isSeparator(d) && separated:
			f := c.unexpected(e, "a second separator")
			return nil, &f
		case known.isSeparator(d):
			separated = true
		case string(d) == known.returning:
			cur.returned = true
		case string(d) == known.calling:
			if cur.returned || len(cur.apps) > 0 {
				out = append(out, start{})
			}
		default:
			cur.apps = append(cur.apps, e)
		}
	}
	if !separated {
		return nil, &fleet.Finding{Kind: KindEvent, PCR: 4, Event: -1, What: "separator", Detail: "the firmware never closed its part of PCR 4 with a separator"}
	}
	return out, nil
}

// follow walks along a boot path with the applications that were started. The
// finding is nil if they are those of the path; else left says how many of
// the path's applications were still to come.
func (c *court) follow(p manifest.BootPath, apps []eventlog.Event) (left int, stopped *fleet.Finding) {
	want := p.Applications
	for _, e := range apps {
		d := hexOf(e.Digest(c.in.Bank))
		for len(want) > 0 && want[0].Optional && want[0].Authenticode[c.in.Bank] != d {
			want = want[1:]
		}
		allowed, isAllowed := c.allowed(d)
		switch {
		case len(want) > 0 && want[0].Authenticode[c.in.Bank] == d:
			want = want[1:]
		case isAllowed && len(want) > 0 && want[0].Name == measure.AppLoader && allowed == measure.AppLoader:
			want = want[1:]
		case isAllowed:
		case len(want) == 0:
			f := c.unexpected(e, "the firmware started a program after the image's own")
			return 0, &f
		default:
			f := c.different(e, want[0])
			return len(want), &f
		}
	}
	for i, a := range want {
		if !a.Optional {
			return len(want) - i, &fleet.Finding{
				Kind: KindEvent, PCR: 4, Event: -1, What: a.Name, Expected: a.Authenticode[c.in.Bank],
				Detail: fmt.Sprintf("the log has no event for the start of %s", a.Name),
			}
		}
	}
	return 0, nil
}

// allowed looks a digest up in AllowApplications.
func (c *court) allowed(digest string) (name string, ok bool) {
	name, ok = c.in.AllowApplications[digest]
	if !ok {
		name, ok = c.in.AllowApplications[strings.ToUpper(digest)]
	}
	return name, ok
}

// known reports whether a program that ran in a failed boot attempt is one of
// the image's own, or allowed by name.
func (c *court) known(e eventlog.Event) bool {
	d := hexOf(e.Digest(c.in.Bank))
	if _, ok := c.allowed(d); ok {
		return true
	}
	for _, p := range c.in.Manifest.Measurements.Paths {
		for _, a := range p.Applications {
			if a.Authenticode[c.in.Bank] == d {
				return true
			}
		}
	}
	return false
}

// different is the finding that another program was started than expected.
func (c *court) different(e eventlog.Event, want manifest.Application) fleet.Finding {
	f := c.unexpected(e, "")
	f.What = want.Name
	f.Expected = want.Authenticode[c.in.Bank]
	f.Detail = fmt.Sprintf("the %s that was started is not the one that was built", want.Name)
	if d := e.Describe(); d != "" {
		f.Detail += " (the firmware says it loaded " + d + ")"
	}
	return f
}

// unexpected is the finding that an event should not be there.
func (c *court) unexpected(e eventlog.Event, detail string) fleet.Finding {
	return fleet.Finding{Kind: KindEvent, PCR: e.PCR, Event: e.Index, What: e.String(), Seen: hexOf(e.Digest(c.in.Bank)), Detail: detail}
}
