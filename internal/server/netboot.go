package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/netboot"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/rollout"
	"github.com/turnout-project/turnout/internal/store"
)

// The last parts of the names under which UKIs are handed out.
const (
	installerFile = "installer.efi"
	slotFile      = "slot.efi"
)

// Decide implements netboot.Policy. What a client says of itself is not
// verified, so nothing secret follows from it: the installer and the slot
// UKI are the same for every node, and what matters comes after enrolment.
func (s *Server) Decide(ctx context.Context, c netboot.Client) (netboot.Answer, error) {
	n, err := s.Store.NodeByMAC(ctx, c.MAC)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return netboot.Answer{}, err
	}
	b := decideBoot(n, s.live().Discovery != "")
	if since, is := s.handouts.silent(c.MAC, s.now()); is && b.kind == netboot.AnswerSlot {
		b = boot{netboot.AnswerInstaller, b.image, "got its slot over the network since " + since.UTC().Format("15:04:05") + " UTC and was not heard of: the installer, which mends it"}
	}
	a := netboot.Answer{Kind: b.kind, Reason: b.why}
	if n != nil {
		a.Node, a.Rack = n.Name, n.Domain
	}
	if b.kind != netboot.AnswerInstaller && b.kind != netboot.AnswerSlot {
		return a, nil
	}
	return s.serve(ctx, c, a, b.image, n)
}

// boot is what a machine should boot, before it is known whether we have it.
type boot struct {
	kind  netboot.AnswerKind
	image string // "": the one of its pool, or any
	why   string
}

// decideBoot says what a machine gets; nil is one that nobody knows.
func decideBoot(n *fleet.Node, discovery bool) boot {
	switch {
	case n == nil && discovery:
		return boot{netboot.AnswerInstaller, "", "unknown machine: the installer, which waits for approval"}
	case n == nil:
		return boot{netboot.AnswerRefuse, "", "unknown machine, and discovery is off"}
	case n.State == fleet.NodePending:
		return boot{netboot.AnswerInstaller, "", "pending: the installer, which waits for approval"}
	case n.Desired.Reinstall:
		return boot{netboot.AnswerInstaller, n.Desired.Image, "to be reinstalled"}
	}
	if s, ok := bootable(n); ok {
		return boot{netboot.AnswerSlot, s.Image, "confirmed slot " + string(s.Slot) + " over the network"}
	}
	return boot{netboot.AnswerInstaller, n.Desired.Image, "no confirmed slot: the installer"}
}

// bootable finds the confirmed slot that a node should run: the desired one,
// else the one it ran last. A slot on trial must be started from disk, where
// its tries are counted.
func bootable(n *fleet.Node) (fleet.SlotReport, bool) {
	if n.Reported == nil {
		return fleet.SlotReport{}, false
	}
	order := append([]fleet.SlotReport(nil), n.Reported.Slots...)
	for i, s := range order {
		if s.Slot == n.Reported.Booted && i > 0 {
			order[0], order[i] = order[i], order[0]
		}
	}
	var found *fleet.SlotReport
	for i, s := range order {
		if s.State != fleet.SlotGood || manifest.CheckDigest(s.Image) != nil {
			continue
		}
		if s.Image == n.Desired.Image {
			return s, true
		}
		if found == nil {
			found = &order[i]
		}
	}
	if found == nil {
		return fleet.SlotReport{}, false
	}
	return *found, true
}

// serve fills in the file of an answer.
func (s *Server) serve(ctx context.Context, c netboot.Client, a netboot.Answer, image string, n *fleet.Node) (netboot.Answer, error) {
	if image == "" {
		var err error
		if image, err = s.installerImage(ctx, n); err != nil {
			return a, err
		}
	}
	refuse := func(why string) (netboot.Answer, error) {
		a.Kind, a.Reason = netboot.AnswerRefuse, why
		return a, nil
	}
	if image == "" {
		return refuse("no image is published yet: pxeserver image publish DIR")
	}
	img, err := s.image(image)
	if errors.Is(err, oci.ErrNotFound) {
		return refuse("image " + rollout.Short(image) + " is not published here")
	}
	if err != nil {
		return a, err
	}
	if cpu := c.CPU(); cpu != "" && cpu != img.Manifest.Architecture {
		return refuse("image " + rollout.Short(image) + " is for " + img.Manifest.Architecture + ", the machine is " + cpu)
	}
	blob, name := img.Manifest.Installer, installerFile
	if a.Kind == netboot.AnswerSlot {
		blob, name = img.Manifest.UKI, slotFile
	}
	a.File, a.Size = "b/"+manifest.Short(blob.Digest)+"/"+name, blob.SizeBytes
	a.Open = func() (io.ReadSeekCloser, error) { return s.Images.Blob(blob.Digest) }
	return a, nil
}

// installerImage picks the image whose installer a machine gets: its pool's,
// else the newest that is some pool's, else the newest; "" if there is none.
func (s *Server) installerImage(ctx context.Context, n *fleet.Node) (string, error) {
	pool := s.live().Discovery
	if n != nil {
		pool = n.Pool
	}
	pools, err := s.Store.Pools(ctx)
	if err != nil {
		return "", err
	}
	used := map[string]bool{}
	for _, p := range pools {
		if p.Name == pool && p.Image != "" {
			return p.Image, nil
		}
		used[p.Image] = true
	}
	images, err := s.Store.Images(ctx)
	if err != nil || len(images) == 0 {
		return "", err
	}
	for _, i := range images {
		if used[i.Digest] {
			return i.Digest, nil
		}
	}
	return images[0].Digest, nil
}

// Leases keeps DHCP leases in the fleet state, for netboot.
type Leases struct{ Store store.Store }

// AllLeases implements netboot.LeaseStore.
func (l Leases) AllLeases(ctx context.Context) ([]netboot.Lease, error) {
	all, err := l.Store.Leases(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]netboot.Lease, 0, len(all))
	for _, x := range all {
		var n netboot.Lease
		if err := json.Unmarshal(x.Doc, &n); err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, nil
}

// PutLease implements netboot.LeaseStore.
func (l Leases) PutLease(ctx context.Context, n netboot.Lease) error {
	doc, err := json.Marshal(n)
	if err != nil {
		return err
	}
	return l.Store.Update(ctx, func(tx store.Tx) error {
		return tx.PutLease(ctx, store.Lease{IP: n.IP.String(), Doc: doc})
	})
}
