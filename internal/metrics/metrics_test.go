package metrics

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
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
			tx.CreateNode(ctx, &fleet.Node{Name: "n1", Pool: "rack", State: fleet.NodeApproved, LastSeen: now, Reported: runs("sha256:aa", well), Verdict: &fleet.Verdict{Accepted: true}, EKHash: "e1", Verified: now.Add(-time.Minute)}),
			tx.CreateNode(ctx, &fleet.Node{Name: "n2", Pool: "rack", State: fleet.NodeApproved, LastSeen: now, Reported: runs("sha256:bb", hot), Verdict: &fleet.Verdict{}, EKHash: "e2", Verified: now.Add(-3 * time.Hour), Banned: []fleet.Ban{{}}}),
			tx.CreateNode(ctx, &fleet.Node{Name: "n3", Pool: "rack", State: fleet.NodeCordoned, LastSeen: now.Add(-time.Hour), Reported: runs("sha256:aa", hot)}),
			tx.CreateRollout(ctx, &fleet.Rollout{State: fleet.RolloutDone, Nodes: []fleet.Move{{Node: "n1", State: fleet.MoveDone}}}),
			tx.PutRecord(ctx, store.Record{Kind: "alert", Key: "pager", Doc: []byte(`{"tries":3,"dropped":7}`)}),
			tx.PutRecord(ctx, store.Record{Kind: "bmc", Key: "n1", Doc: []byte("{}")}),
			tx.PutRecord(ctx, store.Record{Kind: "recovery", Key: "state", Doc: []byte(`{"nodes":{"n3":{"trouble":"silent"},"n2":{"trouble":"software","calm":"2026-01-01T00:00:00Z"}},
				"storms":{"fleet":{}},"log":[{"step":"flip","at":"` + now.Add(-time.Minute).Format(time.RFC3339) + `"},{"step":"flip","at":"` + now.Add(-2*time.Hour).Format(time.RFC3339) + `"}]}`)}),
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
	for _, news := range []bool{true, false, false} {
		m.Heartbeat(news)
		m.HeartbeatTook(time.Millisecond)
	}
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
		`turnout_nodes_oldest_verification_seconds{pool="rack"} 10800`,
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
	m.Heartbeat(true)
	m.HeartbeatTook(time.Millisecond)
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
	for what, text := range map[string]string{"alert rules": rules, "dashboard": read("../../docs/examples/grafana-dashboard.json")} {
		used := regexp.MustCompile(`turnout_\w+`).FindAllString(text, -1)
		if len(used) < 10 || len(names) < 15 {
			t.Fatalf("%d names in the %s, %d metrics", len(used), what, len(names))
		}
		for _, u := range used {
			if base := regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(u, ""); !names[u] && !names[base] {
				t.Errorf("the %s use %s, which is not there", what, u)
			}
		}
	}
}

func TestRecoveryNumbers(t *testing.T) {
	_, text := scrape(t, New(sample(t), func() time.Time { return now }, "v1"))
	for _, want := range []string{
		`turnout_recovery_nodes{trouble="silent"} 1`, `turnout_recovery_nodes{trouble="software"} 0`, "turnout_recovery_storms 1",
		`turnout_recovery_steps{step="flip"} 1`, `turnout_recovery_steps{step="power-cycle"} 0`, "turnout_bmcs 1",
		`turnout_alert_failed_tries{hook="pager"} 3`, `turnout_alert_dropped_events{hook="pager"} 7`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("the scrape lacks %s", want)
		}
	}
}

// dashboard is as much of Grafana's model as is checked.
type dashboard struct {
	Title, UID string
	Panels     []struct {
		ID      int
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ Expr, RefID string }
	}
}

// The dashboard is what Grafana can read: ids that differ, panels that do not
// overlap, queries with closed brackets.
func TestDashboard(t *testing.T) {
	b, err := os.ReadFile("../../docs/examples/grafana-dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(b, &d); err != nil || d.Title == "" || d.UID == "" || len(d.Panels) < 10 {
		t.Fatalf("%v, %+v", err, d)
	}
	seen := map[int]bool{}
	taken := map[[2]int]string{}
	for _, p := range d.Panels {
		if seen[p.ID] || len(p.Targets) == 0 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q: id %d, %d targets, at %+v", p.Title, p.ID, len(p.Targets), p.GridPos)
		}
		seen[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if taken[at] != "" {
					t.Fatalf("panels %q and %q overlap", p.Title, taken[at])
				}
				taken[at] = p.Title
			}
		}
		for _, q := range p.Targets {
			if strings.Count(q.Expr, "(") != strings.Count(q.Expr, ")") || strings.Count(q.Expr, "{") != strings.Count(q.Expr, "}") || q.RefID == "" {
				t.Errorf("panel %q: query %q", p.Title, q.Expr)
			}
		}
	}
}

// Prometheus's own tool reads the rules, where it is installed.
func TestPromtool(t *testing.T) {
	tool, err := exec.LookPath("promtool")
	if err != nil {
		t.Log("no promtool here; the rules were only held against the names of metrics")
		return
	}
	if out, err := exec.Command(tool, "check", "rules", "../../docs/examples/alerts.yaml").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
