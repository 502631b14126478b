// Package alert tells webhooks of events: signed, in order, tried again, and
// given up with an event that says so. Addresses come from the server's
// configuration only; redirects and proxies are not followed.
//
// What is sent, as POST with Content-Type application/json:
//
//	Turnout-Delivery:  NAME-ID, the ID of the last event in it; the same when it is tried again
//	Turnout-Timestamp: Unix seconds
//	Turnout-Signature: v1=HEX, HMAC-SHA256 with the secret over TIMESTAMP "." BODY
//	{"hook": NAME, "server": VERSION, "test": false, "events": [fleet.Event…]}
//
// Any 2xx is taken for delivered.
package alert

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// Headers of a delivery.
const (
	HeaderDelivery  = "Turnout-Delivery"
	HeaderTimestamp = "Turnout-Timestamp"
	HeaderSignature = "Turnout-Signature"
)

// DefaultKinds are the beginnings of kinds that a webhook without its own
// list is told of.
var DefaultKinds = []string{
	"node.lost", "node.back", "node.unhealthy", "node.healthy", "node.outlier", "node.unverified", "node.verified", "node.foreign-tpm", "node.slot-bad",
	"attest.refused", "image.banned", "rollout.halted", "rollout.done", "rollout.aborted", "rollout.node-failed", "recovery.", "bmc.", "alert.",
}

// Hook is one webhook.
type Hook struct {
	Name   string
	URL    string
	Secret []byte
	Kinds  []string // beginnings of kinds; none: DefaultKinds
	CA     *x509.CertPool
}

// Message is the body of a delivery.
type Message struct {
	Hook   string        `json:"hook"`
	Server string        `json:"server"`         // version
	Test   bool          `json:"test,omitempty"` // made by `pxeserver alert test`
	Events []fleet.Event `json:"events"`
}

// minSecret is how long a secret must be: it is the only thing that keeps a
// forger out.
const minSecret = 16

// ReadSecret reads the secret of a hook. A file that others can read is
// refused.
func ReadSecret(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("%w; make one: (umask 077; openssl rand -hex 32 > %s)", err, path)
	}
	if st.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%q can be read by others: chmod 600 it", path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	s := strings.TrimSpace(string(b))
	if len(s) < minSecret {
		return nil, fmt.Errorf("%q: a secret of %d characters; want at least %d", path, len(s), minSecret)
	}
	return []byte(s), nil
}

// wants reports whether a hook is told of an event. It is not told of its own
// failures, which it could not be told of anyway.
func (h *Hook) wants(e fleet.Event) bool {
	if e.Actor == actorOf(h.Name) {
		return false
	}
	kinds := h.Kinds
	if len(kinds) == 0 {
		kinds = DefaultKinds
	}
	for _, k := range kinds {
		if strings.HasPrefix(e.Kind, k) {
			return true
		}
	}
	return false
}

func actorOf(hook string) string { return "alert:" + hook }

// Sign returns the signature of a body sent at a time.
func Sign(secret []byte, at time.Time, body []byte) string {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte(strconv.FormatInt(at.Unix(), 10) + "."))
	m.Write(body)
	return "v1=" + hex.EncodeToString(m.Sum(nil))
}

// ErrForged says that a delivery is not from who has the secret, or is old.
var ErrForged = errors.New("signature does not hold")

// Verify is what a receiver does: it checks the signature, and that the
// delivery is not older, or newer, than skew.
func Verify(secret []byte, h http.Header, body []byte, now time.Time, skew time.Duration) error {
	n, err := strconv.ParseInt(h.Get(HeaderTimestamp), 10, 64)
	if err != nil {
		return fmt.Errorf("%w: no %s", ErrForged, HeaderTimestamp)
	}
	at := time.Unix(n, 0)
	if !hmac.Equal([]byte(Sign(secret, at, body)), []byte(h.Get(HeaderSignature))) {
		return ErrForged
	}
	if d := now.Sub(at); d > skew || d < -skew {
		return fmt.Errorf("%w: sent %s ago", ErrForged, d)
	}
	return nil
}

// client makes the client of a hook: no redirects, no proxy, no waiting for
// ever.
func (h *Hook) client() *http.Client {
	return &http.Client{
		Timeout: 20 * time.Second,
		Transport: &http.Transport{
			DialContext:     (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: h.CA}, TLSHandshakeTimeout: 10 * time.Second,
			MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
