package api

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// callTimeout bounds one JSON call of a node. Image streams are bounded by
// their context alone.
const callTimeout = 60 * time.Second

// NodeClient is the node's end of the node API. It is made without a client
// certificate; UseCertificate gives it one after activation. Safe for
// concurrent use.
//
//	c, _ := api.NewNodeClient(server, caPEM)
//	key, csr, _ := api.NewNodeKey()
//	r, _ := c.Enrol(ctx, &api.EnrolRequest{CSR: csr, …})   // until r.Status is EnrolChallenge
//	a, _ := c.Activate(ctx, &api.ActivateRequest{Session: r.Session, Secret: …})
//	_ = c.UseCertificate(a.Certificate, key)
//	n, _ := c.Nonce(ctx) … c.Attest(ctx, …) … c.Heartbeat(ctx, …)
//
// When Unauthorized(err) holds the certificate has run out or was withdrawn:
// enrol again.
type NodeClient struct {
	caPEM []byte
	pause time.Duration // of Blob before it connects again, at first

	mu      sync.RWMutex
	servers []string // URLs; the first is the one that is asked
	cert    *tls.Certificate
	t       *transport // to the first

	cache cache
}

// NewNodeClient makes a client for the server at an https URL that presents
// a certificate for ServerName from one of the CAs in caPEM.
func NewNodeClient(server string, caPEM []byte) (*NodeClient, error) {
	t, err := newTransport(server, caPEM, nil)
	if err != nil {
		return nil, err
	}
	return &NodeClient{servers: []string{server}, caPEM: caPEM, pause: time.Second, t: t}, nil
}

// NewNodeKey makes the key of a node's client certificate and a certificate
// request (DER, PKCS #10) for it. The key never leaves the node's memory.
func NewNodeKey() (key crypto.Signer, csr []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("making the node's TLS key: %w", err)
	}
	csr, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "turnout-node"}, // the server names the node, not the request
	}, k)
	if err != nil {
		return nil, nil, fmt.Errorf("making the node's certificate request: %w", err)
	}
	return k, csr, nil
}

// UseCertificate makes every later call present the certificate (PEM, the
// leaf) with its key, over new connections.
func (c *NodeClient) UseCertificate(certPEM string, key crypto.Signer) error {
	p, _ := pem.Decode([]byte(certPEM))
	if p == nil {
		return errors.New("client certificate: not in PEM form")
	}
	leaf, err := x509.ParseCertificate(p.Bytes)
	if err != nil {
		return fmt.Errorf("client certificate: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cert = &tls.Certificate{Certificate: [][]byte{p.Bytes}, PrivateKey: key, Leaf: leaf}
	return c.reconnect()
}

// reconnect makes a new transport to the first server. c.mu is held.
func (c *NodeClient) reconnect() error {
	t, err := newTransport(c.servers[0], c.caPEM, c.cert)
	if err != nil {
		return err
	}
	c.t.http.CloseIdleConnections()
	c.t = t
	return nil
}

// Close drops idle connections. The client can still be used.
func (c *NodeClient) Close() { c.transport().http.CloseIdleConnections() }

func (c *NodeClient) transport() *transport {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.t
}

func (c *NodeClient) post(ctx context.Context, path string, in, out any) error {
	return c.anywhere(ctx, func(ctx context.Context, t *transport) error {
		return t.call(ctx, http.MethodPost, path, nil, in, out)
	})
}

// Enrol opens a session: see EnrolResponse.Status for the three answers. A
// pending node calls again after RetryAfter seconds.
func (c *NodeClient) Enrol(ctx context.Context, r *EnrolRequest) (*EnrolResponse, error) {
	out := &EnrolResponse{}
	return out, wrap("enrolling", c.post(ctx, PathEnrol, r, out))
}

// Activate proves that EK and AK live in one TPM. A session can be activated
// once, within a few minutes.
func (c *NodeClient) Activate(ctx context.Context, r *ActivateRequest) (*ActivateResponse, error) {
	out := &ActivateResponse{}
	return out, wrap("activating the TPM credential", c.post(ctx, PathActivate, r, out))
}

// Nonce asks for the challenge of the next quote. It is good for one Attest
// within a few minutes.
func (c *NodeClient) Nonce(ctx context.Context) (*NonceResponse, error) {
	out := &NonceResponse{}
	return out, wrap("asking for a nonce", c.post(ctx, PathNonce, struct{}{}, out))
}

// Attest hands in evidence and returns the server's judgement. A verdict
// that is not accepted is no error; an error means that nothing was judged.
func (c *NodeClient) Attest(ctx context.Context, r *AttestRequest) (*fleet.Verdict, error) {
	out := &fleet.Verdict{}
	return out, wrap("attesting", c.post(ctx, PathAttest, r, out))
}

// Heartbeat reports and returns what is wanted.
func (c *NodeClient) Heartbeat(ctx context.Context, r *fleet.Report) (*HeartbeatResponse, error) {
	out := &HeartbeatResponse{}
	return out, wrap("sending a heartbeat", c.post(ctx, PathHeartbeat, r, out))
}

// Events appends lines to the node's story on the server.
func (c *NodeClient) Events(ctx context.Context, events ...NodeEvent) error {
	if len(events) == 0 {
		return nil
	}
	return wrap("sending events", c.post(ctx, PathEvents, &EventsRequest{Events: events}, nil))
}

// ImageManifest returns the OCI manifest of an image as stored. The caller
// checks it against the digest: the transport is not the trust.
func (c *NodeClient) ImageManifest(ctx context.Context, digest string) ([]byte, error) {
	b, err := c.small(ctx, PathImages+digest+"/manifest")
	return b, wrap("fetching the manifest of image "+digest, err)
}

// ImageSignature returns the detached ed25519 signature over the image
// digest (see manifest.Verify), 64 bytes, not verified.
func (c *NodeClient) ImageSignature(ctx context.Context, digest string) ([]byte, error) {
	b, err := c.small(ctx, PathImages+digest+"/signature")
	return b, wrap("fetching the signature of image "+digest, err)
}

func (c *NodeClient) small(ctx context.Context, path string) (b []byte, err error) {
	return b, c.anywhere(ctx, func(ctx context.Context, t *transport) error {
		resp, err := t.do(ctx, http.MethodGet, path, nil, nil)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		b, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		return err
	})
}

// Unauthorized reports whether the server no longer takes the client
// certificate: it has run out, or an operator removed the node or cleared
// its TPM. Enrol again.
func Unauthorized(err error) bool { return StatusOf(err) == http.StatusUnauthorized }

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
