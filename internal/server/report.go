package server

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"net/http"
	"slices"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/drift"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/nodereport"
)

func (s *Server) report(_ http.ResponseWriter, r *http.Request, _ string) (any, error) {
	if s.ReportKey == nil {
		return nil, problem(http.StatusConflict, "it makes one, report.key in its data_dir, when it starts", "this server has no key for reports")
	}
	v := r.URL.Query()
	q := api.ReportQuery{Node: v.Get("node"), Rack: v.Get("rack"), Pool: v.Get("pool"), Require: v["require"]}
	if len(q.Require) == 0 {
		q.Require = nodereport.DefaultRequire
	}
	if err := nodereport.CheckRequire(q.Require); err != nil {
		return nil, problem(http.StatusBadRequest, "", "%v", err)
	}
	in, err := s.reportInput(r.Context(), q)
	if err != nil {
		return nil, err
	}
	return nodereport.Sign(s.ReportKey, nodereport.Build(*in))
}

// selects returns the title of a report and which nodes are in it.
func selects(q api.ReportQuery) (title string, is func(n *fleet.Node) bool, err error) {
	ways := 0
	for _, s := range []string{q.Node, q.Rack, q.Pool} {
		if s != "" {
			ways++
		}
	}
	switch {
	case ways != 1:
		return "", nil, problem(http.StatusBadRequest, "", "want one of node, rack and pool")
	case q.Node != "":
		return "node " + q.Node, func(n *fleet.Node) bool { return n.Name == q.Node }, nil
	case q.Rack != "":
		return "rack " + q.Rack, func(n *fleet.Node) bool {
			return n.Domain == q.Rack || n.Domain == "" && rackOf(n.Name) == q.Rack
		}, nil
	}
	return "pool " + q.Pool, func(n *fleet.Node) bool { return n.Pool == q.Pool && n.State != fleet.NodePending }, nil
}

func (s *Server) reportInput(ctx context.Context, q api.ReportQuery) (*nodereport.Input, error) {
	title, is, err := selects(q)
	if err != nil {
		return nil, err
	}
	d, err := s.driftInput(ctx)
	if err != nil {
		return nil, err
	}
	in := &nodereport.Input{
		Now: s.now(), Title: title, Server: s.Version, Require: q.Require, Silent: s.silentAfter(), Tables: d.Tables, Firmware: d.Firmware,
		EKTrust: map[string]string{}, Images: map[string]string{}, Pools: map[string]string{}, BMC: map[string]string{}, Drift: drift.Find(*d),
	}
	in.Nodes = slices.DeleteFunc(d.Nodes, func(n *fleet.Node) bool { return !is(n) })
	if len(in.Nodes) == 0 {
		return nil, problem(http.StatusNotFound, "`pxeserver node list` shows nodes, pools and domains", "there is no %s", title)
	}
	for _, p := range d.Pools {
		in.Pools[p.Name] = p.Image
	}
	images, err := s.Store.Images(ctx)
	if err != nil {
		return nil, err
	}
	for _, i := range images {
		in.Images[i.Digest] = i.Name + " " + i.Version
	}
	for _, n := range in.Nodes {
		if e, err := s.Store.Enrolment(ctx, n.Name); err == nil {
			in.EKTrust[n.Name] = e.EKTrust
		}
	}
	bmcs, err := s.Store.Records(ctx, kindBMC, "", "")
	for _, rec := range bmcs {
		var b bmcRecord
		if json.Unmarshal(rec.Doc, &b) == nil {
			in.BMC[rec.Key] = b.URL
		}
	}
	return in, err
}

func (s *Server) reportKey(http.ResponseWriter, *http.Request, string) (any, error) {
	if s.ReportKey == nil {
		return nil, problem(http.StatusConflict, "", "this server has no key for reports")
	}
	pub, _ := s.ReportKey.Public().(ed25519.PublicKey)
	text, err := manifest.MarshalPublicKey(pub)
	return api.ReportKey{ID: nodereport.KeyID(pub), PEM: string(text)}, err
}
