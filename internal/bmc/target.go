package bmc

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
)

// Target is how to reach a BMC.
type Target struct {
	URL      string // https://HOST[:PORT], nothing behind
	User     string
	Password string
	Pin      string // SHA-256 of its certificate (DER), 64 hex digits
	CA       string // PEM; used when Pin is empty
	System   string // Redfish ID of the machine, "" where the BMC has one only
}

// ParseURL checks the address of a BMC. A host alone is completed.
func ParseURL(s string) (string, error) {
	if !strings.Contains(s, "://") {
		s = "https://" + s
	}
	u, err := url.Parse(strings.TrimRight(s, "/"))
	if err != nil || u.Scheme != "https" || u.Host == "" || u.Hostname() == "" || u.Path != "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("BMC address %q: want https://HOST, HOST or HOST:PORT", s)
	}
	if p := u.Port(); p != "" {
		if _, err := net.LookupPort("tcp", p); err != nil {
			return "", fmt.Errorf("BMC address %q: port %q", s, p)
		}
	}
	return u.String(), nil
}

// ParsePin accepts a SHA-256 as 64 hex digits, with or without colons and
// "sha256:" before them, in any case.
func ParsePin(s string) (string, error) {
	h := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(s, "sha256:"), ":", ""))
	if b, err := hex.DecodeString(h); err != nil || len(b) != sha256.Size {
		return "", fmt.Errorf("certificate pin %q: want the 64 hex digits of a SHA-256", s)
	}
	return h, nil
}

// UnknownCertificateError says that a BMC showed a certificate that is not
// the pinned one, or that nothing says which to expect.
type UnknownCertificateError struct {
	URL  string
	Seen string // SHA-256, hex
	Want string // "" if nothing is pinned
}

func (e *UnknownCertificateError) Error() string {
	if e.Want == "" {
		return fmt.Sprintf("BMC %s: nothing says how to know it; its certificate's SHA-256 is %s", e.URL, e.Seen)
	}
	return fmt.Sprintf("BMC %s: its certificate's SHA-256 is %s, pinned is %s: it was replaced, or this is not the BMC", e.URL, e.Seen, e.Want)
}

// tls returns the TLS settings of a target.
func (t Target) tls() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.Pin == "" && t.CA != "" {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM([]byte(t.CA)) {
			return nil, fmt.Errorf("BMC %s: CA: no certificate in PEM form", t.URL)
		}
		return c, nil
	}
	// The pin replaces the usual checks: self-signed certificates name no
	// host and run out. It is compared in every handshake.
	c.InsecureSkipVerify = true
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 {
			return errors.New("no certificate")
		}
		h := sha256.Sum256(s.PeerCertificates[0].Raw)
		seen := hex.EncodeToString(h[:])
		if t.Pin == "" || subtle.ConstantTimeCompare([]byte(seen), []byte(t.Pin)) != 1 {
			return &UnknownCertificateError{t.URL, seen, t.Pin}
		}
		return nil
	}
	return c, nil
}
