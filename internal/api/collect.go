package api

import (
	"context"
	"net/http"

	"github.com/turnout-project/turnout/internal/fleet"
)

// PathCollect is where images that nothing needs are removed:
//
//	POST images/gc  CollectRequest -> []Collected
const PathCollect = "/v1/images/gc"

// PathMetrics is where Prometheus scrapes, with an operator's token.
const PathMetrics = "/metrics"

// CollectRequest says how much to keep beyond what is needed.
type CollectRequest struct {
	Keep   int  `json:"keep"`             // newest images that stay anyway, at least 1
	DryRun bool `json:"dryRun,omitempty"` // only say what would be removed
}

// Collected is what became of one image, newest first.
type Collected struct {
	Image    fleet.Image `json:"image"`
	NeededBy string      `json:"neededBy,omitempty"` // who needs it, "" nobody
	Removed  bool        `json:"removed"`
}

// Collect removes the images that no slot, wish, pool or rollout needs.
func (c *Client) Collect(ctx context.Context, r CollectRequest) ([]Collected, error) {
	return send[[]Collected](ctx, c, http.MethodPost, PathCollect, r)
}
