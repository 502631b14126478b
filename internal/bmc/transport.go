package bmc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/turnout-project/turnout/internal/pause"
)

// How often and how long a request is tried again. BMCs are slow, answer 503
// while they start and drop connections when they are busy.
const (
	tries        = 4
	firstPause   = 500 * time.Millisecond
	longestPause = 10 * time.Second
	oneRequest   = time.Minute
)

// patient is a transport that tries again what may be tried again: anything
// that did not arrive (connection refused, 503, 429), and reads whatever
// happened to them. It ties requests to ctx, but for the end of a session,
// which must get through when ctx is over.
type patient struct {
	ctx   context.Context
	next  http.RoundTripper
	pause func(ctx context.Context, d time.Duration) error // waits
}

// RoundTrip implements http.RoundTripper.
func (p *patient) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := p.ctx
	if req.Method == http.MethodDelete {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(p.ctx), 15*time.Second)
		defer cancel()
	}
	wait := firstPause
	for try := 1; ; try++ {
		r := req.Clone(ctx)
		if req.GetBody != nil {
			b, err := req.GetBody()
			if err != nil {
				return nil, err
			}
			r.Body = b
		}
		resp, err := p.next.RoundTrip(r)
		again, after := retry(req, resp, err)
		if !again || try == tries || req.Body != nil && req.GetBody == nil {
			return resp, err
		}
		if resp != nil {
			_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<16))
			resp.Body.Close()
		}
		if err := p.pause(ctx, min(max(wait, after), longestPause)); err != nil {
			return nil, err
		}
		wait *= 2
	}
}

// retry says whether a request may be sent again, and the pause that the BMC
// asks for.
func retry(req *http.Request, resp *http.Response, err error) (again bool, after time.Duration) {
	reads := req.Method == http.MethodGet || req.Method == http.MethodHead
	if err != nil {
		var unknown *UnknownCertificateError
		if errors.As(err, &unknown) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return false, 0
		}
		var op *net.OpError
		isDial := errors.As(err, &op) && op.Op == "dial" && errors.Is(err, syscall.ECONNREFUSED)
		return reads || isDial, 0
	}
	switch resp.StatusCode {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		s, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		return true, time.Duration(max(s, 0)) * time.Second
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusGatewayTimeout:
		return reads, 0
	}
	return false, 0
}

// httpClient makes the client of a target. Redirects stay on the BMC.
func (t Target) httpClient(ctx context.Context) (*http.Client, error) {
	conf, err := t.tls()
	if err != nil {
		return nil, err
	}
	next := &http.Transport{
		TLSClientConfig: conf, DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout: 20 * time.Second, ResponseHeaderTimeout: oneRequest, MaxResponseHeaderBytes: 256 << 10,
	}
	return &http.Client{
		Transport: &patient{ctx, limited{next}, pause.For},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if req.URL.Host != via[0].URL.Host || req.URL.Scheme != "https" || len(via) > 3 {
				return fmt.Errorf("BMC redirects to %s", req.URL.Redacted())
			}
			return nil
		},
	}, nil
}

// limited bounds answers: a BMC that sends without end must not fill memory.
type limited struct{ next http.RoundTripper }

const maxAnswer = 16 << 20

func (l limited) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(req)
	if err == nil {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, maxAnswer), resp.Body}
	}
	return resp, err
}
