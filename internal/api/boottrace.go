package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"time"
)

// Paths of the boot services.
//
//	GET boot/trace?mac=                            application/x-ndjson: BootTrace as it happens; blank lines keep it open
//	GET boot/explain?mac=&arch=&kind=&relay=&ip=   BootExplanation
const (
	PathBootTrace   = "/v1/boot/trace"
	PathBootExplain = "/v1/boot/explain"
)

// BootTrace is one DHCP request, and what became of it.
type BootTrace struct {
	At        time.Time      `json:"at"`
	Interface string         `json:"interface"`
	Client    string         `json:"client"`           // its MAC address, or what else identifies it
	Kind      string         `json:"kind,omitempty"`   // "uefi-pxe", …; "" if the packet was not understood
	Type      string         `json:"type,omitempty"`   // "DISCOVER", …; "" if it was not understood
	Answer    string         `json:"answer,omitempty"` // "OFFER", "ACK", "NAK"; "" for silence
	IP        netip.Addr     `json:"ip,omitzero"`
	File      string         `json:"file,omitempty"`
	Why       string         `json:"why"`
	Text      string         `json:"text"` // all of it in one line
	From      netip.AddrPort `json:"from,omitzero"`
	To        netip.AddrPort `json:"to,omitzero"`
	ReplyFrom netip.AddrPort `json:"replyFrom,omitzero"`
	ReplyTo   netip.AddrPort `json:"replyTo,omitzero"`
	Request   []byte         `json:"request"` // UDP payloads
	Reply     []byte         `json:"reply,omitempty"`
}

// BootQuery says which machine is asked about. Kind "" is UEFI firmware that
// boots by PXE; Arch is "x64" (""), "arm64" or "bios", or a number of option 93.
type BootQuery struct {
	MAC   string
	Arch  string
	Kind  string
	Relay string // address of the relay it is behind
}

// BootExplanation is what a machine would be given, and why.
type BootExplanation struct {
	Answer   string            `json:"answer"` // "installer", "slot", "none", "refuse"
	Node     string            `json:"node,omitempty"`
	Why      string            `json:"why"`
	Silent   bool              `json:"silent"`             // DHCP would not answer it
	Profile  string            `json:"profile,omitempty"`  // shape of the reply
	Reply    map[string]string `json:"reply,omitempty"`    // what DHCP would say of booting
	Download string            `json:"download,omitempty"` // where it would load from
	Size     int64             `json:"size,omitempty"`     // of that file, in bytes
}

// ExplainBoot asks what a machine would be given.
func (c *Client) ExplainBoot(ctx context.Context, q BootQuery) (*BootExplanation, error) {
	v := url.Values{"mac": {q.MAC}, "arch": {q.Arch}, "kind": {q.Kind}, "relay": {q.Relay}}
	return get[*BootExplanation](ctx, c, PathBootExplain+"?"+v.Encode())
}

// TraceBoot reads what happens at the DHCP server, of one MAC address or
// ("") of all, until ctx ends, the connection does, or take returns an error.
func (c *Client) TraceBoot(ctx context.Context, mac string, take func(BootTrace) error) error {
	resp, err := c.t.do(ctx, http.MethodGet, PathBootTrace+"?mac="+url.QueryEscape(mac), nil, c.header)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	s := bufio.NewScanner(resp.Body)
	s.Buffer(make([]byte, 16<<10), 1<<20)
	for s.Scan() {
		line := bytes.TrimSpace(s.Bytes())
		if len(line) == 0 {
			continue
		}
		var t BootTrace
		if err := json.Unmarshal(line, &t); err != nil {
			return fmt.Errorf("trace: %w", err)
		}
		if err := take(t); err != nil {
			return err
		}
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(s.Err(), bufio.ErrTooLong):
		return errors.New("trace: a line is too long")
	}
	return fmt.Errorf("%w: the trace ended", ErrUnreachable)
}
