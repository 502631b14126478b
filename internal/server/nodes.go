package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"regexp"
	"slices"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/rollout"
	"github.com/turnout-project/turnout/internal/store"
)

func (s *Server) listNodes(w http.ResponseWriter, r *http.Request, _ string) (any, error) {
	p, err := pageOf(r)
	if err != nil {
		return nil, err
	}
	ns, err := s.Store.Nodes(r.Context())
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	var sel fleet.Selector
	if t := q.Get("selector"); t != "" {
		if sel, err = fleet.ParseSelector(t); err != nil {
			return nil, problem(http.StatusBadRequest, "", "%v", err)
		}
	}
	ns = slices.DeleteFunc(ns, func(n *fleet.Node) bool {
		return q.Get("pool") != "" && n.Pool != q.Get("pool") || q.Get("state") != "" && string(n.State) != q.Get("state") || !sel.Matches(n.Labels)
	})
	return page(w, r, p, ns, func(n *fleet.Node) string { return n.Name }, func(n *fleet.Node, after string) bool { return n.Name > after }), nil
}

func (s *Server) showNode(_ http.ResponseWriter, r *http.Request, _ string) (any, error) {
	return s.Store.Node(r.Context(), r.PathValue("node"))
}

// nameForm is what nodes and pools may be called: a DNS label, so that names
// serve as host names and stay readable in certificates and logs.
var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

func checkName(what, name string) error {
	if nameForm.MatchString(name) {
		return nil
	}
	return problem(http.StatusBadRequest, "use letters a-z, digits and hyphens, at most 63", "%s name %q is not allowed", what, name)
}

func parseMACs(in []string) ([]fleet.MAC, error) {
	var out []fleet.MAC
	for _, t := range in {
		m, err := fleet.ParseMAC(t)
		if err != nil {
			return nil, problem(http.StatusBadRequest, "", "%v", err)
		}
		if slices.Contains(out, m) {
			return nil, problem(http.StatusBadRequest, "", "MAC %s is given twice", m)
		}
		out = append(out, m)
	}
	return out, nil
}

// addNode makes a node known, and approved, before it is seen. The first TPM
// that enrols with one of its MACs is bound to it.
func (s *Server) addNode(w http.ResponseWriter, r *http.Request, actor string) (any, error) {
	req, err := body[api.NodeRequest](w, r)
	if err != nil {
		return nil, err
	}
	macs, err := parseMACs(req.MACs)
	if err = errors.Join(checkName("node", req.Name), checkName("pool", req.Pool), err); err != nil {
		return nil, err
	}
	if len(macs) == 0 {
		return nil, problem(http.StatusBadRequest, "give one with --mac", "a node that was not seen yet needs a MAC address to be known by")
	}
	n := &fleet.Node{Name: req.Name, Pool: req.Pool, MACs: macs, State: fleet.NodeApproved, Created: s.now()}
	if _, err := label(r.Context(), s, nil, n, req); err != nil {
		return nil, err
	}
	return n, s.update(r.Context(), func(tx store.Tx) error {
		return errors.Join(tx.CreateNode(r.Context(), n), s.note(r.Context(), tx, actor, n.Name, "node.added", fmt.Sprintf("to pool %s with MAC %v", n.Pool, macs)))
	})
}

func (s *Server) removeNode(_ http.ResponseWriter, r *http.Request, actor string) (any, error) {
	name := r.PathValue("node")
	return nil, s.update(r.Context(), func(tx store.Tx) error {
		if err := tx.DeleteNode(r.Context(), name); err != nil {
			return err
		}
		return s.note(r.Context(), tx, actor, name, "node.removed", "and its TPM forgotten")
	})
}

// nodeActs change a node and say what they did, or refuse.
var nodeActs = map[string]func(ctx context.Context, s *Server, tx store.Tx, n *fleet.Node, req *api.NodeRequest) (string, error){
	"approve":  approve,
	"cordon":   cordon,
	"uncordon": uncordon,
	"unban":    unban,
	"reimage":  reimage,
	"domain":   setDomain,
	"label":    label,
	"revoke":   revoke,
	"attest":   askAttest,
}

func (s *Server) actOnNode(w http.ResponseWriter, r *http.Request, actor string) (any, error) {
	act := nodeActs[r.PathValue("act")]
	if act == nil {
		return nil, problem(http.StatusNotFound, "", "nothing called %q can be done to a node", r.PathValue("act"))
	}
	req, err := body[api.NodeRequest](w, r)
	if err != nil {
		return nil, err
	}
	return s.changeNode(r, actor, "node."+r.PathValue("act"), func(tx store.Tx, n *fleet.Node) (string, error) {
		return act(r.Context(), s, tx, n, req)
	})
}

// changeNode runs fn on the node of the path in one update. fn may rename it.
func (s *Server) changeNode(r *http.Request, actor, kind string, fn func(tx store.Tx, n *fleet.Node) (string, error)) (any, error) {
	ctx, name := r.Context(), r.PathValue("node")
	var n *fleet.Node
	err := s.update(ctx, func(tx store.Tx) (err error) {
		if n, err = tx.Node(ctx, name); err != nil {
			return err
		}
		msg, err := fn(tx, n)
		if err != nil {
			return err
		}
		put := tx.PutNode
		if n.Name != name {
			if err := tx.DeleteNode(ctx, name); err != nil {
				return err
			}
			put = tx.CreateNode
		}
		return errors.Join(put(ctx, n), s.note(ctx, tx, actor, n.Name, kind, msg))
	})
	return n, err
}

// approve lets a pending node in, under a name and into a pool. The TPM it
// has shown is the only one that can become this node.
func approve(_ context.Context, _ *Server, _ store.Tx, n *fleet.Node, req *api.NodeRequest) (string, error) {
	if n.State != fleet.NodePending && n.State != fleet.NodeQuarantined {
		return "", &rollout.Refusal{Why: fmt.Sprintf("node %s is %s, not pending", n.Name, n.State), Hint: ""}
	}
	if req.Name != "" && req.Name != n.Name && n.State != fleet.NodePending {
		return "", &rollout.Refusal{Why: "only a pending node can be renamed", Hint: "leave --name out"}
	}
	msg := "in pool "
	if req.Name != "" && req.Name != n.Name {
		if err := checkName("node", req.Name); err != nil {
			return "", err
		}
		msg = "was " + n.Name + ", in pool "
		n.Name = req.Name
	}
	if req.Pool != "" {
		if err := checkName("pool", req.Pool); err != nil {
			return "", err
		}
		n.Pool = req.Pool
	}
	n.State, n.Reason = fleet.NodeApproved, ""
	return msg + n.Pool, nil
}

func cordon(_ context.Context, _ *Server, _ store.Tx, n *fleet.Node, req *api.NodeRequest) (string, error) {
	if n.State == fleet.NodePending {
		return "", &rollout.Refusal{Why: "node " + n.Name + " is pending: nothing would touch it anyway", Hint: "approve it first"}
	}
	n.State, n.Reason = fleet.NodeCordoned, req.Reason
	return req.Reason, nil
}

func uncordon(_ context.Context, _ *Server, _ store.Tx, n *fleet.Node, _ *api.NodeRequest) (string, error) {
	if n.State != fleet.NodeCordoned && n.State != fleet.NodeQuarantined {
		return "", &rollout.Refusal{Why: fmt.Sprintf("node %s is %s, not cordoned", n.Name, n.State)}
	}
	n.State, n.Reason = fleet.NodeApproved, ""
	return "", nil
}

func unban(ctx context.Context, _ *Server, tx store.Tx, n *fleet.Node, req *api.NodeRequest) (string, error) {
	if req.Image == "" {
		return fmt.Sprintf("all images (%d)", rollout.Unban(n, "")), nil
	}
	i, err := resolve(ctx, tx, req.Image)
	if err != nil {
		return "", err
	}
	if rollout.Banned(n, i.Digest) == nil {
		return "", &rollout.Refusal{Why: fmt.Sprintf("image %s is not banned on node %s", rollout.Short(i.Digest), n.Name), Hint: "`pxeserver node show " + n.Name + "` lists its bans"}
	}
	rollout.Unban(n, i.Digest)
	return "image " + rollout.Short(i.Digest), nil
}

// label sets labels of a node and takes others away.
func label(_ context.Context, _ *Server, _ store.Tx, n *fleet.Node, req *api.NodeRequest) (string, error) {
	for _, k := range req.Unlabel {
		delete(n.Labels, k)
	}
	for k, v := range req.Labels {
		if err := fleet.CheckLabel(k, v); err != nil {
			return "", problem(http.StatusBadRequest, "", "%v", err)
		}
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		n.Labels[k] = v
	}
	if len(n.Labels) > fleet.MaxLabels {
		return "", problem(http.StatusBadRequest, "take some away", "%d labels, at most %d on a node", len(n.Labels), fleet.MaxLabels)
	}
	if len(n.Labels) == 0 {
		return "none", nil
	}
	return fleet.LabelText(n.Labels), nil
}

// setDomain says what a node fails together with.
func setDomain(_ context.Context, _ *Server, _ store.Tx, n *fleet.Node, req *api.NodeRequest) (string, error) {
	if req.Domain == nil || len(*req.Domain) > 63 || clip(*req.Domain, 63) != *req.Domain {
		return "", problem(http.StatusBadRequest, "", "want the name of a failure domain, at most 63 characters")
	}
	was := n.Domain
	n.Domain = *req.Domain
	return fmt.Sprintf("%q, was %q", n.Domain, was), nil
}

// reimage wants an image written anew: into the other slot of a node that
// runs, onto the whole disk of one that boots the installer.
func reimage(ctx context.Context, _ *Server, tx store.Tx, n *fleet.Node, req *api.NodeRequest) (string, error) {
	if n.State == fleet.NodePending {
		return "", &rollout.Refusal{Why: "node " + n.Name + " is pending", Hint: "approve it: it installs its pool's image by itself"}
	}
	ref := req.Image
	if ref == "" {
		p, err := tx.Pool(ctx, n.Pool)
		if err != nil || p.Image == "" {
			return "", &rollout.Refusal{Why: "pool " + n.Pool + " has no image", Hint: "name one with --image, or set the pool's: pxeserver pool set " + n.Pool + " --image …"}
		}
		ref = p.Image
	}
	if _, err := path.Match(req.Disk, ""); err != nil || len(req.Disk) > 200 {
		return "", &rollout.Refusal{Why: fmt.Sprintf("%q is no pattern for a disk", req.Disk), Hint: "* stands for any text: --disk 'nvme-SAMSUNG*'"}
	}
	i, err := resolve(ctx, tx, ref)
	if err != nil {
		return "", err
	}
	if req.Retry {
		rollout.Unban(n, i.Digest)
	}
	if err := free(ctx, tx, n, i.Digest); err != nil {
		return "", err
	}
	rollout.Want(n, fleet.Desired{Image: i.Digest, Reinstall: true, Retry: true, Disk: req.Disk, Reason: "reinstallation by an operator"})
	return fmt.Sprintf("with %s %s (%s), generation %d", i.Name, i.Version, rollout.Short(i.Digest), n.Desired.Generation), nil
}

// free refuses to give a node another wish while a rollout moves it, or one
// for an image that is banned there, or revoked.
func free(ctx context.Context, tx store.Tx, n *fleet.Node, image string) error {
	if i, err := tx.Image(ctx, image); err == nil {
		if err := usable(i); err != nil {
			return err
		}
	}
	if b := rollout.Banned(n, image); b != nil {
		return &rollout.Refusal{
			Why:  fmt.Sprintf("image %s is banned on node %s: %s", rollout.Short(image), n.Name, b.Reason),
			Hint: fmt.Sprintf("lift the ban first: pxeserver node unban %s --image %s", n.Name, rollout.Short(image)),
		}
	}
	r, err := rollout.Holding(ctx, tx, n.Name)
	if err != nil || r == nil {
		return err
	}
	return &rollout.Refusal{
		Why:  fmt.Sprintf("node %s is on the move in rollout %s", n.Name, r.ID),
		Hint: fmt.Sprintf("wait for it (pxeserver rollout status %s) or abort the rollout", r.ID),
	}
}

// clearTPM forgets which TPM a node has: the next one that enrols with one of
// its MACs is bound. For a replaced board.
func (s *Server) clearTPM(_ http.ResponseWriter, r *http.Request, actor string) (any, error) {
	return s.changeNode(r, actor, "node.tpm-cleared", func(tx store.Tx, n *fleet.Node) (string, error) {
		old := n.EKHash
		n.EKHash, n.AKName, n.Verdict = "", "", nil
		return "was " + old, tx.DeleteEnrolment(r.Context(), n.Name)
	})
}

func (s *Server) note(ctx context.Context, tx store.Tx, actor, node, kind, msg string) error {
	return tx.AppendEvent(ctx, &fleet.Event{At: s.now(), Actor: actor, Node: node, Kind: kind, Message: msg})
}
