package api

import (
	"context"
	"errors"
	"slices"
	"time"
)

// triesTimeout bounds one try of a call where there is another server to ask
// after it.
const triesTimeout = 15 * time.Second

// Server returns the URL of the server that is asked at present.
func (c *NodeClient) Server() string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.servers[0]
}

// Servers returns the URLs of all servers that the client knows, the one that
// is asked at present first.
func (c *NodeClient) Servers() []string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Clone(c.servers)
}

// UseServers names the servers of one fleet: a call that gets no answer from
// one of them is made to the next, and the later ones with it. Each must show
// a certificate of the same CA. The one that is asked at present stays first,
// in the list or not. What is no server's URL is left out.
func (c *NodeClient) UseServers(urls []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.servers = slices.Clip(c.servers[:1])
	for _, u := range urls {
		if _, err := parseServer(u); err == nil && !slices.Contains(c.servers, u) {
			c.servers = append(c.servers, u)
		}
	}
}

// anywhere makes a call to the server that is asked at present and, as long
// as there is no answer, to each other one once.
func (c *NodeClient) anywhere(ctx context.Context, call func(context.Context, *transport) error) error {
	var errs []error
	for tries := len(c.Servers()); ; tries-- {
		limit := callTimeout
		if tries > 1 {
			limit = triesTimeout
		}
		t := c.transport()
		tctx, cancel := context.WithTimeout(ctx, limit)
		err := call(tctx, t)
		cancel()
		if !silent(ctx, err) {
			return err
		}
		errs = append(errs, err)
		if c.leave(t); tries <= 1 {
			return errors.Join(errs...)
		}
	}
}

// silent reports whether a call got no answer from a server of ours, for a
// reason that lies with the server or the way to it.
func silent(ctx context.Context, err error) bool {
	return ctx.Err() == nil && (errors.Is(err, ErrUnreachable) || errors.Is(err, ErrUntrusted) || errors.Is(err, context.DeadlineExceeded))
}

// leave turns to the next server, unless somebody has turned away from the
// one behind t already.
func (c *NodeClient) leave(t *transport) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.t != t || len(c.servers) < 2 {
		return
	}
	c.servers = append(c.servers[1:len(c.servers):len(c.servers)], c.servers[0])
	if err := c.reconnect(); err != nil { // its URL was checked
		c.servers = append([]string{c.servers[len(c.servers)-1]}, c.servers[:len(c.servers)-1]...)
	}
}
