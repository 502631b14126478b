package server_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

// watch opens a stream and returns what comes, by event name.
func (l *lab) watch(ctx context.Context, query string, header http.Header) (next func(event string) []byte) {
	l.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.url+api.PathWatch+query, nil)
	l.must(err)
	req.Header = header
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	resp, err := c.Do(req)
	l.must(err)
	l.t.Cleanup(func() { resp.Body.Close() })
	if got := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || got != "text/event-stream" {
		l.t.Fatalf("watch: %s, %s", resp.Status, got)
	}
	sc := bufio.NewScanner(resp.Body)
	sc.Buffer(nil, 16<<20)
	return func(event string) []byte {
		l.t.Helper()
		is := ""
		for sc.Scan() {
			if e, ok := strings.CutPrefix(sc.Text(), "event: "); ok {
				is = e
			}
			if d, ok := strings.CutPrefix(sc.Text(), "data: "); ok && is == event {
				return []byte(d)
			}
		}
		l.t.Fatalf("the stream ended before %q came: %v", event, sc.Err())
		return nil
	}
}

func (l *lab) rows(next func(string) []byte) (r api.Rows) {
	l.t.Helper()
	l.must(json.Unmarshal(next(api.WatchRows), &r))
	return r
}

func TestWatch(t *testing.T) {
	l := newLab(t)
	image := l.publish("1")
	m := l.ready(1, "rack", image)
	m.report.Slots[0].Name = "rack 1"
	m.attest(image)
	m.beat()
	deadline, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	next := l.watch(deadline, "?rows=1", l.bearer("viewer"))

	var hello api.Hello
	l.must(json.Unmarshal(next(api.WatchHello), &hello))
	if hello.Version != "test" || hello.Heartbeat != 10 {
		t.Errorf("hello = %+v", hello)
	}
	want := api.FleetRow{Name: "n1", Pool: "rack", Power: api.PowerOn, State: fleet.NodeApproved, Stage: fleet.StageSystem, Slot: fleet.SlotA, SlotState: fleet.SlotGood,
		Image: image, ImageName: "rack 1", Health: api.HealthGood}
	all := l.rows(next)
	want.Attest = all.Rows[0].Attest
	if d := cmp.Diff(api.Rows{Reset: true, Whole: true, Rows: []api.FleetRow{want}}, all); d != "" {
		t.Errorf("first rows (-want +got):\n%s", d)
	}

	// A heartbeat in which nothing changed is no news; one with a failing check is.
	m.beat()
	m.report.Healthy, m.report.Health = false, []fleet.CheckResult{{Name: "gpus", Status: fleet.CheckFailed, Required: true, Detail: "7 of 8"}}
	m.beat()
	if got := l.rows(next); len(got.Rows) != 1 || got.Reset || got.Rows[0].Health != api.HealthFailing || got.Rows[0].Check != "gpus: 7 of 8" {
		t.Errorf("rows after a failing check = %+v", got)
	}
	_, err := l.op.NodeAct(ctx, "n1", "cordon", api.NodeRequest{Reason: "DIMM"})
	l.must(err)
	var ev []fleet.Event
	l.must(json.Unmarshal(next(api.WatchEvents), &ev))
	if ev[0].Kind != "node.cordon" {
		t.Errorf("event %+v; want the cordon", ev[0])
	}
	l.must(l.op.RemoveNode(ctx, "n1"))
	for {
		if got := l.rows(next); len(got.Gone) == 1 && got.Gone[0] == "n1" {
			break
		}
	}

	// Who comes back with the last ID gets what they missed.
	h := l.bearer("viewer")
	h.Set("Last-Event-ID", "1")
	l.must(json.Unmarshal(l.watch(deadline, "", h)(api.WatchEvents), &ev))
	if ev[0].ID != 2 {
		t.Errorf("after event 1 comes %d; want 2", ev[0].ID)
	}
}

// A node that says nothing shows, and not before it is late.
func TestSilence(t *testing.T) {
	l := newLab(t)
	l.ready(1, "rack", l.publish("1"))
	for _, tt := range []struct {
		after  time.Duration
		silent bool
	}{{0, false}, {30 * time.Second, false}, {10 * time.Second, true}} {
		l.clock.add(tt.after)
		deadline, cancel := context.WithTimeout(ctx, time.Minute)
		for { // the board is looked at now and then only
			got := l.rows(l.watch(deadline, "?rows=1", l.bearer("viewer")))
			if (got.Rows[0].Silent != nil) == tt.silent {
				break
			}
			if deadline.Err() != nil {
				t.Fatalf("%s later: silent %v; want %v", tt.after, got.Rows[0].Silent, tt.silent)
			}
		}
		cancel()
	}
}

func TestRolloutSummary(t *testing.T) {
	l := newLab(t)
	old, image := l.publish("1"), l.publish("2")
	l.ready(1, "canary", old)
	l.ready(2, "rack", old)
	_, err := l.op.StartRollout(ctx, api.RolloutRequest{Image: image, Policy: fleet.Policy{Stages: []fleet.RolloutStage{{Pool: "canary"}, {Pool: "rack"}}}})
	l.must(err)
	var got []api.RolloutSummary
	l.get(api.PathRollouts+"?summary=1", &got)
	want := []map[fleet.MoveState]int{{fleet.MoveWaiting: 1}, {fleet.MoveWaiting: 1}}
	if len(got) != 1 || len(got[0].Nodes) != 0 || cmp.Diff(want, got[0].Counts) != "" {
		t.Errorf("summary = %+v; want no nodes, counts %v", got, want)
	}
}

func TestImageDetails(t *testing.T) {
	l := newLab(t)
	digest := l.publish("1")
	var got api.ImageDetails
	l.get(api.PathImageList+"/"+digest[7:19], &got)
	if got.Digest != digest || got.Manifest.Version != "1" || len(got.Files) != 6 {
		t.Errorf("image = %s version %s with %d files; want %s, 1, 6", got.Digest, got.Manifest.Version, len(got.Files), digest)
	}
}

func TestTimelineOfNode(t *testing.T) {
	l := newLab(t)
	m := l.machine(1)
	l.srv.BootEvent("dhcp.offer", m.mac, "offered installer.efi")
	run, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { l.srv.KeepBoots(run); close(done) }()
	for len(l.events("dhcp.")) == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-done
	l.ready(1, "rack", l.publish("1"))
	var got []api.Episode
	l.get(api.PathNodes+"/n1/timeline", &got)
	if len(got) == 0 || got[len(got)-1].Steps[0].Phase != "net" {
		t.Errorf("timeline = %+v; want it to begin with the packet that came before the node had a name", got)
	}
}

func (l *lab) bearer(role string) http.Header {
	return http.Header{"Authorization": {"Bearer " + l.secret[role]}}
}

// get is a viewer's GET for what the client has no method for.
func (l *lab) get(path string, out any) {
	l.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.url+path, nil)
	l.must(err)
	req.Header = l.bearer("viewer")
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	resp, err := c.Do(req)
	l.must(err)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		l.t.Fatalf("GET %s: %s", path, resp.Status)
	}
	l.must(json.NewDecoder(resp.Body).Decode(out))
}
