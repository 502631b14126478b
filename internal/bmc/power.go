package bmc

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/stmcginnis/gofish/redfish"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/pause"
)

// How long a machine may take to be off, and the pause before it is switched
// on again: capacitors must empty, and a BMC may refuse On at once.
const (
	offWithin = time.Minute
	offPause  = 5 * time.Second
	offLook   = time.Second
)

// Power returns "On", "Off" or what else the BMC says.
func (s *Session) Power() (string, error) {
	x := struct{ PowerState string }{}
	if _, err := s.get(s.system.ODataID, &x); err != nil {
		return "", s.explain("asking for the power state", err)
	}
	return x.PowerState, nil
}

// Act does something to the machine's power. An act is sent once: whether a
// reset that got no answer was carried out is not known, so it is not sent
// again.
func (s *Session) Act(ctx context.Context, a fleet.PowerAct) error {
	state, err := s.Power()
	if err != nil {
		return err
	}
	isOn := state != string(redfish.OffPowerState)
	switch a {
	case fleet.PowerOn:
		if isOn {
			return nil
		}
		return s.reset(redfish.OnResetType, redfish.ForceOnResetType)
	case fleet.PowerOff:
		if !isOn {
			return nil
		}
		return s.reset(redfish.ForceOffResetType)
	case fleet.PowerShutdown:
		if !isOn {
			return nil
		}
		return s.reset(redfish.GracefulShutdownResetType, redfish.PushPowerButtonResetType)
	case fleet.PowerCycle:
		return s.cycle(ctx, isOn)
	}
	return fmt.Errorf("power act %q: want on, off, shutdown or cycle", a)
}

// cycle prefers what the BMC does on its own, so that a connection lost in
// between does not leave the machine off.
func (s *Session) cycle(ctx context.Context, isOn bool) error {
	if !isOn {
		return s.reset(redfish.OnResetType, redfish.ForceOnResetType)
	}
	for _, t := range []redfish.ResetType{redfish.PowerCycleResetType, redfish.ForceRestartResetType} {
		if s.allows(t) {
			return s.reset(t)
		}
	}
	if err := s.reset(redfish.ForceOffResetType); err != nil {
		return err
	}
	if err := s.waitOff(ctx); err != nil {
		return err
	}
	if err := pause.For(ctx, offPause); err != nil {
		return err
	}
	return s.reset(redfish.OnResetType, redfish.ForceOnResetType)
}

func (s *Session) waitOff(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, offWithin)
	defer cancel()
	for {
		state, err := s.Power()
		if err != nil {
			return err
		}
		if state == string(redfish.OffPowerState) {
			return nil
		}
		if pause.For(ctx, offLook) != nil {
			return fmt.Errorf("BMC %s: machine still %s %s after ForceOff", s.target.URL, state, offWithin)
		}
	}
}

// allows reports whether the BMC lists a reset type. One that lists none is
// believed to take every type, as the schema says.
func (s *Session) allows(t redfish.ResetType) bool {
	have := s.system.SupportedResetTypes
	return len(have) == 0 || slices.Contains(have, t)
}

// reset sends the first of the types that the BMC allows.
func (s *Session) reset(types ...redfish.ResetType) error {
	for _, t := range types {
		if s.allows(t) {
			return s.explain("reset "+string(t), s.system.Reset(t))
		}
	}
	return fmt.Errorf("BMC %s: it offers none of %v, but %v", s.target.URL, types, s.system.SupportedResetTypes)
}
