package api

import (
	"context"
	"net/http"
	"time"
)

// PathRecovery begins the paths of what the server does about nodes in trouble.
//
//	GET    recovery          Recovery
//	POST   recovery/pause    PauseRequest -> Recovery   for some time, or until resumed
//	POST   recovery/resume                -> Recovery
const PathRecovery = "/v1/recovery"

// Recovery is how recovery stands.
type Recovery struct {
	Paused *time.Time     `json:"paused,omitempty"` // nothing is done until then
	Pauser string         `json:"pauser,omitempty"` // who paused it, and why
	Nodes  []RecoveryNode `json:"nodes"`            // in trouble or lately so, by name
	Storms []RecoveryNode `json:"storms"`           // groups of which too many fell silent at once
	Steps  int            `json:"steps"`            // that took nodes from their work in the last hour
}

// RecoveryNode is a node on the ladder, or a group in a storm.
type RecoveryNode struct {
	Node    string    `json:"node"`
	Trouble string    `json:"trouble"`
	Why     string    `json:"why,omitempty"`
	Since   time.Time `json:"since"`
	Step    string    `json:"step,omitempty"` // the last that was taken
	At      time.Time `json:"at,omitzero"`
	Failed  string    `json:"failed,omitempty"` // why it could not be carried out
	Calm    bool      `json:"calm,omitempty"`   // without trouble now
}

// PauseRequest stops recovery for a time; 0 is until it is resumed.
type PauseRequest struct {
	For    time.Duration `json:"for"` // nanoseconds
	Reason string        `json:"reason,omitempty"`
}

// Recovery says how recovery stands.
func (c *Client) Recovery(ctx context.Context) (*Recovery, error) {
	return get[*Recovery](ctx, c, PathRecovery)
}

// PauseRecovery has the server leave nodes alone.
func (c *Client) PauseRecovery(ctx context.Context, r PauseRequest) (*Recovery, error) {
	return send[*Recovery](ctx, c, http.MethodPost, PathRecovery+"/pause", r)
}

// ResumeRecovery is the opposite of PauseRecovery.
func (c *Client) ResumeRecovery(ctx context.Context) (*Recovery, error) {
	return send[*Recovery](ctx, c, http.MethodPost, PathRecovery+"/resume", PauseRequest{})
}
