package api

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// Client is an operator's end of the API. Safe for concurrent use. Errors of
// the server are *Problem; see also ErrUnreachable and ErrUntrusted.
type Client struct {
	t      *transport
	header http.Header
}

// NewClient makes a client for the server at an https URL, trusted by caPEM,
// with a bearer token.
func NewClient(server string, caPEM []byte, token string) (*Client, error) {
	t, err := newTransport(server, caPEM, nil)
	if err != nil {
		return nil, err
	}
	return &Client{t: t, header: http.Header{"Authorization": {"Bearer " + strings.TrimSpace(token)}}}, nil
}

// NewCertClient is NewClient with a client certificate and its key, in one
// PEM text, in place of a token.
func NewCertClient(server string, caPEM, certAndKey []byte) (*Client, error) {
	pair, err := tls.X509KeyPair(certAndKey, certAndKey)
	if err != nil {
		return nil, fmt.Errorf("client certificate: %w", err)
	}
	t, err := newTransport(server, caPEM, &pair)
	if err != nil {
		return nil, err
	}
	return &Client{t: t, header: http.Header{}}, nil
}

func get[T any](ctx context.Context, c *Client, path string) (T, error) {
	var v T
	err := c.t.call(ctx, http.MethodGet, path, c.header, nil, &v)
	return v, err
}

func send[T any](ctx context.Context, c *Client, method, path string, in any) (T, error) {
	var v T
	err := c.t.call(ctx, method, path, c.header, in, &v)
	return v, err
}

// Version asks the server who it is.
func (c *Client) Version(ctx context.Context) (Version, error) {
	return get[Version](ctx, c, PathVersion)
}

// Nodes lists all nodes by name.
func (c *Client) Nodes(ctx context.Context) ([]fleet.Node, error) {
	return get[[]fleet.Node](ctx, c, PathNodes)
}

// Node returns one node.
func (c *Client) Node(ctx context.Context, name string) (*fleet.Node, error) {
	return get[*fleet.Node](ctx, c, PathNodes+"/"+url.PathEscape(name))
}

// AddNode makes a node known before it is seen.
func (c *Client) AddNode(ctx context.Context, r NodeRequest) (*fleet.Node, error) {
	return send[*fleet.Node](ctx, c, http.MethodPost, PathNodes, r)
}

// RemoveNode forgets a node and its TPM.
func (c *Client) RemoveNode(ctx context.Context, name string) error {
	return c.t.call(ctx, http.MethodDelete, PathNodes+"/"+url.PathEscape(name), c.header, nil, nil)
}

// NodeAct does "approve", "cordon", "uncordon", "unban", "cleartpm",
// "revoke" or "reimage" to a node and returns what it is then.
func (c *Client) NodeAct(ctx context.Context, name, act string, r NodeRequest) (*fleet.Node, error) {
	return send[*fleet.Node](ctx, c, http.MethodPost, PathNodes+"/"+url.PathEscape(name)+"/"+act, r)
}

// Flip asks nodes to boot their other confirmed slot.
func (c *Client) Flip(ctx context.Context, r FlipRequest) ([]Flip, error) {
	return send[[]Flip](ctx, c, http.MethodPost, PathFlip, r)
}

// Pools lists all pools by name.
func (c *Client) Pools(ctx context.Context) ([]fleet.Pool, error) {
	return get[[]fleet.Pool](ctx, c, PathPools)
}

// SetPool makes or changes a pool. Image may be a digest, its first digits or
// "name version".
func (c *Client) SetPool(ctx context.Context, p fleet.Pool) (*fleet.Pool, error) {
	return send[*fleet.Pool](ctx, c, http.MethodPut, PathPools+"/"+url.PathEscape(p.Name), p)
}

// ActOnImage does "revoke" or "restore" to an image and returns what it is
// then. It may be named by the first digits of its digest, or "name version".
func (c *Client) ActOnImage(ctx context.Context, image, act, reason string) (*fleet.Image, error) {
	return send[*fleet.Image](ctx, c, http.MethodPost, PathImageList+"/"+url.PathEscape(image)+"/"+act, ReasonRequest{Reason: reason})
}

// Baselines lists what the firmware of each hardware model measures, by ID.
func (c *Client) Baselines(ctx context.Context) ([]fleet.Baseline, error) {
	return get[[]fleet.Baseline](ctx, c, PathBaselines)
}

// AnnounceBaseline approves firmware that no node has shown yet.
func (c *Client) AnnounceBaseline(ctx context.Context, r AnnounceRequest) (*fleet.Baseline, error) {
	return send[*fleet.Baseline](ctx, c, http.MethodPost, PathBaselines, r)
}

// ApproveBaseline lets nodes of a model show what was seen.
func (c *Client) ApproveBaseline(ctx context.Context, id string) (*fleet.Baseline, error) {
	return send[*fleet.Baseline](ctx, c, http.MethodPost, PathBaselines+"/"+url.PathEscape(id)+"/approve", nil)
}

// ForgetBaseline drops a baseline, approved or not.
func (c *Client) ForgetBaseline(ctx context.Context, id string) error {
	return c.t.call(ctx, http.MethodDelete, PathBaselines+"/"+url.PathEscape(id), c.header, nil, nil)
}

// Images lists published images, newest first.
func (c *Client) Images(ctx context.Context) ([]fleet.Image, error) {
	return get[[]fleet.Image](ctx, c, PathImageList)
}

// Publish makes an image known whose blobs were all put.
func (c *Client) Publish(ctx context.Context, r PublishRequest) (*fleet.Image, error) {
	return send[*fleet.Image](ctx, c, http.MethodPost, PathImageList, r)
}

// HasBlob reports whether the server has a blob.
func (c *Client) HasBlob(ctx context.Context, digest string) (bool, error) {
	resp, err := c.t.do(ctx, http.MethodHead, PathBlobs+digest, nil, c.header)
	if StatusOf(err) == http.StatusNotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, resp.Body.Close()
}

// PutBlob uploads a blob, which the server checks against its digest.
func (c *Client) PutBlob(ctx context.Context, digest string, r io.Reader) error {
	resp, err := c.t.do(ctx, http.MethodPut, PathBlobs+digest, r, c.header)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// Rollouts lists all rollouts, oldest first.
func (c *Client) Rollouts(ctx context.Context) ([]fleet.Rollout, error) {
	return get[[]fleet.Rollout](ctx, c, PathRollouts)
}

// RolloutSummaries lists all rollouts without their nodes, oldest first.
func (c *Client) RolloutSummaries(ctx context.Context) ([]RolloutSummary, error) {
	return get[[]RolloutSummary](ctx, c, PathRollouts+"?summary=1")
}

// Rollout returns one rollout.
func (c *Client) Rollout(ctx context.Context, id string) (*fleet.Rollout, error) {
	return get[*fleet.Rollout](ctx, c, PathRollouts+"/"+url.PathEscape(id))
}

// StartRollout starts a rollout, or only drafts it.
func (c *Client) StartRollout(ctx context.Context, r RolloutRequest) (*fleet.Rollout, error) {
	return send[*fleet.Rollout](ctx, c, http.MethodPost, PathRollouts, r)
}

// RolloutAct does "pause", "resume" or "abort" to a rollout.
func (c *Client) RolloutAct(ctx context.Context, id, act string, r ReasonRequest) (*fleet.Rollout, error) {
	return send[*fleet.Rollout](ctx, c, http.MethodPost, PathRollouts+"/"+url.PathEscape(id)+"/"+act, r)
}

// EventQuery selects events; see Client.Events.
type EventQuery struct {
	After int64         // only those with a higher ID
	Node  string        // "" for all
	Kind  string        // prefix, "" for all
	Limit int           // 0 means 1000
	Last  bool          // the newest Limit ones
	Wait  time.Duration // with none to return, wait for one this long (at most MaxEventWait)
}

// Events lists events by rising ID.
func (c *Client) Events(ctx context.Context, q EventQuery) ([]fleet.Event, error) {
	v := url.Values{}
	set := func(k, s string) {
		if s != "" && s != "0" {
			v.Set(k, s)
		}
	}
	set("after", strconv.FormatInt(q.After, 10))
	set("node", q.Node)
	set("kind", q.Kind)
	set("limit", strconv.Itoa(q.Limit))
	set("wait", strconv.Itoa(int(q.Wait.Seconds())))
	if q.Last {
		v.Set("last", "1")
	}
	return get[[]fleet.Event](ctx, c, PathEventList+"?"+v.Encode())
}
