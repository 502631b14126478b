package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"syscall"

	"github.com/turnout-project/turnout/internal/fleet"
)

// ErrNoService is wrapped when nobody takes orders: the service does not run.
var ErrNoService = errors.New("the agent's service does not run")

// Orders gives a technician's orders to the service.
type Orders struct{ Socket string }

// Flip boots the other slot.
func (o Orders) Flip(ctx context.Context, in FlipOrder) (out FlipResult, err error) {
	err = o.call(ctx, "/flip", in, &out)
	return out, err
}

// Confirm confirms the booted slot.
func (o Orders) Confirm(ctx context.Context, in ConfirmOrder) (out fleet.SlotReport, err error) {
	err = o.call(ctx, "/confirm", in, &out)
	return out, err
}

// Attest has the server judge this boot now.
func (o Orders) Attest(ctx context.Context) (out *fleet.Verdict, err error) {
	err = o.call(ctx, "/attest", struct{}{}, &out)
	return out, err
}

func (o Orders) call(ctx context.Context, path string, in, out any) error {
	b, err := json.Marshal(in)
	if err != nil {
		return err
	}
	c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", o.Socket)
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent"+path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return ErrNoService
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%s: only root may give orders", o.Socket)
	case err != nil:
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return json.NewDecoder(resp.Body).Decode(out)
	}
	var p struct{ Error string }
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || p.Error == "" {
		return fmt.Errorf("the agent answered %s", resp.Status)
	}
	if resp.StatusCode == http.StatusConflict {
		return refuse("%s", p.Error)
	}
	return errors.New(p.Error)
}
