package timeline_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/timeline"
)

// in shortens episodes to "title [outcome]: phase=state …".
func in(eps []api.Episode) (out []string) {
	for _, e := range eps {
		var steps []string
		for _, s := range e.Steps {
			steps = append(steps, s.Phase+"="+s.State)
		}
		out = append(out, fmt.Sprintf("%s [%s]: %s", e.Title, e.Outcome, strings.Join(steps, " ")))
	}
	return out
}

// told makes events of lines "kind: message", a second apart.
func told(lines string) (ev []fleet.Event) {
	for l := range strings.Lines(strings.TrimSpace(lines)) {
		kind, msg, _ := strings.Cut(strings.TrimSpace(l), ": ")
		id := int64(len(ev) + 1)
		ev = append(ev, fleet.Event{ID: id, At: time.Unix(id, 0), Kind: kind, Message: msg})
	}
	return ev
}

const firstBoot = `
	dhcp.offer: offered installer.efi
	dhcp.ack: uefi-pxe has 10.77.0.179
	tftp.sent: installer.efi
	dhcp.ack: nodeagent has 10.77.0.179
	node.approve: in pool canary
	node.enrolled: TPM 2ee0
	node.wanted: image 15b5: first installation
	attest.accepted: by boot path installer
	install.disk: /dev/vda is laid out anew
	install.started: demo 1 into slot A of /dev/vda
	slot.armed: slot A
	node.rebooting: installed: starting from disk`

const trial = `
	dhcp.ack: nodeagent has 10.77.0.179
	attest.accepted: by boot path disk
	node.booted: slot A (trying), demo 1`

const confirmed = `
	health.passed: whole soak
	slot.confirmed: slot A
	node.slot-good: trying -> good`

// The lines are those of the demo's virtual rack.
func TestEpisodes(t *testing.T) {
	const installed = "Installation [confirmed]: net=done enrol=done note=done install=done restart=done attest=done boot=done health=done outcome=done"
	for _, tt := range []struct {
		name, lines string
		want        []string
	}{
		{"nothing", "", nil},
		{"first boot, under way", firstBoot, []string{"Installation []: net=done enrol=done note=done install=done restart=active"}},
		{"first boot", firstBoot + trial + confirmed, []string{installed}},
		{"leases are renewed without a new episode", firstBoot + trial + confirmed + "\ndhcp.ack: again\ndhcp.ack: again", []string{installed}},
		{"rollout that falls back", firstBoot + trial + confirmed + `
			rollout.node-started: asked to run demo 3
			install.started: image f490 into slot B
			install.progress: 75 %: reading back
			slot.armed: slot B
			node.rebooting: slot B is armed
			attest.accepted: by boot path disk
			node.booted: slot B (trying), demo 3
			health.failed: check "late": never
			node.trial-failing: check late
			slot.condemned: slot B
			image.banned: image f490
			node.booted: slot A (good), demo 1
			attest.accepted: by boot path disk`, []string{installed,
			"Rollout [fell back]: note=done install=done restart=done attest=done boot=done health=failed outcome=failed",
			"Boot [running]: boot=done attest=done"}},
		{"fall back in the order of the demo's third scene", firstBoot + trial + confirmed + `
			rollout.node-started: asked to run demo 3
			install.started: image d38a into slot B
			slot.armed: slot B
			node.rebooting: slot B is armed
			dhcp.ack: nodeagent has 10.77.0.179
			attest.accepted: runs demo 3
			health.failed: check "workload"
			node.booted: slot B (trying), demo 3
			node.trial-failing: check workload
			slot.condemned: slot B
			node.rebooting: health check "workload" failed
			node.slot-bad: slot B: trying -> bad
			image.banned: image d38a
			rollout.node-failed: health check
			dhcp.ack: nodeagent has 10.77.0.179
			attest.accepted: runs demo 2
			node.booted: slot A (good), demo 2`, []string{installed,
			"Rollout [fell back]: note=done install=done restart=done attest=done health=failed boot=done outcome=failed",
			"Boot [running]: attest=done boot=done"}},
		{"a hang in early boot, and health of the boot before", firstBoot + trial + confirmed + `
			rollout.node-started: asked to run demo 4
			install.started: image cbaa into slot B
			health.passed: whole soak
			slot.armed: slot B
			node.rebooting: slot B is armed
			attest.accepted: runs demo 2
			node.booted: slot A (good), demo 2
			node.slot-bad: slot B: armed -> bad
			image.banned: ran out of trial boots
			health.passed: whole soak`, []string{installed,
			"Rollout [fell back]: note=done install=done restart=done attest=done boot=done outcome=failed"}},
		{"refused attestation", firstBoot + "\nattest.refused: PCR 4", []string{
			"Installation [failed]: net=done enrol=done note=done install=done restart=done attest=failed"}},
		{"operator's flip", "slot.flip: A -> B\nslot.armed: slot B\nnode.rebooting: armed\nnode.booted: slot B (good)", []string{
			"Slot flip [running]: note=done restart=done boot=done"}},
		{"installation that is refused", firstBoot + trial + confirmed + "\nnode.reimage: with demo 2\ninstall.started: image f490 into slot B\ninstall.refused: signature", []string{
			installed, "Reinstallation [failed]: note=done install=failed"}},
	} {
		var ev []fleet.Event
		if tt.lines != "" {
			ev = told(tt.lines)
		}
		got := timeline.Episodes(ev)
		if d := cmp.Diff(tt.want, in(got)); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
	}
}

func TestProgress(t *testing.T) {
	got := timeline.Episodes(told("install.started: image into slot B\ninstall.progress: 25 %: writing root\ninstall.progress: 51 %: writing root"))
	s := got[0].Steps[0]
	if s.Percent != 51 || s.Detail != "51 %: writing root" || len(s.Events) != 3 || s.Ended.Sub(s.Started) != 2*time.Second {
		t.Errorf("step = %+v; want 51 %% after 3 events in 2 s", s)
	}
}

// Whatever order events come in, none is lost and none is in two places.
func FuzzEpisodes(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3})
	kinds := []string{"dhcp.offer", "dhcp.ack", "tftp.sent", "node.enrolled", "node.wanted", "attest.accepted", "attest.refused", "install.started", "install.failed",
		"slot.armed", "node.rebooting", "node.booted", "health.passed", "health.failed", "slot.confirmed", "slot.condemned", "node.lost", "slot.flip", "x"}
	f.Fuzz(func(t *testing.T, order []byte) {
		var ev []fleet.Event
		for i, b := range order {
			ev = append(ev, fleet.Event{ID: int64(i), At: time.Unix(int64(i), 0), Kind: kinds[int(b)%len(kinds)]})
		}
		seen := map[int64]bool{}
		for _, e := range timeline.Episodes(ev) {
			for _, s := range e.Steps {
				for _, x := range s.Events {
					if seen[x.ID] || x.At.Before(e.Started) || x.At.After(e.Ended) {
						t.Fatalf("event %d is in two steps, or out of its episode", x.ID)
					}
					seen[x.ID] = true
				}
			}
		}
		if len(seen) != len(ev) {
			t.Fatalf("%d events of %d", len(seen), len(ev))
		}
	})
}
