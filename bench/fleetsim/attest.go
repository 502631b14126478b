package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/tpm/measure"
	"github.com/turnout-project/turnout/internal/tpm/softtpm"
)

// booted is a real boot that nodes claim to have gone through: a log, what it
// leads to, and the image that fits it.
type booted struct {
	log   []byte
	pcrs  map[int][]byte
	image string
}

// logFiles finds the real logs of a module that is no dependency.
func logFiles() ([]string, error) {
	b, err := exec.Command("go", "mod", "download", "-json", "github.com/google/go-eventlog@v0.0.2").Output()
	var m struct{ Dir string }
	if err != nil || json.Unmarshal(b, &m) != nil {
		return nil, fmt.Errorf("fetching event logs: %w", err)
	}
	return filepath.Glob(filepath.Join(m.Dir, "testdata/eventlogs/tpm/*.bin"))
}

// publishBoots puts an image for each log of a SHA-256 bank and 15 KB or more
// where the server will look for it.
func publishBoots(dir string) (boots []booted, err error) {
	files, err := logFiles()
	if err != nil {
		return nil, err
	}
	images, err := oci.Create(filepath.Join(dir, "images"))
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		b := booted{log: raw}
		m := manifest.Manifest{SchemaVersion: manifest.Version, Name: "sim", Version: filepath.Base(f), Architecture: "amd64"}
		if b.pcrs, m.Measurements, err = softtpm.Boot(raw); err != nil || len(raw) < 15000 {
			continue
		}
		config, err := m.Encode()
		if err != nil {
			return nil, err
		}
		d, err := images.PutBytes(manifest.MediaConfig, config)
		if err != nil {
			return nil, err
		}
		put, err := images.PutManifest(oci.Manifest{SchemaVersion: 2, MediaType: oci.MediaManifest, ArtifactType: manifest.ArtifactType, Config: d})
		if err != nil {
			return nil, err
		}
		b.image = put.Digest
		boots = append(boots, b)
	}
	if len(boots) == 0 {
		return nil, errors.New("no event log could be used")
	}
	return boots, nil
}

// listBoots has the server list what publishBoots put there.
func listBoots(ctx context.Context, st store.Store, images *oci.Layout) error {
	all, err := images.Images()
	if err != nil {
		return err
	}
	return st.Update(ctx, func(tx store.Tx) error {
		for _, d := range all {
			img, err := images.Image(d.Digest)
			if err != nil {
				return err
			}
			if err := tx.PutImage(ctx, &fleet.Image{Digest: d.Digest, Name: img.Manifest.Name, Version: img.Manifest.Version, Published: time.Now()}); err != nil {
				return err
			}
		}
		return nil
	})
}

// attest is what nodeagent does: ask for a nonce, quote, send the evidence.
// Whole evidence has the log, the other its hash.
func (n *simNode) attest(ctx context.Context, whole bool) (time.Duration, error) {
	n.one.Lock()
	defer n.one.Unlock()
	began := time.Now()
	c, err := n.c.Nonce(ctx)
	if err != nil {
		return 0, err
	}
	req := &api.AttestRequest{Nonce: c.Nonce, BootID: n.report.BootID, Image: n.boot.image, Stage: fleet.StageSystem, Path: measure.PathDisk,
		PCRs: n.boot.pcrs, Model: &fleet.Model{Vendor: "Simulated", Product: "Node 8", BIOSVersion: "1"}}
	if req.Quote, req.Signature, err = n.tpm.Quote(c.Nonce, n.boot.pcrs); err != nil {
		return 0, err
	}
	req.EventLog = n.boot.log
	if !whole {
		req.EventLog, req.LogHash = nil, api.LogHash(n.boot.log)
	}
	v, err := n.c.Attest(ctx, req)
	if err == nil && !v.Accepted {
		err = fmt.Errorf("node %s was refused: %s", n.name, v.Summary)
	}
	return time.Since(began), err
}

// attestAll has every node attest within a time, evenly spread: with its log,
// then with the hash of it.
func (f *fleetSim) attestAll(ctx context.Context) error {
	size := 0
	for _, n := range f.nodes {
		size += len(n.boot.log)
	}
	f.say("%d logs in use, %d KB in the mean", len(f.boots), size/len(f.nodes)/1000)
	for _, whole := range []bool{true, false} {
		var lat latencies
		lat.reset()
		cpu, _ := usage(f.p.cmd.Process.Pid)
		began := time.Now()
		var all sync.WaitGroup
		errs := make(chan error, len(f.nodes))
		for i, n := range f.nodes {
			all.Go(func() {
				if pause(ctx, time.Duration(i)*f.o.attest/time.Duration(len(f.nodes))) != nil {
					return
				}
				took, err := n.attest(ctx, whole)
				lat.add(took, err)
				if err != nil {
					errs <- err
				}
			})
		}
		all.Wait()
		took := time.Since(began)
		after, rss := usage(f.p.cmd.Process.Pid)
		what := "with the log"
		if !whole {
			what = "with its hash"
		}
		f.say("%d nodes attested %s in %s: %s", len(f.nodes), what, took.Round(10*time.Millisecond), lat.String())
		f.say("server: %.2f ms of a core each, %.0f %% of one core, %d MiB resident", 1000*(after-cpu).Seconds()/float64(len(f.nodes)), 100*(after-cpu).Seconds()/took.Seconds(), rss>>20)
		if len(errs) > 0 {
			return <-errs
		}
	}
	return nil
}
