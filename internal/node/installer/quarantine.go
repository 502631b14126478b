//go:build linux

package installer

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/node/slots"
)

// errQuarantined is wrapped when the image that is wanted is the one that
// failed here, and there is no other to start. Installing it again would fail
// again, for ever: it takes another image, or an operator's word.
var errQuarantined = errors.New("quarantined")

// quarantined returns an error when no slot is good and the wished image
// failed here too often. An image may use up its trials by power cuts or for
// want of a server, so it is installed once more by itself: under the next
// generation (see generation), by which the second failure is known. A
// reinstallation and a retry are an operator's word, which counts until that
// very wish has failed. With a good slot to fall back to a trial costs little,
// so it is not refused.
func quarantined(st abslot.Status, bans []abslot.Ban, d fleet.Desired) error {
	short, failed := manifest.Short(d.Image), false
	judge := func(image string, generation uint64) {
		tooOften := generation > d.Generation
		if d.Reinstall || d.Retry {
			tooOften = generation == d.Generation
		}
		failed = failed || image == short && tooOften
	}
	for _, b := range bans {
		judge(b.Short, b.Generation)
	}
	var parts []string
	for _, s := range st.Slots {
		switch s.State {
		case fleet.SlotGood:
			return nil
		case fleet.SlotBad:
			judge(s.Short, s.Generation)
		}
		parts = append(parts, describe(s))
	}
	if !failed {
		return nil
	}
	return fmt.Errorf("%w: image %s failed on this node (%s); retry it, or give the node another image", errQuarantined, short, strings.Join(parts, ", "))
}

// generation returns the generation under which a wish is installed: its own,
// or one above all that this disk has seen.
func generation(st abslot.Status, bans []abslot.Ban, d fleet.Desired) uint64 {
	g := max(d.Generation, st.NextGeneration)
	for _, b := range bans {
		if b.Short == manifest.Short(d.Image) {
			g = max(g, b.Generation+1)
		}
	}
	return g
}

// describe says "slot A is bad (health check failed)".
func describe(s abslot.SlotStatus) string {
	text := fmt.Sprintf("slot %s is %s", s.Slot, s.State)
	if s.Short != "" {
		text += ", image " + s.Short
	}
	if s.Reason != "" {
		text += " (" + s.Reason + ")"
	}
	return text
}

// mayReplace looks at the disk that a reinstallation is going to erase: if it
// shows that this very wish was carried out and failed, nothing is erased. A
// disk that cannot be read has nothing to say.
func (i *installer) mayReplace(ctx context.Context, path string, d fleet.Desired) error {
	dsk, err := disk.Open(path)
	if err != nil {
		return nil
	}
	m, err := i.open(dsk)
	if err == nil {
		var st abslot.Status
		if st, err = m.Status(ctx); err == nil {
			err = i.judge(ctx, m, st, d)
		}
	}
	_ = slots.Unmount() // it may not even be mounted
	if errors.Is(err, errQuarantined) {
		return err
	}
	return nil
}

// judge keeps the slots for the next report, with their images where the wish
// is refused: the server then shows what failed.
func (i *installer) judge(ctx context.Context, m *abslot.Machine, st abslot.Status, d fleet.Desired) error {
	i.slots = st.Report()
	err := quarantined(st, m.Bans(ctx), d)
	if err != nil {
		for n, s := range st.Slots {
			i.slots[n].Image = s.Short
		}
	}
	return err
}
