package main

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/doctor"
)

// bmcsAtOnce is how many BMCs are asked at the same time; bmcsNamed how many
// of those that do not answer are named.
const (
	bmcsAtOnce = 16
	bmcsNamed  = 5
)

// bmcs asks, through the running server, every BMC for the state of its
// node's power.
func bmcs(ctx context.Context, c *api.Client) doctor.Finding {
	const check = "BMCs"
	list, err := c.BMCs(ctx)
	if err != nil {
		return doctor.Finding{Check: check, Level: doctor.Warning, Found: "the server does not say which there are: " + err.Error()}
	}
	if len(list) == 0 {
		return doctor.Finding{Check: check, Level: doctor.OK, Found: "none is set"}
	}
	var mu sync.Mutex
	silent := map[string]string{}
	parts := errgroup.Group{}
	parts.SetLimit(bmcsAtOnce)
	for _, b := range list {
		parts.Go(func() error {
			if _, err := c.Power(ctx, b.Node); err != nil {
				mu.Lock()
				defer mu.Unlock()
				silent[b.Node] = err.Error()
			}
			return nil
		})
	}
	_ = parts.Wait() // they return none
	if len(silent) == 0 {
		return doctor.Finding{Check: check, Level: doctor.OK, Found: fmt.Sprintf("all %d answer", len(list))}
	}
	text, named := "", 0
	for _, b := range list { // in their order
		if why, is := silent[b.Node]; is && named < bmcsNamed {
			text += fmt.Sprintf("; %s: %s", b.Node, why)
			named++
		}
	}
	return doctor.Finding{Check: check, Level: doctor.Warning, Found: fmt.Sprintf("%d of %d do not answer%s", len(silent), len(list), text),
		Fix: "look at their network and passwords: pxeserver bmc show NODE"}
}
