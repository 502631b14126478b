package api

import (
	"context"
	"encoding/json"
	"net/url"
)

// PathReport begins the paths of reports.
//
//	GET report?node=&rack=&pool=&require=  a signed report (nodereport.Signed); require may be repeated
//	GET report/key                         ReportKey
const PathReport = "/v1/report"

// ReportQuery selects what a report is about: one of Node, Rack and Pool.
type ReportQuery struct {
	Node, Rack, Pool string
	Require          []string // facts that must hold, none for the usual ones
}

// ReportKey is the public key that verifies a server's reports.
type ReportKey struct {
	ID  string `json:"id"`
	PEM string `json:"pem"`
}

// Report has the server write a report, which it signs.
func (c *Client) Report(ctx context.Context, q ReportQuery) (json.RawMessage, error) {
	v := url.Values{"require": q.Require}
	for k, s := range map[string]string{"node": q.Node, "rack": q.Rack, "pool": q.Pool} {
		if s != "" {
			v.Set(k, s)
		}
	}
	return get[json.RawMessage](ctx, c, PathReport+"?"+v.Encode())
}

// ReportKey returns the key that verifies the server's reports.
func (c *Client) ReportKey(ctx context.Context) (*ReportKey, error) {
	return get[*ReportKey](ctx, c, PathReport+"/key")
}
