package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/bmc"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/rollout"
	"github.com/turnout-project/turnout/internal/store"
)

// kindBMC are the records of BMCs, by node.
const kindBMC = "bmc"

// bmcRecord is what is kept of a BMC.
type bmcRecord struct {
	api.BMC
	Sealed []byte `json:"sealed"` // password, see bmc.Keys
}

// bmcTime bounds one conversation with a BMC.
const bmcTime = 2 * time.Minute

// turns lets one conversation per BMC go on at a time: they allow few
// sessions, and acts must not overtake each other.
type turns struct {
	mu sync.Mutex
	of map[string]chan struct{}
}

func (t *turns) take(ctx context.Context, node string) (give func(), err error) {
	t.mu.Lock()
	if t.of == nil {
		t.of = map[string]chan struct{}{}
	}
	c := t.of[node]
	if c == nil {
		c = make(chan struct{}, 1)
		t.of[node] = c
	}
	t.mu.Unlock()
	select {
	case c <- struct{}{}:
		return func() { <-c }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func readBMC(ctx context.Context, r store.Reader, node string) (*bmcRecord, error) {
	rec, err := r.Record(ctx, kindBMC, node)
	if errors.Is(err, store.ErrNotFound) {
		return nil, &rollout.Refusal{Why: "no BMC is set for node " + node, Hint: "say how it is reached: pxeserver bmc set " + node + " --address … --user …"}
	}
	if err != nil {
		return nil, err
	}
	b := &bmcRecord{}
	if err := json.Unmarshal(rec.Doc, b); err != nil {
		return nil, fmt.Errorf("BMC of %s: %w", node, err)
	}
	b.Node = node
	return b, nil
}

func (s *Server) target(b *bmcRecord) (bmc.Target, error) {
	t := bmc.Target{URL: b.URL, User: b.User, Pin: b.Pin, CA: b.CA, System: b.System}
	if s.BMC == nil {
		return t, &rollout.Refusal{Why: "this server has no key for BMC passwords", Hint: "it makes one, bmc.key in its data_dir, when it starts"}
	}
	var err error
	t.Password, err = s.BMC.Open(b.Node, b.Sealed)
	return t, err
}

// withBMC speaks to a node's BMC.
func (s *Server) withBMC(ctx context.Context, node string, fn func(ctx context.Context, c *bmc.Session) error) error {
	if _, err := s.Store.Node(ctx, node); err != nil {
		return err
	}
	b, err := readBMC(ctx, s.Store, node)
	if err != nil {
		return err
	}
	t, err := s.target(b)
	if err != nil {
		return err
	}
	return s.converse(ctx, node, t, fn)
}

func (s *Server) converse(ctx context.Context, node string, t bmc.Target, fn func(ctx context.Context, c *bmc.Session) error) error {
	ctx, cancel := context.WithTimeout(ctx, bmcTime)
	defer cancel()
	give, err := s.bmcTurns.take(ctx, node)
	if err != nil {
		return asBMC(err)
	}
	defer give()
	c, err := bmc.Open(ctx, t)
	if err != nil {
		return asBMC(err)
	}
	defer c.Close()
	return asBMC(fn(ctx, c))
}

// asBMC tells trouble with a BMC as that of a gateway, so that it is not
// taken for the server's own.
func asBMC(err error) error {
	var unknown *bmc.UnknownCertificateError
	var p *api.Problem
	var no *rollout.Refusal
	switch {
	case err == nil, errors.As(err, &p), errors.As(err, &no), errors.Is(err, store.ErrNotFound):
		return err
	case errors.As(err, &unknown) && unknown.Want == "":
		return problem(http.StatusConflict, "compare it with what the BMC's own page or label shows, then say --pin "+unknown.Seen, "%v", err)
	case errors.As(err, &unknown):
		return problem(http.StatusConflict, "if its certificate was replaced, set the new pin: pxeserver bmc set NODE --pin "+unknown.Seen, "%v", err)
	}
	return problem(http.StatusBadGateway, "", "%s", clip(err.Error(), 600))
}

func (s *Server) listBMCs(_ http.ResponseWriter, r *http.Request, _ string) (any, error) {
	recs, err := s.Store.Records(r.Context(), kindBMC, "", "")
	out := []api.BMC{}
	for _, rec := range recs {
		var b bmcRecord
		if json.Unmarshal(rec.Doc, &b) == nil {
			b.Node = rec.Key
			out = append(out, b.BMC)
		}
	}
	return out, err
}

func (s *Server) showBMC(_ http.ResponseWriter, r *http.Request, _ string) (any, error) {
	if _, err := s.Store.Node(r.Context(), r.PathValue("node")); err != nil {
		return nil, err
	}
	b, err := readBMC(r.Context(), s.Store, r.PathValue("node"))
	if err != nil {
		return nil, err
	}
	return b.BMC, nil
}

func (s *Server) setBMC(w http.ResponseWriter, r *http.Request, actor string) (any, error) {
	req, err := body[api.BMCRequest](w, r)
	if err != nil {
		return nil, err
	}
	ctx := r.Context()
	n, err := s.Store.Node(ctx, r.PathValue("node"))
	if err != nil {
		return nil, err
	}
	b, err := s.draftBMC(ctx, n.Name, req)
	if err != nil {
		return nil, err
	}
	if !req.NoCheck {
		if err := s.checkBMC(ctx, n, b); err != nil {
			return nil, err
		}
	}
	doc, err := json.Marshal(b)
	if err != nil {
		return nil, err
	}
	return b.BMC, s.update(ctx, func(tx store.Tx) error {
		if _, err := tx.Node(ctx, n.Name); err != nil {
			return err
		}
		return errors.Join(tx.PutRecord(ctx, store.Record{Kind: kindBMC, Key: n.Name, Node: n.Name, Doc: doc}),
			s.note(ctx, tx, actor, n.Name, "bmc.set", b.URL+" as "+b.User))
	})
}

// draftBMC is what is set, with what the request leaves out as it was.
func (s *Server) draftBMC(ctx context.Context, node string, req *api.BMCRequest) (*bmcRecord, error) {
	if s.BMC == nil {
		_, err := s.target(&bmcRecord{})
		return nil, err
	}
	old, err := readBMC(ctx, s.Store, node)
	var no *rollout.Refusal
	if err != nil && !errors.As(err, &no) {
		return nil, err
	}
	if old == nil {
		old = &bmcRecord{}
	}
	b := &bmcRecord{BMC: api.BMC{Node: node, URL: cmp.Or(req.URL, old.URL), User: cmp.Or(req.User, old.User), Pin: req.Pin, CA: req.CA, System: cmp.Or(req.System, old.System)}, Sealed: old.Sealed}
	if b.Pin == "" && b.CA == "" {
		b.Pin, b.CA = old.Pin, old.CA
	}
	if b.URL, err = bmc.ParseURL(b.URL); err != nil {
		return nil, problem(http.StatusBadRequest, "", "%v", err)
	}
	if b.Pin != "" {
		if b.Pin, err = bmc.ParsePin(b.Pin); err != nil {
			return nil, problem(http.StatusBadRequest, "", "%v", err)
		}
	}
	if req.Password == "" && old.URL != "" && old.URL != b.URL {
		return nil, problem(http.StatusBadRequest, "give the password too", "the address changes: the password is not sent to another one by itself")
	}
	if req.Password != "" {
		b.Sealed = s.BMC.Seal(node, req.Password)
	}
	if b.User == "" || b.Sealed == nil {
		return nil, problem(http.StatusBadRequest, "", "want an address, a user and a password")
	}
	return b, nil
}

// checkBMC speaks to a BMC and compares the machine with the node.
func (s *Server) checkBMC(ctx context.Context, n *fleet.Node, b *bmcRecord) error {
	t, err := s.target(b)
	if err != nil {
		return err
	}
	return s.converse(ctx, n.Name, t, func(_ context.Context, c *bmc.Session) error {
		m, err := c.Machine()
		if err != nil {
			return err
		}
		if why := anotherMachine(n, m); why != "" {
			return problem(http.StatusConflict, "is the address right? --no-check sets it all the same", "this BMC looks after another machine than node %s: %s", n.Name, why)
		}
		return nil
	})
}

// anotherMachine says why a BMC's machine is not the node; "" if it is, or if
// the two have nothing to compare.
func anotherMachine(n *fleet.Node, m *fleet.Machine) string {
	var differs []string
	if n.Reported != nil && n.Reported.Inventory != nil {
		i := n.Reported.Inventory
		if i.UUID != "" && m.UUID != "" {
			if sameUUID(i.UUID, m.UUID) {
				return ""
			}
			differs = append(differs, fmt.Sprintf("UUID %s, the node has %s", m.UUID, i.UUID))
		}
		if i.Serial != "" && m.Serial != "" {
			if strings.EqualFold(i.Serial, m.Serial) {
				return ""
			}
			differs = append(differs, fmt.Sprintf("serial number %s, the node has %s", m.Serial, i.Serial))
		}
	}
	for _, a := range m.MACs {
		for _, b := range n.MACs {
			if a == b {
				return ""
			}
		}
	}
	if len(m.MACs) > 0 && len(n.MACs) > 0 && len(differs) > 0 {
		differs = append(differs, "no MAC address in common")
	}
	return strings.Join(differs, "; ")
}

// sameUUID compares two UUIDs, of which one may have its first three parts
// in the other byte order (SMBIOS specification, section 7.2.1).
func sameUUID(a, b string) bool {
	a, b = strings.ToLower(strings.ReplaceAll(a, "-", "")), strings.ToLower(strings.ReplaceAll(b, "-", ""))
	if len(a) != 32 || len(b) != 32 {
		return a == b
	}
	swapped := a[6:8] + a[4:6] + a[2:4] + a[0:2] + a[10:12] + a[8:10] + a[14:16] + a[12:14] + a[16:]
	return a == b || swapped == b
}

func (s *Server) removeBMC(_ http.ResponseWriter, r *http.Request, actor string) (any, error) {
	ctx, name := r.Context(), r.PathValue("node")
	return nil, s.update(ctx, func(tx store.Tx) error {
		return errors.Join(tx.DeleteRecord(ctx, kindBMC, name), s.note(ctx, tx, actor, name, "bmc.removed", "and its password"))
	})
}
