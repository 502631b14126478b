package abslot

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/turnout-project/turnout/internal/fleet"
)

// journal holds what file names cannot: reasons, bans, the name before
// arming. It is a cache. It is written after the step it tells of, its loss
// or damage costs explanations and bans, never a boot, and no transition
// fails because it could not be written.
type journal struct {
	Version int                     `json:"version"`
	Slots   map[fleet.Slot]slotNote `json:"slots,omitempty"`
	Bans    []Ban                   `json:"bans,omitempty"`
}

type slotNote struct {
	Writing bool   `json:"writing,omitempty"` // Begin was called, Stage was not
	Before  string `json:"before,omitempty"`  // file name before arming, for Cancel
	Granted int    `json:"granted,omitempty"` // trial boots granted by the last Arm or Flip
}

// Ban remembers an image that failed on this node.
type Ban struct {
	Short      string `json:"short"`
	Generation uint64 `json:"generation"` // it had when it failed
	Reason     string `json:"reason"`
}

const (
	journalVersion = 1
	maxBans        = 32
	maxSmallFile   = 4 << 20
)

const exhaustedReason = "ran out of trial boots without a confirm"

// readJournal returns an empty journal for one that is missing or damaged.
func (m *Machine) readJournal(ctx context.Context) journal {
	j := journal{}
	b, err := m.readFile(ctx, journalPath())
	if err == nil {
		if json.Unmarshal(b, &j) != nil || j.Version != journalVersion {
			j = journal{}
		}
	}
	j.Version = journalVersion
	if j.Slots == nil {
		j.Slots = map[fleet.Slot]slotNote{}
	}
	return j
}

// note changes the journal. Failure is logged and otherwise ignored.
func (m *Machine) note(ctx context.Context, change func(*journal)) {
	j := m.readJournal(ctx)
	change(&j)
	b, err := json.MarshalIndent(j, "", " ")
	if err == nil {
		err = m.cfg.ESP.Put(ctx, journalPath(), bytes.NewReader(b), int64(len(b)))
	}
	if err != nil {
		m.log("slot journal not written, it is only a cache: %v", err)
	}
}

func (j *journal) set(s fleet.Slot, n slotNote) { j.Slots[s] = n }

// ban adds or renews a ban; the oldest is dropped beyond maxBans.
func (j *journal) ban(b Ban) {
	j.lift(b.Short)
	j.Bans = append(j.Bans, b)
	if n := len(j.Bans) - maxBans; n > 0 {
		j.Bans = j.Bans[n:]
	}
}

func (j *journal) lift(short string) {
	kept := j.Bans[:0]
	for _, b := range j.Bans {
		if b.Short != short {
			kept = append(kept, b)
		}
	}
	j.Bans = kept
}

func (j *journal) banned(short string) (Ban, bool) {
	for _, b := range j.Bans {
		if b.Short == short {
			return b, true
		}
	}
	return Ban{}, false
}

func (j *journal) reason(short string, done int) string {
	if b, ok := j.banned(short); ok {
		return b.Reason
	}
	if done < condemnedDone {
		return exhaustedReason
	}
	return "condemned; the reason was lost with the journal"
}

// readFile returns a small file of the ESP.
func (m *Machine) readFile(ctx context.Context, path string) ([]byte, error) {
	f, size, err := m.cfg.ESP.Open(ctx, path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > maxSmallFile {
		return nil, fmt.Errorf("%s: %d bytes is too much", path, size)
	}
	return io.ReadAll(io.NewSectionReader(f, 0, size))
}

func journalPath() string              { return TurnoutDir + "/" + journalFile }
func manifestPath(short string) string { return TurnoutDir + "/" + short + ".json" }

// rootHashIn returns the value of the key "rootHash" anywhere in a JSON text,
// provided that there is exactly one.
func rootHashIn(b []byte) string {
	var v any
	if json.Unmarshal(b, &v) != nil {
		return ""
	}
	found := map[string]bool{}
	collect(v, found)
	if len(found) != 1 {
		return ""
	}
	for h := range found {
		return h
	}
	return ""
}

func collect(v any, found map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if s, ok := x.(string); ok && k == "rootHash" {
				found[s] = true
			}
			collect(x, found)
		}
	case []any:
		for _, x := range v {
			collect(x, found)
		}
	}
}
