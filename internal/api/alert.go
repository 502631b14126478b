package api

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// PathAlerts begins the paths of webhooks.
//
//	GET    alerts               []Webhook
//	POST   alerts/{name}/test   -> Webhook   sends it a delivery that says "test"
const PathAlerts = "/v1/alerts"

// Webhook is one receiver of alerts. Its address beyond the host, which may
// hold a key, and its secret are not shown.
type Webhook struct {
	Name    string    `json:"name"`
	Host    string    `json:"host"`
	Kinds   []string  `json:"kinds"`
	After   int64     `json:"after"`             // ID of the last event that was looked at
	Failing string    `json:"failing,omitempty"` // why the delivery that is due failed last
	Tries   int       `json:"tries,omitempty"`
	Last    time.Time `json:"last,omitzero"`     // last delivery that was taken
	Dropped int64     `json:"dropped,omitempty"` // events given up
}

// Webhooks lists the receivers of alerts.
func (c *Client) Webhooks(ctx context.Context) ([]Webhook, error) {
	return get[[]Webhook](ctx, c, PathAlerts)
}

// TestWebhook sends a receiver a test.
func (c *Client) TestWebhook(ctx context.Context, name string) (*Webhook, error) {
	return send[*Webhook](ctx, c, http.MethodPost, PathAlerts+"/"+url.PathEscape(name)+"/test", nil)
}
