package api

import (
	"context"
	"net/url"

	"github.com/turnout-project/turnout/internal/fleet"
)

// PathDrift answers with a fleet.Drift; ?pool= is for the nodes of one pool.
const PathDrift = "/v1/drift"

// Drift says where the fleet, or a pool ("" for all), is not as it should be.
func (c *Client) Drift(ctx context.Context, pool string) (*fleet.Drift, error) {
	return get[*fleet.Drift](ctx, c, PathDrift+"?pool="+url.QueryEscape(pool))
}
