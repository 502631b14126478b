package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/rollout"
	"github.com/turnout-project/turnout/internal/store"
)

// collect removes the images that nothing needs.
func (s *Server) collect(w http.ResponseWriter, r *http.Request, actor string) (any, error) {
	req, err := body[api.CollectRequest](w, r)
	if err != nil {
		return nil, err
	}
	if req.Keep < 1 {
		return nil, problem(http.StatusBadRequest, "", "keep %d: at least the newest image is kept", req.Keep)
	}
	var out []api.Collected
	err = s.update(r.Context(), func(tx store.Tx) error {
		out, err = s.collectIn(r.Context(), tx, req, actor)
		return err
	})
	if err != nil || req.DryRun {
		return orEmpty(out), err
	}
	return orEmpty(out), s.removeFiles(r.Context(), out)
}

// collectIn forgets the images that nothing needs; with DryRun it only says
// which these are. Doing it in one update keeps a rollout from wanting one
// in between.
func (s *Server) collectIn(ctx context.Context, tx store.Tx, req *api.CollectRequest, actor string) ([]api.Collected, error) {
	needs, err := needed(ctx, tx)
	if err != nil {
		return nil, err
	}
	images, err := tx.Images(ctx)
	if err != nil {
		return nil, err
	}
	var out []api.Collected
	for n, i := range images {
		c := api.Collected{Image: *i, NeededBy: needs.of(i.Digest)}
		if c.NeededBy == "" && i.Revoked != nil {
			c.NeededBy = "is revoked, which has to be remembered"
		}
		if c.NeededBy == "" && n < req.Keep {
			c.NeededBy = "is one of the newest"
		}
		if c.NeededBy == "" && !req.DryRun {
			c.Removed = true
			msg := fmt.Sprintf("image %s %s (%s), nothing needed it", i.Name, i.Version, rollout.Short(i.Digest))
			if err := errors.Join(tx.DeleteImage(ctx, i.Digest), s.note(ctx, tx, actor, "", "image.removed", msg)); err != nil {
				return nil, err
			}
		}
		out = append(out, c)
	}
	return out, nil
}

// needs says by digest, or by the first digits of it, who needs an image.
type needs map[string]string

func (n needs) of(digest string) string {
	if why := n[digest]; why != "" {
		return why
	}
	for d, why := range n { // a node may know the first digits only
		if len(d) < 64 && strings.HasPrefix(strings.TrimPrefix(digest, "sha256:"), strings.TrimPrefix(d, "sha256:")) {
			return why
		}
	}
	return ""
}

func (n needs) add(digest, format string, a ...any) {
	if digest != "" && n[digest] == "" {
		n[digest] = fmt.Sprintf(format, a...)
	}
}

// needed finds what slots, wishes, pools and rollouts need: also the images
// that a rollout's nodes would go back to.
func needed(ctx context.Context, rd store.Reader) (needs, error) {
	nodes, err := rd.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	pools, err := rd.Pools(ctx)
	if err != nil {
		return nil, err
	}
	rollouts, err := rd.Rollouts(ctx)
	if err != nil {
		return nil, err
	}
	n := needs{}
	for _, p := range pools {
		n.add(p.Image, "image of pool %s", p.Name)
	}
	for _, x := range nodes {
		n.add(x.Desired.Image, "wanted on node %s", x.Name)
		if x.Reported == nil {
			continue
		}
		for _, s := range x.Reported.Slots {
			n.add(s.Image, "in slot %s of node %s", s.Slot, x.Name)
		}
	}
	for i, r := range rollouts {
		if !over(r) || i == len(rollouts)-1 { // the newest may still be undone
			n.add(r.Image, "rollout %s", r.ID)
			for _, m := range r.Nodes {
				n.add(m.From, "before rollout %s on node %s", r.ID, m.Node)
			}
		}
	}
	return n, nil
}

// over reports whether nothing can come of a rollout any more by itself or
// by resuming it.
func over(r *fleet.Rollout) bool {
	return !r.Live() && r.State != fleet.RolloutHalted
}

// removeFiles removes the files of forgotten images that no other image has.
// What a crash leaves behind only takes room.
func (s *Server) removeFiles(ctx context.Context, out []api.Collected) error {
	kept := map[string]bool{}
	images, err := s.Images.Images()
	if err != nil {
		return err
	}
	gone := map[string]bool{}
	for _, c := range out {
		gone[c.Image.Digest] = c.Removed
	}
	var removed []*oci.Image
	for _, d := range images {
		img, err := s.Images.Image(d.Digest)
		if err != nil {
			return err
		}
		if gone[d.Digest] {
			removed = append(removed, img)
			continue
		}
		for _, b := range blobs(img) {
			kept[b.Digest] = true
		}
	}
	for _, img := range removed {
		if err := s.Images.Forget(img.Digest); err != nil {
			return err
		}
		for _, b := range blobs(img) {
			if kept[b.Digest] {
				continue
			}
			if err := s.Images.RemoveBlob(b.Digest); err != nil {
				return err
			}
		}
		if err := s.Images.RemoveBlob(img.Digest); err != nil {
			return err
		}
		s.mu.Lock()
		delete(s.images, img.Digest)
		s.mu.Unlock()
	}
	return ctx.Err()
}
