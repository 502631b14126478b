package server_test

import (
	"crypto/ed25519"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/nodereport"
	"github.com/turnout-project/turnout/internal/server"
)

func TestReport(t *testing.T) {
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	l := newLab(t, func(o *server.Options) { o.ReportKey = key })
	image := l.publish("1.0.0")
	_, err = l.op.SetPool(ctx, fleet.Pool{Name: "rack", Image: image})
	l.must(err)
	domain := "r7"
	for i := range 3 {
		m := l.ready(i+1, "rack", image)
		m.report.Health = []fleet.CheckResult{{Name: "gpu", Required: true, Status: fleet.CheckPassed}}
		m.report.Inventory = &fleet.Inventory{Vendor: "V", Product: "P", SecureBoot: i != 2}
		m.beat()
		if i < 2 {
			_, _ = m.attest(image)
			_, err := l.op.NodeAct(ctx, m.name, "domain", api.NodeRequest{Domain: &domain})
			l.must(err)
		}
	}
	read := func(q api.ReportQuery) *nodereport.Report {
		t.Helper()
		raw, err := l.view.Report(ctx, q)
		l.must(err)
		s, err := nodereport.Parse(raw)
		l.must(err)
		r, err := s.Verify([]ed25519.PublicKey{pub})
		l.must(err)
		return r
	}
	if r := read(api.ReportQuery{Rack: "r7"}); !r.Accepted || len(r.Nodes) != 2 || r.Title != "rack r7" {
		t.Errorf("rack: accepted %v, refused %v: %+v", r.Accepted, r.Refused, r.Nodes)
	}
	if r := read(api.ReportQuery{Pool: "rack"}); r.Accepted || !cmp.Equal(r.Refused, []string{"n3"}) {
		t.Errorf("pool: accepted %v, refused %v", r.Accepted, r.Refused)
	}
	if r := read(api.ReportQuery{Node: "n3", Require: []string{"image", "health"}}); !r.Accepted {
		t.Errorf("node: refused %v", r.Nodes[0].Facts)
	}
	if r := read(api.ReportQuery{Pool: "rack", Require: []string{"secure-boot"}}); !cmp.Equal(r.Refused, []string{"n3"}) {
		t.Errorf("Secure Boot: refused %v", r.Refused)
	}
	for _, c := range []struct {
		q      api.ReportQuery
		status int
	}{
		{api.ReportQuery{}, http.StatusBadRequest}, {api.ReportQuery{Node: "n1", Pool: "rack"}, http.StatusBadRequest},
		{api.ReportQuery{Node: "n9"}, http.StatusNotFound}, {api.ReportQuery{Node: "n1", Require: []string{"luck"}}, http.StatusBadRequest},
	} {
		_, err := l.view.Report(ctx, c.q)
		wantStatus(t, strings.TrimSpace(c.q.Node+" "+c.q.Pool), err, c.status)
	}
	k, err := l.view.ReportKey(ctx)
	l.must(err)
	keys, err := manifest.ParsePublicKeys([]byte(k.PEM))
	l.must(err)
	if len(keys) != 1 || !keys[0].Equal(pub) || k.ID != nodereport.KeyID(pub) {
		t.Errorf("key %+v", k)
	}
}
