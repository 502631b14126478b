package main

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/renameio/v2"

	"github.com/turnout-project/turnout/internal/config"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/netboot"
	"github.com/turnout-project/turnout/internal/server"
	"github.com/turnout-project/turnout/internal/store"
)

// bootConfig turns the configuration into that of the boot services.
func bootConfig(c *config.Config) (netboot.Config, error) {
	n := netboot.DefaultConfig()
	n.Mode, n.ServerIP, n.NodeAPI, n.LeaseTime = netboot.Mode(c.DHCP.Mode), netip.MustParseAddr(c.Address), c.NodeAPI(), c.DHCP.Lease
	n.Ports = netboot.Ports{
		DHCP: portOr(c.Listen.DHCP, n.Ports.DHCP), Proxy: portOr(c.Listen.Proxy, n.Ports.Proxy),
		TFTP: portOr(c.Listen.TFTP, n.Ports.TFTP), HTTP: portOr(c.Listen.HTTPBoot, n.Ports.HTTP), HTTPS: portOr(c.Listen.HTTPS, n.Ports.HTTPS),
	}
	n.BootURL, n.OfferHTTPS, n.BlockSize, n.WindowSize = c.Boot.URL, c.Boot.OfferHTTPS, c.Boot.BlockSize, c.Boot.WindowSize
	n.Limits = bootLimits(c)
	if c.Interface != "" {
		n.Interfaces = []string{c.Interface}
	}
	for _, r := range c.DHCP.Relays {
		n.Relays = append(n.Relays, netip.MustParsePrefix(r))
	}
	for _, p := range c.DHCP.Profiles {
		n.Profiles = append(n.Profiles, netboot.ProfileRule{VendorClass: p.Class, MAC: p.MAC, CPU: p.CPU, Profile: netboot.Profile(p.Profile)})
	}
	if n.Mode == netboot.ModeServer {
		for _, x := range c.DHCP.Networks() {
			s, err := subnet(x)
			if err != nil {
				return n, fmt.Errorf("dhcp: subnet %s: %w", x.Subnet, err)
			}
			n.Subnets = append(n.Subnets, s)
		}
	}
	return n, n.Validate()
}

func bootLimits(c *config.Config) netboot.Limits {
	l := c.Limits
	return netboot.Limits{
		Transfers: l.Transfers, Downloads: l.Downloads, RackDownloads: l.RackDownloads,
		Pace: l.Connection, RackPace: l.Rack, TotalPace: l.Total,
	}
}

// subnet converts a network that config has checked.
func subnet(x config.Network) (netboot.Subnet, error) {
	first, last, err := x.Addresses()
	if err != nil {
		return netboot.Subnet{}, err
	}
	s := netboot.Subnet{
		Prefix: netip.MustParsePrefix(x.Subnet), Pools: []netboot.Range{{First: first, Last: last}},
		Domain: x.Domain, MTU: x.MTU, LeaseTime: x.Lease,
	}
	for to, text := range map[*netip.Addr]string{&s.Router: x.Router, &s.ServerIP: x.Server} {
		if text != "" {
			*to = netip.MustParseAddr(text)
		}
	}
	for _, d := range x.DNS {
		s.DNS = append(s.DNS, netip.MustParseAddr(d))
	}
	for _, d := range x.NTP {
		s.NTP = append(s.NTP, netip.MustParseAddr(d))
	}
	for m, a := range x.Reservations {
		mac, err := fleet.ParseMAC(m)
		if err != nil {
			return s, fmt.Errorf("reservations: %w", err)
		}
		s.Reservations = append(s.Reservations, netboot.Reservation{MAC: mac, IP: netip.MustParseAddr(a)})
	}
	return s, nil
}

func portOr(p, usual int) int {
	if p == 0 {
		return usual
	}
	return p
}

func bootServer(c *config.Config, srv *server.Server, st store.Store, log *slog.Logger) (*netboot.Server, error) {
	n, err := bootConfig(c)
	if err != nil {
		return nil, &statusError{exitUsage, err.Error()}
	}
	b := &netboot.Server{Config: n, Policy: srv, Leases: server.Leases{Store: st}, Log: log, Events: srv.BootEvent, Trace: srv.TraceBoot}
	if c.Listen.HTTPS >= 0 {
		if b.TLS, err = bootTLS(c, log); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// bootTLS is for firmware, some of which knows RSA only, and no key exchange
// with forward secrecy that Go offers. What is sent is no secret: the
// connection proves to the firmware whose file it is.
func bootTLS(c *config.Config, log *slog.Logger) (*tls.Config, error) {
	k := &keyPair{cert: c.Boot.Cert, key: c.Boot.Key, log: log}
	if k.cert == "" {
		k.cert, k.key = filepath.Join(c.DataDir, "boot-https.pem"), filepath.Join(c.DataDir, "boot-https.key")
		if err := makeBootCert(k.cert, k.key, append([]string{c.Address}, c.Names...), time.Now()); err != nil {
			return nil, err
		}
	}
	if _, err := k.get(nil); err != nil {
		return nil, &statusError{exitUsage, err.Error()}
	}
	suites := []uint16{tls.TLS_RSA_WITH_AES_256_GCM_SHA384, tls.TLS_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_RSA_WITH_AES_256_CBC_SHA, tls.TLS_RSA_WITH_AES_128_CBC_SHA}
	for _, s := range tls.CipherSuites() {
		suites = append(suites, s.ID)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, CipherSuites: suites, GetCertificate: k.get}, nil
}

// keyPair reads its files again when they have changed, so that a certificate
// is renewed without a restart.
type keyPair struct {
	cert, key string
	log       *slog.Logger

	mu    sync.Mutex
	pair  *tls.Certificate
	mtime time.Time
}

func (k *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	st, err := os.Stat(k.cert)
	if err == nil && k.pair != nil && st.ModTime().Equal(k.mtime) {
		return k.pair, nil
	}
	var pair tls.Certificate
	if err == nil {
		pair, err = tls.LoadX509KeyPair(k.cert, k.key)
	}
	if err == nil {
		k.pair, k.mtime = &pair, st.ModTime()
		return k.pair, nil
	}
	err = fmt.Errorf("certificate for HTTPS boot: %w", err)
	if k.pair == nil {
		return nil, err
	}
	k.log.Error("the certificate for HTTPS boot was not read anew; the old one goes on", "error", err)
	return k.pair, nil
}

// makeBootCert makes a certificate that is its own CA, unless there is one
// that has all names.
func makeBootCert(certFile, keyFile string, names []string, now time.Time) error {
	old, err := tls.LoadX509KeyPair(certFile, keyFile)
	switch {
	case err == nil && old.Leaf != nil && covers(old.Leaf, names):
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("certificate for HTTPS boot: %w; remove both files to have them made anew", err)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return fmt.Errorf("certificate for HTTPS boot: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return fmt.Errorf("certificate for HTTPS boot: %w", err)
	}
	t := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "Turnout HTTPS boot"},
		NotBefore: now.AddDate(-1, 0, 0), NotAfter: now.AddDate(10, 0, 0), // clocks of machines are wrong
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true, IsCA: true,
	}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else if n != "" {
			t.DNSNames = append(t.DNSNames, n)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return fmt.Errorf("certificate for HTTPS boot: %w", err)
	}
	if err := renameio.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}), 0o600); err != nil {
		return fmt.Errorf("certificate for HTTPS boot: %w", err)
	}
	if err := renameio.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
		return fmt.Errorf("certificate for HTTPS boot: %w", err)
	}
	return nil
}

func covers(c *x509.Certificate, names []string) bool {
	for _, n := range names {
		if n != "" && c.VerifyHostname(n) != nil {
			return false
		}
	}
	return true
}
