package top

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mattn/go-runewidth"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func well(name, pool string) api.FleetRow {
	return api.FleetRow{Name: name, Pool: pool, State: fleet.NodeApproved, Stage: fleet.StageSystem, Slot: fleet.SlotA, SlotState: fleet.SlotGood,
		ImageName: "rack 1.0", Health: api.HealthGood, Attest: api.AttestAccepted}
}

func sample() *Fleet {
	f := &Fleet{}
	rows := []api.FleetRow{}
	for i := range 40 {
		rows = append(rows, well(fmt.Sprintf("r1-n%02d", i), "training"))
	}
	rows[3].Attest = api.AttestRefused
	rows[4].Health, rows[4].Check = api.HealthFailing, "gpu-count: 7 of 8 GPUs"
	rows[5].Wanted, rows[5].Activity = "sha256:2", "installing 40 %"
	seen := now.Add(-90 * time.Second)
	rows[6].Silent = &seen
	rows[7].Name, rows[7].State = "new-1\x1b[2J", fleet.NodePending
	f.Take(api.News{Rows: &api.Rows{Reset: true, Whole: true, Rows: rows}})
	for i := range 300 {
		f.Take(api.News{Events: []fleet.Event{{ID: int64(i), At: now, Node: "r1-n00", Kind: "node.booted", Message: fmt.Sprintf("event %d", i)}}})
	}
	f.Rollouts = []api.RolloutSummary{{Rollout: fleet.Rollout{ID: "r7", State: fleet.RolloutRunning},
		Counts: []map[fleet.MoveState]int{{fleet.MoveDone: 5}, {fleet.MoveMoving: 2, fleet.MoveWaiting: 13}}}}
	return f
}

// A screen shows the worst first and fits, in cells, whatever its size.
func TestDrawFits(t *testing.T) {
	f := sample()
	for _, size := range [][2]int{{80, 24}, {200, 60}, {40, 10}, {12, 3}, {1, 1}, {120, 0}, {0, 0}} {
		lines := f.Draw(Screen{Width: size[0], Height: size[1], Now: now})
		if size[1] > 0 && len(lines) > size[1] {
			t.Errorf("%v: %d lines", size, len(lines))
		}
		for _, l := range lines {
			if size[0] > 0 && runewidth.StringWidth(l) > size[0] {
				t.Errorf("%v: %d cells: %q", size, runewidth.StringWidth(l), l)
			}
			if strings.Contains(l, "\x1b") {
				t.Errorf("%v: a control character of a node's name got through: %q", size, l)
			}
		}
	}
	text := strings.Join(f.Draw(Screen{Width: 160, Height: 40, Now: now}), "\n")
	at := 0
	for _, want := range []string{"40 nodes", "1 attestation refused", "training", "rack 1.0 ×40", "rollout r7 running", "5 of 20 done, 2 moving",
		"r1-n03", "r1-n04", "gpu-count: 7 of 8 GPUs", "r1-n06", "for 1m30s", "new-1", "r1-n05", "installing 40 %", "event 299"} {
		i := strings.Index(text[at:], want)
		if i < 0 {
			t.Fatalf("%q is not there, or not in its place, in:\n%s", want, text)
		}
		at += i
	}
	if strings.Contains(text, "r1-n20") {
		t.Error("a node that is well is listed")
	}
}

// With many nodes in trouble the list is cut, says so, and leaves room for
// what happens.
func TestDrawManyInTrouble(t *testing.T) {
	f := sample()
	for i := range 500 {
		r := well(fmt.Sprintf("r9-n%03d", i), "inference")
		r.Attest = api.AttestRefused
		f.Take(api.News{Rows: &api.Rows{Rows: []api.FleetRow{r}}})
	}
	lines := f.Draw(Screen{Width: 100, Height: 30, Now: now})
	text := strings.Join(lines, "\n")
	if !strings.Contains(text, "more: pxeserver node list") || !strings.Contains(text, "event 299") || len(lines) > 30 {
		t.Errorf("%d lines:\n%s", len(lines), text)
	}
}

func TestTakeForgets(t *testing.T) {
	f := sample()
	f.Take(api.News{Rows: &api.Rows{Gone: []string{"r1-n03"}}})
	if n := f.tally(""); n[Refused] != 0 || len(f.rows) != 39 {
		t.Errorf("%d rows, %d refused after the node was removed", len(f.rows), n[Refused])
	}
	f.Take(api.News{Rows: &api.Rows{Reset: true}})
	if len(f.rows) != 0 || f.whole {
		t.Errorf("%d rows after a reset", len(f.rows))
	}
	f.Trouble = "server not reachable"
	if text := strings.Join(f.Draw(Screen{Now: now}), "\n"); !strings.Contains(text, "no news: server not reachable") {
		t.Errorf("trouble is not said: %s", text)
	}
}

// A bar has as many cells as it should, and one at least for each status.
func TestBar(t *testing.T) {
	for _, c := range []struct{ refused, moving, well int }{{1, 0, 9999}, {0, 0, 1}, {1, 1, 0}, {5000, 1, 4999}, {9999, 1, 1}} {
		var tally [statuses]int
		tally[Refused], tally[Moving], tally[Well] = c.refused, c.moving, c.well
		text := ""
		for _, p := range bar(tally, c.refused+c.moving+c.well) {
			text += p[0]
		}
		if runewidth.StringWidth(text) != poolBar || c.refused > 0 && !strings.Contains(text, "✗") {
			t.Errorf("%+v: %q", c, text)
		}
	}
}

func TestColour(t *testing.T) {
	f := sample()
	if text := strings.Join(f.Draw(Screen{Width: 80, Height: 24, Colour: true, Now: now}), "\n"); !strings.Contains(text, "\x1b[31;1m") {
		t.Errorf("no colour in %q", text)
	}
}
