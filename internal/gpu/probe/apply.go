package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
)

// Apply brings about what the driver forgets at a reboot, or what an earlier
// image left in the GPUs: persistence, ECC, limits, and MIG unless
// mig-parted does that. Doing it twice does nothing the second time. The
// errors of all steps are joined, since each is worth doing by itself.
func (m *Machine) Apply(ctx context.Context, c *Config, log *slog.Logger) error {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	a := &applier{m: m, c: c, log: log}
	var errs []error
	for _, step := range []func(context.Context) error{a.persistence, a.ecc, a.mig, a.limits} {
		if err := step(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

type applier struct {
	m   *Machine
	c   *Config
	log *slog.Logger
}

func (a *applier) do(ctx context.Context, args ...string) error {
	_, err := a.m.smi(ctx, args...)
	a.log.Info("nvidia-smi", "arguments", strings.Join(args, " "), "error", err)
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return nil
}

func (a *applier) persistence(ctx context.Context) error {
	if !a.c.Persistence {
		return nil
	}
	if _, err := a.m.persistence(ctx, a.c); err == nil {
		return nil
	}
	return a.do(ctx, "-pm", "1")
}

// ecc changes the mode, which the board remembers, and resets the GPUs, which
// puts it in force.
func (a *applier) ecc(ctx context.Context) error {
	if a.c.ECC == "" {
		return nil
	}
	if _, err := a.m.ecc(ctx, a.c); err == nil || errors.Is(err, ErrUnknown) {
		return err
	}
	value := "0"
	if a.c.ECC == "on" {
		value = "1"
	}
	if err := a.do(ctx, "-e", value); err != nil {
		return err
	}
	return a.do(ctx, "--gpu-reset")
}

func (a *applier) limits(ctx context.Context) error {
	var errs []error
	limit := func(flag, value string) {
		if value != "" {
			errs = append(errs, a.do(ctx, flag, strings.ReplaceAll(value, "-", ",")))
		}
	}
	limit("-lgc", a.c.Clocks.GPU)
	limit("-lmc", a.c.Clocks.Memory)
	if a.c.Clocks.Power > 0 {
		limit("-pl", strconv.Itoa(a.c.Clocks.Power))
	}
	return errors.Join(errs...)
}

func (a *applier) mig(ctx context.Context) error {
	if a.c.MIG == nil || a.c.MIG.Tool != "nvidia-smi" {
		return nil
	}
	cuts, err := a.m.cuts(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, g := range cuts {
		if g.mode == "" && g.differs(a.c.MIG) == "" {
			continue // a board without MIG, and the layout asks for none
		}
		if err := a.cut(ctx, g); err != nil {
			errs = append(errs, fmt.Errorf("MIG layout %s: GPU %d: %w", a.c.MIG.Layout, g.index, err))
		}
	}
	return errors.Join(errs...)
}

// cut makes one GPU what the layout says.
func (a *applier) cut(ctx context.Context, g cut) error {
	if g.differs(a.c.MIG) == "" {
		return nil
	}
	e, ok := a.c.MIG.entry(g.index, g.device)
	if !ok {
		return errors.New(g.differs(a.c.MIG))
	}
	i := strconv.Itoa(g.index)
	if len(g.instances) > 0 {
		if err := a.do(ctx, "mig", "-i", i, "-dci"); err != nil {
			return err
		}
		if err := a.do(ctx, "mig", "-i", i, "-dgi"); err != nil {
			return err
		}
	}
	if err := a.mode(ctx, g, len(e.Profiles) > 0); err != nil || len(e.Profiles) == 0 {
		return err
	}
	return a.do(ctx, "mig", "-i", i, "-cgi", instances(e.Profiles), "-C")
}

// mode switches MIG; Ampere needs a reset of the GPU for it.
func (a *applier) mode(ctx context.Context, g cut, on bool) error {
	want, value := "Disabled", "0"
	if on {
		want, value = "Enabled", "1"
	}
	if g.mode == want && g.pending == want {
		return nil
	}
	i := strconv.Itoa(g.index)
	if err := a.do(ctx, "-i", i, "-mig", value); err != nil {
		return err
	}
	rows, err := a.m.query(ctx, "mig.mode.current")
	if err != nil {
		return err
	}
	if g.index < len(rows) && rows[g.index]["mig.mode.current"] == want {
		return nil
	}
	return a.do(ctx, "-i", i, "--gpu-reset")
}
