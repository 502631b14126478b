package server

import (
	"context"
	"errors"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/pulse"
	"github.com/turnout-project/turnout/internal/store"
)

// bootTold is what was last told of a machine's network boot.
type bootTold struct {
	text string
	at   time.Time
}

// bootHold is how long a boot service's line is not repeated for a machine:
// firmware asks many times.
const bootHold = time.Minute

// maxBootTold bounds the memory of what was told.
const maxBootTold = 8192

// BootEvent writes what the boot services tell into the history, for
// netboot.Server.Events. It does not block: what comes faster than it can be
// written is in the log only.
func (s *Server) BootEvent(kind string, mac fleet.MAC, message string) {
	if kind == "dhcp.ignored" { // machines that want nothing of us
		return
	}
	now := s.now()
	if kind == "tftp.sent" || kind == "http.sent" {
		s.handouts.sent(mac, message, now)
	}
	key, text := string(mac)+" "+kind, clip(message, 500)
	s.mu.Lock()
	old, seen := s.booted[key]
	age := now.Sub(old.at)
	if seen && old.text == text && age >= 0 && age < bootHold {
		s.mu.Unlock()
		return
	}
	if len(s.booted) >= maxBootTold {
		clear(s.booted)
	}
	s.booted[key] = bootTold{text, now}
	s.mu.Unlock()
	select {
	case s.boots <- bootLine{kind, mac, text, now}:
	default:
		s.log.Warn("too many boot events, one is not kept", "kind", kind, "mac", string(mac))
	}
}

// bootLine is an event on its way to the store.
type bootLine struct {
	kind string
	mac  fleet.MAC
	text string
	at   time.Time
}

// KeepBoots writes what this server's boot services have told, until ctx
// ends.
func (s *Server) KeepBoots(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case b := <-s.boots:
			if err := s.writeBoot(ctx, b); err != nil && ctx.Err() == nil {
				s.log.Error("keeping a boot event", "err", err)
			}
		}
	}
}

// Watch looks for nodes that fell silent, until ctx ends. Of several servers
// on one store only the leader does.
func (s *Server) Watch(ctx context.Context) {
	t := time.NewTicker(max(s.Heartbeat, time.Second))
	defer t.Stop()
	lives := map[string]*pulse.Liveness{} // by node
	stale := map[string]time.Time{}
	began := s.now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if err := errors.Join(s.findLost(ctx, lives), s.findUnverified(ctx, stale, began)); err != nil && ctx.Err() == nil {
			s.log.Error("watching the fleet", "err", err)
		}
	}
}

func (s *Server) writeBoot(ctx context.Context, b bootLine) error {
	return s.update(ctx, func(tx store.Tx) error {
		e := &fleet.Event{At: b.at, Actor: "server", Kind: b.kind, Message: b.text}
		if n, err := tx.NodeByMAC(ctx, b.mac); err == nil {
			e.Node = n.Name
		} else if b.mac != "" {
			e.Message = string(b.mac) + ": " + b.text
		}
		return tx.AppendEvent(ctx, e)
	})
}

// findLost tells of nodes that have been silent for long, and of their
// return. Silence demotes nothing and is answered by nothing.
func (s *Server) findLost(ctx context.Context, lives map[string]*pulse.Liveness) error {
	nodes, err := s.Store.Nodes(ctx)
	if err != nil {
		return err
	}
	now := s.now()
	for _, n := range nodes {
		if n.State == fleet.NodePending || n.LastSeen.IsZero() {
			continue
		}
		l := lives[n.Name]
		if l == nil {
			l = &pulse.Liveness{}
			lives[n.Name] = l
		}
		kind, msg := "", ""
		switch l.See(now, n.LastSeen) {
		case pulse.Lost:
			kind, msg = "node.lost", "not seen since "+n.LastSeen.UTC().Format(time.RFC3339)
		case pulse.Back:
			kind, msg = "node.back", "steadily seen again, was lost since "+l.Since().UTC().Format(time.RFC3339)
		}
		if kind == "" {
			continue
		}
		err := s.update(ctx, func(tx store.Tx) error { return s.noteOnce(ctx, tx, n.Name, kind, msg) })
		if err != nil {
			return err
		}
	}
	return nil
}
