package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/turnout-project/turnout/internal/bmc"
	"github.com/turnout-project/turnout/internal/compat"
	"github.com/turnout-project/turnout/internal/drift"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/pause"
	"github.com/turnout-project/turnout/internal/store"
)

// kindFirmware are the records of what BMCs told of firmware, by node.
const kindFirmware = "firmware"

// firmwareRecord is one of them.
type firmwareRecord struct {
	At       time.Time        `json:"at"`
	Firmware []fleet.Firmware `json:"firmware"`
}

// How often the firmware of a node is asked for by itself, how often somebody
// looks who is due, and how many BMCs are asked at once.
const (
	firmwareEvery = 24 * time.Hour
	firmwareLook  = 10 * time.Minute
	firmwareBMCs  = 4
)

// CollectFirmware asks BMCs for firmware versions, each once a day, until ctx
// ends.
func (s *Server) CollectFirmware(ctx context.Context) {
	for s.BMC != nil && pause.For(ctx, firmwareLook) == nil {
		if err := s.CollectFirmwareOnce(ctx); err != nil && ctx.Err() == nil {
			s.log.Info("asking BMCs for firmware", "err", err)
		}
	}
}

// CollectFirmwareOnce asks those that are due.
func (s *Server) CollectFirmwareOnce(ctx context.Context) error {
	bmcs, err := s.Store.Records(ctx, kindBMC, "", "")
	if err != nil {
		return err
	}
	known, err := s.firmwareKnown(ctx)
	if err != nil {
		return err
	}
	errs := make([]error, len(bmcs))
	var eg errgroup.Group
	eg.SetLimit(firmwareBMCs)
	for i, b := range bmcs {
		if s.now().Sub(known[b.Key].At) < firmwareEvery {
			continue
		}
		eg.Go(func() error {
			if _, err := s.askFirmware(ctx, b.Key); err != nil {
				errs[i] = fmt.Errorf("node %s: %w", b.Key, err)
			}
			return nil
		})
	}
	_ = eg.Wait() // errors are in errs
	return errors.Join(errs...)
}

// askFirmware asks a node's BMC, and keeps the answer.
func (s *Server) askFirmware(ctx context.Context, node string) (fw []fleet.Firmware, err error) {
	err = s.withBMC(ctx, node, func(_ context.Context, c *bmc.Session) (err error) {
		fw, err = c.Firmware()
		return err
	})
	if err != nil {
		return nil, err
	}
	doc, err := json.Marshal(firmwareRecord{s.now(), fw})
	if err != nil {
		return nil, err
	}
	return fw, s.Store.Update(ctx, func(tx store.Tx) error {
		if _, err := tx.Node(ctx, node); err != nil {
			return err
		}
		return tx.PutRecord(ctx, store.Record{Kind: kindFirmware, Key: node, Node: node, Doc: doc})
	})
}

func (s *Server) showFirmware(_ http.ResponseWriter, r *http.Request, _ string) (any, error) {
	fw, err := s.askFirmware(r.Context(), r.PathValue("node"))
	return orEmpty(fw), err
}

func (s *Server) firmwareKnown(ctx context.Context) (map[string]firmwareRecord, error) {
	recs, err := s.Store.Records(ctx, kindFirmware, "", "")
	out := make(map[string]firmwareRecord, len(recs))
	for _, rec := range recs {
		var f firmwareRecord
		if json.Unmarshal(rec.Doc, &f) == nil {
			out[rec.Key] = f
		}
	}
	return out, err
}

func (s *Server) showDrift(_ http.ResponseWriter, r *http.Request, _ string) (any, error) {
	in, err := s.driftInput(r.Context())
	if err != nil {
		return nil, err
	}
	if pool := r.URL.Query().Get("pool"); pool != "" {
		in.Nodes = slices.DeleteFunc(in.Nodes, func(n *fleet.Node) bool { return n.Pool != pool })
	}
	return drift.Find(*in), nil
}

func (s *Server) driftInput(ctx context.Context) (*drift.Input, error) {
	in := &drift.Input{Now: s.now(), Images: map[string]drift.Image{}, Next: map[string][]string{}, Firmware: map[string][]fleet.Firmware{}, Tables: compat.Default()}
	var err error
	if in.Nodes, err = s.Store.Nodes(ctx); err != nil {
		return nil, err
	}
	if in.Pools, err = s.Store.Pools(ctx); err != nil {
		return nil, err
	}
	images, err := s.Store.Images(ctx)
	if err != nil {
		return nil, err
	}
	for _, i := range images {
		in.Images[i.Digest] = s.driftImage(in.Tables, i.Digest)
	}
	known, err := s.firmwareKnown(ctx)
	if err != nil {
		return nil, err
	}
	for node, f := range known {
		in.Firmware[node] = f.Firmware
	}
	rs, err := s.Store.LiveRollouts(ctx)
	if err != nil {
		return nil, err
	}
	in.Next = nextImages(in.Pools, images, rs)
	return in, nil
}

// nextImages are, by pool, the image it has, those that live rollouts bring
// it, and the newest one of the same name.
func nextImages(pools []*fleet.Pool, images []*fleet.Image, live []*fleet.Rollout) map[string][]string {
	out := map[string][]string{}
	add := func(pool, digest string) {
		if digest != "" && !slices.Contains(out[pool], digest) {
			out[pool] = append(out[pool], digest)
		}
	}
	for _, p := range pools {
		add(p.Name, p.Image)
		i := slices.IndexFunc(images, func(i *fleet.Image) bool { return i.Digest == p.Image })
		if i < 0 {
			continue
		}
		for _, newer := range images { // newest first
			if newer.Name == images[i].Name {
				add(p.Name, newer.Digest)
				break
			}
		}
	}
	for _, r := range live {
		for _, st := range r.Policy.Stages {
			if st.Pool != "" {
				add(st.Pool, r.Image)
			}
		}
	}
	return out
}

// driftImage reads what drift needs of an image; what cannot be read stays
// unknown. It is kept in memory: images never change.
func (s *Server) driftImage(t *compat.Tables, digest string) drift.Image {
	s.mu.Lock()
	d, ok := s.drivers[digest]
	s.mu.Unlock()
	if ok {
		return d
	}
	img, err := s.image(digest)
	if err != nil {
		return drift.Image{}
	}
	d = drift.Image{Architecture: img.Manifest.Architecture, Kernel: img.Manifest.Kernel.Release}
	for _, l := range img.OCI.Layers {
		if l.MediaType != manifest.MediaPackageList {
			continue
		}
		raw, err := s.Images.ReadBlob(l.Digest)
		var list []struct{ Name, Version string }
		if err == nil && json.Unmarshal(raw, &list) == nil {
			packages := map[string]string{}
			for _, p := range list {
				packages[strings.TrimSpace(p.Name)] = p.Version
			}
			d.Driver = drift.DriverOf(t, packages)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drivers == nil {
		s.drivers = map[string]drift.Image{}
	}
	s.drivers[digest] = d
	return d
}
