package api

import (
	"context"
	"net/url"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// PathUsage answers with []fleet.UsageRow: ?from=&to= (RFC 3339, whole hours),
// ?by= hour, day, month or all, ?pool=.
const PathUsage = "/v1/usage"

// Usage says what GPUs were used for from a time up to another.
func (c *Client) Usage(ctx context.Context, from, to time.Time, by, pool string) ([]fleet.UsageRow, error) {
	v := url.Values{"from": {from.UTC().Format(time.RFC3339)}, "to": {to.UTC().Format(time.RFC3339)}, "by": {by}, "pool": {pool}}
	return get[[]fleet.UsageRow](ctx, c, PathUsage+"?"+v.Encode())
}
