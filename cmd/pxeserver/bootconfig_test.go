package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/config"
	"github.com/turnout-project/turnout/internal/netboot"
)

// Everything the file says of networks, relays, profiles and limits reaches
// the boot services, and what they find wrong stops the start.
func TestBootConfig(t *testing.T) {
	const text = `
address: 10.77.0.1
dhcp:
  subnet: 10.77.0.0/24
  reservations: {"52-54-00-12-34-56": 10.77.0.7}
  subnets: [{subnet: 10.78.0.0/24, router: 10.78.0.254, server: 10.77.0.2, mtu: 9000, lease: 2h, ntp: [10.77.0.3]}]
  relays: [10.78.0.0/24]
  profiles: [{class: "PXEClient:Arch:00011", cpu: arm64, profile: header}]
listen: {https_boot: 8555}
boot: {offer_https: true, url: "http://cache:80", block_size: 1024, window_size: 4}
boot_limits: {rack_rate: 500000, connection_rate: 100000, total_rate: 900000, downloads: 7, rack_downloads: 3, transfers: 9}
`
	c, err := config.Parse("/etc/x.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	n, err := bootConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	s := n.Subnets[1]
	if len(n.Subnets) != 2 || n.Subnets[0].Reservations[0] != (netboot.Reservation{MAC: "52:54:00:12:34:56", IP: netip.MustParseAddr("10.77.0.7")}) ||
		s.Router.String() != "10.78.0.254" || s.ServerIP.String() != "10.77.0.2" || s.MTU != 9000 || s.LeaseTime != 2*time.Hour || len(s.NTP) != 1 {
		t.Errorf("subnets %+v", n.Subnets)
	}
	want := netboot.Limits{Transfers: 9, Downloads: 7, RackDownloads: 3, Pace: 100000, RackPace: 500000, TotalPace: 900000}
	if n.Limits != want || len(n.Relays) != 1 || n.Profiles[0].Profile != netboot.ProfileHeader || n.Ports.HTTPS != 8555 ||
		!n.OfferHTTPS || n.BootURL != "http://cache:80" || n.BlockSize != 1024 || n.WindowSize != 4 {
		t.Errorf("%+v", n)
	}
	for from, to := range map[string]string{"10.78.0.0/24, r": "10.77.0.0/16, r", `"52-54-00-12-34-56"`: `"no MAC"`} {
		c, err := config.Parse("/etc/x.yaml", []byte(strings.Replace(text, from, to, 1)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bootConfig(c); err == nil {
			t.Errorf("%s: no error", to)
		}
	}
}

// Firmware that knows RSA and no forward secrecy gets a file over HTTPS; the
// certificate stays over restarts, and is made anew for another address.
func TestHTTPSBoot(t *testing.T) {
	c := config.Default()
	c.Address, c.DataDir = "127.0.0.1", t.TempDir()
	log := slog.New(slog.DiscardHandler)
	secure, err := bootTLS(&c, log)
	if err != nil {
		t.Fatal(err)
	}
	certFile := filepath.Join(c.DataDir, "boot-https.pem")
	ca, err := os.ReadFile(certFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	want := bytes.Repeat([]byte("uki"), 1<<20)
	cfg := netboot.DefaultConfig()
	cfg.Mode, cfg.Ports, cfg.Listen, cfg.OfferHTTPS = netboot.ModeOff, netboot.Ports{TFTP: -1}, netip.MustParseAddr("127.0.0.1"), true
	s := &netboot.Server{Config: cfg, TLS: secure, Policy: netboot.PolicyFunc(func(context.Context, netboot.Client) (netboot.Answer, error) {
		return netboot.Answer{Kind: netboot.AnswerInstaller, File: "b/0123456789ab/installer.efi", Size: int64(len(want)),
			Open: func() (io.ReadSeekCloser, error) {
				return struct {
					io.ReadSeeker
					io.Closer
				}{bytes.NewReader(want), io.NopCloser(nil)}, nil
			}}, nil
	})}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	select {
	case <-s.Ready():
	case err := <-done:
		t.Fatal(err)
	}
	defer func() { cancel(); <-done }()
	addr := netip.AddrPortFrom(cfg.Listen, uint16(s.Addrs().HTTPS)).String()
	for _, suites := range [][]uint16{{tls.TLS_RSA_WITH_AES_256_CBC_SHA}, {tls.TLS_RSA_WITH_AES_128_GCM_SHA256}, {tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384}} {
		conn, err := tls.Dial("tcp4", addr, &tls.Config{RootCAs: roots, CipherSuites: suites, MaxVersion: tls.VersionTLS12})
		if err != nil {
			t.Fatalf("%s: %v", tls.CipherSuiteName(suites[0]), err)
		}
		_, _ = io.WriteString(conn, "GET //b/0123456789ab/installer.efi HTTP/1.1\r\nHost: x\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		conn.Close()
		if err != nil || resp.StatusCode != 200 || !bytes.Equal(got, want) {
			t.Errorf("%s: %s, %d bytes, %v", tls.CipherSuiteName(suites[0]), resp.Status, len(got), err)
		}
	}
	if _, err := tls.Dial("tcp4", addr, &tls.Config{RootCAs: x509.NewCertPool()}); err == nil {
		t.Error("a client that knows no CA trusts the server")
	}
	for address, same := range map[string]bool{"127.0.0.1": true, "10.77.0.1": false} {
		c.Address = address
		if _, err := bootTLS(&c, log); err != nil {
			t.Fatal(err)
		}
		if now, _ := os.ReadFile(certFile); bytes.Equal(now, ca) != same {
			t.Errorf("address %s: the certificate is the same: %v; want %v", address, !same, same)
		}
	}
}

func TestHTTPSCertificateFaults(t *testing.T) {
	c := config.Default()
	c.Address, c.DataDir, c.Boot.Cert, c.Boot.Key = "127.0.0.1", t.TempDir(), "/nonexistent.pem", "/nonexistent.key"
	if _, err := bootTLS(&c, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "certificate for HTTPS boot") {
		t.Errorf("%v", err)
	}
}
