package metrics

import (
	"context"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/store/mem"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func sample(t *testing.T) store.Store {
	t.Helper()
	ctx, s := context.Background(), mem.New()
	runs := func(image string, c fleet.CheckResult) *fleet.Report {
		return &fleet.Report{Stage: fleet.StageSystem, Booted: fleet.SlotA, Slots: []fleet.SlotReport{{Slot: fleet.SlotA, State: fleet.SlotGood, Image: image}}, Health: []fleet.CheckResult{c}}
	}
	hot := fleet.CheckResult{Required: true, Status: fleet.CheckFailed, Class: fleet.FaultEnvironment}
	well := fleet.CheckResult{Required: true, Status: fleet.CheckPassed}
	err := s.Update(ctx, func(tx store.Tx) error {
		return errors.Join(
			tx.PutImage(ctx, &fleet.Image{Digest: "sha256:aa", Name: "base", Version: "1"}),
			tx.PutPool(ctx, &fleet.Pool{Name: "rack", Image: "sha256:aa"}),
			tx.CreateNode(ctx, &fleet.Node{Name: "n1", Pool: "rack", State: fleet.NodeApproved, LastSeen: now, Reported: runs("sha256:aa", well), Verdict: &fleet.Verdict{Accepted: true}}),
			tx.CreateNode(ctx, &fleet.Node{Name: "n2", Pool: "rack", State: fleet.NodeApproved, LastSeen: now, Reported: runs("sha256:bb", hot), Verdict: &fleet.Verdict{}, Banned: []fleet.Ban{{}}}),
			tx.CreateNode(ctx, &fleet.Node{Name: "n3", Pool: "rack", State: fleet.NodeCordoned, LastSeen: now.Add(-time.Hour), Reported: runs("sha256:aa", hot)}),
			tx.CreateRollout(ctx, &fleet.Rollout{State: fleet.RolloutDone, Nodes: []fleet.Move{{Node: "n1", State: fleet.MoveDone}}}),
			tx.CreateRollout(ctx, &fleet.Rollout{State: fleet.RolloutRunning, Nodes: []fleet.Move{{Node: "n1", State: fleet.MoveMoving}}}),
		)
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func scrape(t *testing.T, m *Metrics) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	b, err := io.ReadAll(w.Result().Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.Code, string(b)
}

func TestScrape(t *testing.T) {
	m := New(sample(t), func() time.Time { return now }, "v1")
	m.Heartbeat(true, time.Millisecond)
	m.Heartbeat(false, time.Millisecond)
	m.Heartbeat(false, time.Millisecond)
	code, text := scrape(t, m)
	if code != 200 {
		t.Fatalf("status %d: %s", code, text)
	}
	for _, want := range []string{
		`turnout_nodes{pool="rack",state="approved"} 2`,
		`turnout_nodes{pool="rack",state="cordoned"} 1`,
		`turnout_nodes_silent{pool="rack"} 1`,
		`turnout_nodes_banned{pool="rack"} 1`,
		`turnout_nodes_off_pool_image{pool="rack"} 1`,
		`turnout_nodes_diagnosis{diagnosis="environment",pool="rack"} 1`,
		`turnout_nodes_diagnosis{diagnosis="healthy",pool="rack"} 1`,
		`turnout_nodes_attestation{pool="rack",verdict="accepted"} 1`,
		`turnout_nodes_attestation{pool="rack",verdict="refused"} 1`,
		`turnout_nodes_attestation{pool="rack",verdict="none"} 1`,
		`turnout_nodes_image{image="base 1",pool="rack"} 2`,
		`turnout_nodes_image{image="unknown",pool="rack"} 1`,
		`turnout_rollouts{state="halted"} 0`,
		`turnout_rollouts{state="running"} 1`,
		`turnout_rollout_nodes{rollout="r2",state="moving"} 1`,
		`turnout_heartbeats_total{news="no"} 2`,
		`turnout_heartbeats_total{news="yes"} 1`,
		`turnout_heartbeat_duration_seconds_count 3`,
		`turnout_build_info{version="v1"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(text, `rollout="r1"`) {
		t.Error("a rollout that is over is told of for ever")
	}
}

// broken is a store whose disk is gone.
type broken struct{ store.Store }

func (broken) Nodes(context.Context) ([]*fleet.Node, error) { return nil, errors.New("disk on fire") }

func TestBrokenStoreIsNoEmptyFleet(t *testing.T) {
	if code, text := scrape(t, New(broken{mem.New()}, time.Now, "v1")); code != 500 {
		t.Errorf("status %d:\n%s\nwant 500", code, text)
	}
}

// Each name is documented, and the alert rules use no name that is not
// there.
func TestNamesAreDocumented(t *testing.T) {
	m := New(sample(t), func() time.Time { return now }, "v1")
	m.Heartbeat(true, time.Millisecond)
	_, text := scrape(t, m)
	read := func(path string) string {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	docs, rules := read("../../docs/metrics.md"), read("../../docs/examples/alerts.yaml")
	names := map[string]bool{}
	for _, l := range regexp.MustCompile(`(?m)^# HELP (turnout_\w+)`).FindAllStringSubmatch(text, -1) {
		names[l[1]] = true
		if !strings.Contains(docs, "`"+l[1]) {
			t.Errorf("docs/metrics.md does not name %s", l[1])
		}
	}
	used := regexp.MustCompile(`turnout_\w+`).FindAllString(rules, -1)
	if len(used) == 0 || len(names) < 10 {
		t.Fatalf("%d names in the rules, %d metrics", len(used), len(names))
	}
	for _, u := range used {
		if base := regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(u, ""); !names[u] && !names[base] {
			t.Errorf("the alert rules use %s, which is not there", u)
		}
	}
}
