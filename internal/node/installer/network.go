//go:build linux

package installer

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/netboot/dhcpclient"
)

// dhcpWait is how long the network may take: links of data centre switches
// need up to a minute to pass packets.
const dhcpWait = 5 * time.Minute

// network gets an address and keeps it.
func (i *installer) network(ctx context.Context) (dhcpclient.Lease, error) {
	i.Grant(dhcpWait + time.Minute)
	dctx, cancel := context.WithTimeout(ctx, dhcpWait)
	defer cancel()
	l, err := dhcpclient.AcquireAny(dctx, nil, nil)
	if err != nil {
		return l, err
	}
	if err := dhcpclient.Apply(l); err != nil {
		return l, err
	}
	i.Log("address %s on %s", l.Address, l.Interface)
	resolver(l, i.Log)
	go func() {
		err := dhcpclient.Keep(ctx, l, func(next dhcpclient.Lease) {
			if err := dhcpclient.Apply(next); err != nil {
				i.Log("warning: %v", err)
			}
		})
		if err != nil {
			i.Log("warning: %v", err)
		}
	}()
	return l, nil
}

// resolver tells Go's resolver the name servers of the lease.
func resolver(l dhcpclient.Lease, log func(string, ...any)) {
	if os.Getpid() != 1 {
		return // not an initrd: the name servers are somebody else's
	}
	var b strings.Builder
	for _, a := range l.DNS {
		fmt.Fprintf(&b, "nameserver %s\n", a)
	}
	if err := os.MkdirAll("/etc", 0o755); err != nil {
		log("warning: %v", err)
	}
	if err := os.WriteFile("/etc/resolv.conf", []byte(b.String()), 0o644); err != nil {
		log("warning: %v", err)
	}
}

// setClock moves an absurd clock to a time that may be: certificates are
// judged by it, and none of the server's can be older than the CA that made
// it. A clock that only runs slow is left alone.
func setClock(ca []byte, log func(string, ...any)) {
	earliest := notBefore(ca)
	if now := time.Now(); !now.Before(earliest) {
		return
	}
	to := earliest.Add(time.Hour)
	log("warning: the clock says %s, which cannot be: it is set to %s", time.Now().UTC().Format(time.RFC3339), to.UTC().Format(time.RFC3339))
	tv := unix.NsecToTimeval(to.UnixNano())
	if err := unix.Settimeofday(&tv); err != nil {
		log("warning: setting the clock: %v", err)
	}
}

// notBefore returns the start of validity of the newest CA certificate.
func notBefore(ca []byte) time.Time {
	var t time.Time
	for {
		var p *pem.Block
		if p, ca = pem.Decode(ca); p == nil {
			return t
		}
		if c, err := x509.ParseCertificate(p.Bytes); err == nil && c.NotBefore.After(t) {
			t = c.NotBefore
		}
	}
}
