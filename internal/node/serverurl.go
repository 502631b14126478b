package node

import (
	"context"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"

	"github.com/turnout-project/turnout/internal/abslot/espdir"
	"github.com/turnout-project/turnout/internal/node/slots"
)

// leaseDir is where systemd-networkd keeps its DHCP leases.
const leaseDir = "/run/systemd/netif/leases"

// servers returns the addresses a server may have, the most trusted way of
// knowing first: what the image says, what DHCP says, what a server said of
// itself and its peers, what the installer left on the ESP. Whoever answers
// there must still prove itself by certificate.
func servers(fromTrust, leases, esp string) []string {
	var out []string
	add := func(url string) {
		url = strings.TrimSpace(url)
		for _, have := range out {
			if have == url {
				return
			}
		}
		if url != "" {
			out = append(out, url)
		}
	}
	add(fromTrust)
	files, _ := filepath.Glob(filepath.Join(leases, "*"))
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil {
			add(leaseServer(string(b)))
		}
	}
	for _, f := range []string{slots.FleetFile, slots.ServerFile} {
		if b, err := os.ReadFile(filepath.Join(esp, filepath.FromSlash(f))); err == nil {
			for line := range strings.Lines(string(b)) {
				add(line)
			}
		}
	}
	return out
}

// leaseServer returns DHCP option 224 of a networkd lease, which keeps
// private options as "OPTION_224=<hex>".
func leaseServer(lease string) string {
	for line := range strings.Lines(lease) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "OPTION_224="); ok {
			if b, err := hex.DecodeString(v); err == nil {
				return strings.TrimRight(string(b), "\x00")
			}
		}
	}
	return ""
}

// Servers returns the addresses on this machine, see servers.
func Servers(fromTrust string) []string { return servers(fromTrust, leaseDir, slots.ESPMount) }

// KeepServers writes down the servers of the fleet for the next boot, of
// either slot. What is there already is not written again.
func KeepServers(ctx context.Context, urls []string) error {
	return keepServers(ctx, slots.ESPMount, urls)
}

func keepServers(ctx context.Context, mount string, urls []string) error {
	text := strings.Join(urls, "\n") + "\n"
	if b, err := os.ReadFile(filepath.Join(mount, filepath.FromSlash(slots.FleetFile))); err == nil && string(b) == text {
		return nil
	}
	esp, err := espdir.Open(mount)
	if err != nil {
		return err
	}
	return esp.Put(ctx, slots.FleetFile, strings.NewReader(text), int64(len(text)))
}
