package api

import (
	"context"
	"fmt"
	"net/url"
	"time"
)

// ConsoleLog is the end of a node's serial console: nodes/{node}/console.
type ConsoleLog struct {
	Text    string    `json:"text"`    // whole lines, without commands to a terminal
	Size    int64     `json:"size"`    // of the whole log, in bytes
	Changed time.Time `json:"changed"` // when something was last written to it
}

// ConsoleLog returns the last bytes of a node's serial console; 0 is the
// usual amount.
func (c *Client) ConsoleLog(ctx context.Context, node string, bytes int) (*ConsoleLog, error) {
	path := PathNodes + "/" + url.PathEscape(node) + "/console"
	if bytes > 0 {
		path += fmt.Sprintf("?bytes=%d", bytes)
	}
	return get[*ConsoleLog](ctx, c, path)
}
