package server

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/bmc"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
)

// askBMC makes a handler of a question to a node's BMC.
func askBMC[T any](s *Server, ask func(c *bmc.Session, r *http.Request) (T, error)) func(http.ResponseWriter, *http.Request, string) (any, error) {
	return func(_ http.ResponseWriter, r *http.Request, _ string) (any, error) {
		var v T
		err := s.withBMC(r.Context(), r.PathValue("node"), func(_ context.Context, c *bmc.Session) (err error) {
			v, err = ask(c, r)
			return err
		})
		return v, err
	}
}

func (s *Server) bmcPower(c *bmc.Session, r *http.Request) (api.Power, error) {
	state, err := c.Power()
	if err == nil {
		s.powers.see(r.PathValue("node"), state, s.now())
	}
	return api.Power{Node: r.PathValue("node"), State: state}, err
}

func bmcMachine(c *bmc.Session, _ *http.Request) (*fleet.Machine, error) { return c.Machine() }
func bmcSensors(c *bmc.Session, _ *http.Request) ([]fleet.Sensor, error) { return c.Sensors() }

func bmcTask(c *bmc.Session, r *http.Request) (*fleet.BMCTask, error) {
	return c.Task(r.URL.Query().Get("path"))
}

// setPower acts on a node's power, and tells what came of it.
func (s *Server) setPower(w http.ResponseWriter, r *http.Request, actor string) (any, error) {
	req, err := body[api.PowerRequest](w, r)
	if err != nil {
		return nil, err
	}
	if !slices.Contains([]fleet.PowerAct{fleet.PowerOn, fleet.PowerOff, fleet.PowerShutdown, fleet.PowerCycle}, req.Act) {
		return nil, problem(http.StatusBadRequest, "", "power act %q: want on, off, shutdown or cycle", req.Act)
	}
	name := r.PathValue("node")
	state, err := s.actPower(r.Context(), name, req.Act)
	return api.Power{Node: name, State: state}, s.tellBMC(r.Context(), actor, name, "bmc.power", string(req.Act)+dash(clip(req.Reason, 500)), err)
}

// actPower returns the state after the act, as far as it has got by then.
func (s *Server) actPower(ctx context.Context, node string, act fleet.PowerAct) (state string, err error) {
	err = s.withBMC(ctx, node, func(ctx context.Context, c *bmc.Session) error {
		if err := c.Act(ctx, act); err != nil {
			return err
		}
		state, _ = c.Power() // the act counts, not what is seen of it so soon
		s.powers.see(node, state, s.now())
		return nil
	})
	return state, err
}

// tellBMC writes an event for an act through a BMC, and returns its error. A
// refusal before anything was sent is no event.
func (s *Server) tellBMC(ctx context.Context, actor, node, kind, msg string, err error) error {
	var p *api.Problem
	if err != nil && (!errors.As(err, &p) || p.Status != http.StatusBadGateway) {
		return err
	}
	if err != nil {
		kind, msg = kind+"-failed", msg+": "+p.Detail
	}
	ctx = context.WithoutCancel(ctx) // what was done is told, whoever has hung up
	return errors.Join(err, s.update(ctx, func(tx store.Tx) error { return s.note(ctx, tx, actor, node, kind, msg) }))
}

func (s *Server) bootOnce(w http.ResponseWriter, r *http.Request, actor string) (any, error) {
	req, err := body[api.BootRequest](w, r)
	if err != nil {
		return nil, err
	}
	if !slices.Contains([]fleet.BootTarget{fleet.BootPXE, fleet.BootHTTP, fleet.BootDisk, fleet.BootNone}, req.Target) {
		return nil, problem(http.StatusBadRequest, "", "boot target %q: want pxe, http, disk or none", req.Target)
	}
	name := r.PathValue("node")
	err = s.withBMC(r.Context(), name, func(_ context.Context, c *bmc.Session) error { return c.BootOnce(req.Target) })
	return nil, s.tellBMC(r.Context(), actor, name, "bmc.boot", "next boot from "+string(req.Target)+", once", err)
}

// maxFirmware bounds an uploaded firmware file.
const maxFirmware = 2 << 30

// updateFirmware keeps the file until it is whole, so that a BMC is not left
// with half of one, and hands it to the BMC.
func (s *Server) updateFirmware(w http.ResponseWriter, r *http.Request, actor string) (any, error) {
	name, q := r.PathValue("node"), r.URL.Query()
	f, err := os.CreateTemp("", "turnout-firmware-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	h := sha256.New()
	size, err := io.Copy(io.MultiWriter(f, h), http.MaxBytesReader(w, r.Body, maxFirmware))
	if err != nil {
		return nil, problem(http.StatusBadRequest, "", "firmware file: %v", err)
	}
	if size == 0 {
		return nil, problem(http.StatusBadRequest, "", "the firmware file is empty")
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	var task *fleet.BMCTask
	err = s.withBMC(r.Context(), name, func(_ context.Context, c *bmc.Session) (err error) {
		task, err = c.Update(q.Get("name"), f, size, q["target"])
		return err
	})
	msg := fmt.Sprintf("%s, %d bytes, SHA-256 %x", clip(q.Get("name"), 200), size, h.Sum(nil))
	return task, s.tellBMC(r.Context(), actor, name, "bmc.update", msg, err)
}
