package server_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/server"
	"github.com/turnout-project/turnout/internal/store"
)

// ask sends a request with a token, "" for none.
func (l *lab) ask(path, token string, out any) *http.Response {
	l.t.Helper()
	req, err := http.NewRequest(http.MethodGet, l.url+path, nil)
	l.must(err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	resp, err := c.Do(req)
	l.must(err)
	defer resp.Body.Close()
	if out != nil {
		l.must(json.NewDecoder(resp.Body).Decode(out))
	}
	return resp
}

// slow never fills up again while a test runs.
const slow = 1e-6

func TestRateLimits(t *testing.T) {
	l := newLab(t, func(o *server.Options) {
		o.Limits = server.Limits{Strangers: server.Rate{PerSecond: slow, Burst: 2}, Refused: server.Rate{PerSecond: slow, Burst: 3}, Operators: server.Rate{PerSecond: slow, Burst: 4}}
	})
	c, err := api.NewNodeClient(l.url, l.caPEM)
	l.must(err)
	for i := range 3 {
		_, err := c.Enrol(ctx, &api.EnrolRequest{})
		if status := api.StatusOf(err); (status == http.StatusTooManyRequests) != (i == 2) {
			t.Errorf("enrolment %d: %v", i, err)
		}
	}
	for i := range 5 {
		var p api.Problem
		resp := l.ask(api.PathNodes, l.secret["viewer"], nil)
		if i == 4 {
			resp = l.ask(api.PathNodes, l.secret["viewer"], &p)
		}
		if (resp.StatusCode == http.StatusTooManyRequests) != (i == 4) || i == 4 && (resp.Header.Get("Retry-After") == "" || p.Hint == "") {
			t.Errorf("viewer's request %d: %s %v %+v", i, resp.Status, resp.Header, p)
		}
	}
	if resp := l.ask(api.PathNodes, l.secret["admin"], nil); resp.StatusCode != http.StatusOK {
		t.Errorf("another operator: %s; want him not kept from it", resp.Status)
	}
	for i := range 4 {
		want := http.StatusUnauthorized
		if i == 3 {
			want = http.StatusTooManyRequests
		}
		if resp := l.ask(api.PathNodes, fmt.Sprint("guess", i), nil); resp.StatusCode != want {
			t.Errorf("guess %d: %s, want %d", i, resp.Status, want)
		}
	}
	if resp := l.ask(api.PathNodes, l.secret["operator"], nil); resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("a good token from where too many were guessed: %s", resp.Status)
	}
}

func TestPages(t *testing.T) {
	l := newLab(t)
	l.must(l.store.Update(ctx, func(tx store.Tx) error {
		err := tx.PutImage(ctx, &fleet.Image{Digest: "sha256:" + strings.Repeat("a", 64)})
		for i := range 7 {
			err = errors.Join(err, tx.CreateNode(ctx, &fleet.Node{Name: fmt.Sprint("n", i), Pool: []string{"a", "b"}[i%2], State: fleet.NodeApproved,
				Labels: map[string]string{"parity": []string{"even", "odd"}[i%2]}}))
		}
		for range 12 {
			err = errors.Join(err, tx.CreateRollout(ctx, &fleet.Rollout{State: fleet.RolloutDone}))
		}
		return err
	}))
	all := func(path string) (names []string, pages int) {
		for path != "" {
			var out []struct{ Name, ID string }
			resp := l.ask(path, l.secret["viewer"], &out)
			for _, x := range out {
				names = append(names, x.Name+x.ID)
			}
			pages++
			path = ""
			if link := resp.Header.Get("Link"); link != "" {
				path = strings.TrimSuffix(strings.TrimPrefix(link, "<"), `>; rel="next"`)
			}
		}
		return names, pages
	}
	for _, c := range []struct {
		path, want string
		pages      int
	}{
		{api.PathNodes, "n0 n1 n2 n3 n4 n5 n6", 1},
		{api.PathNodes + "?limit=3", "n0 n1 n2 n3 n4 n5 n6", 3},
		{api.PathNodes + "?limit=2&pool=b", "n1 n3 n5", 2},
		{api.PathNodes + "?selector=parity%3Dodd&limit=2", "n1 n3 n5", 2},
		{api.PathNodes + "?after=n3x", "n4 n5 n6", 1},
		{api.PathNodes + "?state=cordoned", "", 1},
		{api.PathRollouts + "?limit=5&summary=1", "r1 r2 r3 r4 r5 r6 r7 r8 r9 r10 r11 r12", 3},
		{api.PathRollouts + "?after=r9&state=done", "r10 r11 r12", 1},
	} {
		names, pages := all(c.path)
		if got := strings.Join(names, " "); got != c.want || pages != c.pages {
			t.Errorf("%s: %q in %d pages; want %q in %d", c.path, got, pages, c.want, c.pages)
		}
	}
	if resp := l.ask(api.PathNodes+"?limit=0", l.secret["viewer"], nil); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("limit=0: %s", resp.Status)
	}
}

// A database that is away is no reason for nodes to enrol again.
func TestBrokenStoreIsNotTheNodesFault(t *testing.T) {
	var s *switchable
	l := newLab(t, func(o *server.Options) { s = &switchable{Store: o.Store}; o.Store = s })
	m := l.ready(1, "rack", l.publish("1"))
	s.broken = true
	_, err := m.c.Heartbeat(ctx, &m.report)
	if api.Unauthorized(err) || api.StatusOf(err) != http.StatusInternalServerError {
		t.Errorf("heartbeat without a database: %v; want the server to own up", err)
	}
}

// switchable is a store that can be taken away.
type switchable struct {
	store.Store
	broken bool
}

func (s *switchable) Node(ctx context.Context, name string) (*fleet.Node, error) {
	if s.broken {
		return nil, errors.New("no database")
	}
	return s.Store.Node(ctx, name)
}

func TestUnknownHook(t *testing.T) {
	l := newLab(t, func(o *server.Options) { o.Drains = []string{"slurm"} })
	l.ready(1, "rack", l.publish("1"))
	start := func(hook string) error {
		_, err := l.op.StartRollout(ctx, api.RolloutRequest{Image: l.publish("2"), DryRun: true, Policy: fleet.Policy{Stages: []fleet.RolloutStage{{Pool: "rack"}}, Drain: hook}})
		return err
	}
	var p *api.Problem
	if err := start("nomad"); !errors.As(err, &p) || p.Status != http.StatusConflict || !strings.Contains(p.Hint, "slurm") {
		t.Errorf("a hook that is not there: %v; want it refused, and those that are named", err)
	}
	if err := start("slurm"); err != nil {
		t.Error(err)
	}
}
