package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// ErrUnreachable is wrapped by errors of calls that got no answer: the
// server is down, the network is, or the address is wrong. Trying again may
// help.
var ErrUnreachable = errors.New("server not reachable")

// ErrUntrusted is wrapped when whoever answered is not the server the caller
// trusts. Trying again does not help.
var ErrUntrusted = errors.New("server is not the one we trust")

// maxAnswer bounds JSON answers; images go another way.
const maxAnswer = 64 << 20

// transport is the connection half shared by both clients: base URL and TLS.
type transport struct {
	base *url.URL
	http *http.Client
}

// newTransport checks the address and trusts exactly the CAs in caPEM under
// the name ServerName. cert may be nil.
func newTransport(server string, caPEM []byte, cert *tls.Certificate) (*transport, error) {
	base, err := parseServer(server)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(caPEM) {
		return nil, errors.New("server CA: no certificate in PEM form")
	}
	conf := &tls.Config{RootCAs: pool, ServerName: ServerName, MinVersion: tls.VersionTLS13}
	if cert != nil {
		conf.Certificates = []tls.Certificate{*cert}
	}
	rt := &http.Transport{
		TLSClientConfig:       conf,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:   20 * time.Second,
		ResponseHeaderTimeout: 90 * time.Second,
		IdleConnTimeout:       90 * time.Second,
		ForceAttemptHTTP2:     true,
		DisableCompression:    true, // images are compressed already
	}
	return &transport{base: base, http: &http.Client{Transport: rt}}, nil
}

// parseServer accepts "https://host:port", with a path never.
func parseServer(server string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimRight(server, "/"))
	if err != nil || u.Scheme != "https" || u.Host == "" || u.Path != "" {
		return nil, fmt.Errorf("server address %q: want https://HOST:PORT", server)
	}
	return u, nil
}

// do sends one request and returns the answer if its status is 2xx; any
// other becomes a *Problem.
func (t *transport) do(ctx context.Context, method, path string, body io.Reader, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, t.base.String()+path, body)
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := t.http.Do(req)
	if err != nil {
		return nil, t.explain(ctx, err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, readProblem(resp)
}

// explain sorts the ways a call can fail before it has an answer.
func (t *transport) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	var verify *tls.CertificateVerificationError
	if errors.As(err, &verify) {
		return fmt.Errorf("%w: %s: %w", ErrUntrusted, t.base.Host, err)
	}
	return fmt.Errorf("%w: %s: %w", ErrUnreachable, t.base.Host, err)
}

// call sends in as JSON (nil for none) and reads the answer into out (nil to
// ignore it).
func (t *transport) call(ctx context.Context, method, path string, header http.Header, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("%s %s: encoding the request: %w", method, path, err)
		}
		body = bytes.NewReader(b)
		header = header.Clone()
		if header == nil {
			header = http.Header{}
		}
		header.Set("Content-Type", "application/json")
	}
	resp, err := t.do(ctx, method, path, body, header)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
		return err
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out); err != nil {
		return fmt.Errorf("%s %s: reading the answer: %w", method, path, err)
	}
	return nil
}

// readProblem turns a refusal into a *Problem, whatever its body is.
func readProblem(resp *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	p := &Problem{}
	if json.Unmarshal(b, p) != nil || p.Title == "" {
		p = &Problem{Title: resp.Status, Detail: strings.TrimSpace(string(b))}
	}
	p.Status = resp.StatusCode
	return p
}

// StatusOf returns the HTTP status of a *Problem in err's chain, or 0.
func StatusOf(err error) int {
	var p *Problem
	if errors.As(err, &p) {
		return p.Status
	}
	return 0
}
