package doctor

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/netboot/dhcpclient"
	"github.com/turnout-project/turnout/internal/oci"
)

// certificate is valid for a time from now.
func certificate(t *testing.T, from, to time.Time) []byte {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: to}
	der, err := x509.CreateCertificate(rand.Reader, c, c, pub, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestCertificate(t *testing.T) {
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	day := 24 * time.Hour
	for name, c := range map[string]struct {
		pem  []byte
		want Level
	}{
		"years left":    {certificate(t, now.Add(-day), now.Add(900*day)), OK},
		"a month left":  {certificate(t, now.Add(-day), now.Add(30*day)), Warning},
		"expired":       {certificate(t, now.Add(-9*day), now.Add(-day)), Failure},
		"not yet valid": {certificate(t, now.Add(day), now.Add(900*day)), Failure},
		"no PEM":        {[]byte("hello"), Failure},
		"no DER":        {[]byte("-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n"), Failure},
	} {
		got := Certificate("CA", c.pem, now)
		if got.Level != c.want || got.Level != OK && got.Fix == "" {
			t.Errorf("%s: %+v; want %s", name, got, c.want)
		}
	}
}

func TestSecret(t *testing.T) {
	f := filepath.Join(t.TempDir(), "key")
	if got := Secret("key", f, 0o600); got.Level != Failure {
		t.Errorf("no file: %+v", got)
	}
	if err := os.WriteFile(f, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := Secret("key", f, 0o600); got.Level != OK {
		t.Errorf("mode 600: %+v", got)
	}
	if err := os.Chmod(f, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := Secret("key", f, 0o600); got.Level != Failure || got.Fix != "chmod 600 "+f {
		t.Errorf("mode 644: %+v", got)
	}
}

// The process that has a port is named; one's own server is no fault.
func TestPorts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	u, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	self, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range Ports([]Port{{"tcp", l.Addr().String(), "API"}, {"udp", u.LocalAddr().String(), "TFTP"}}, false) {
		if f.Level != Failure || !strings.Contains(f.Found, strings.TrimSpace(string(self))+" (pid ") {
			t.Errorf("a port that is taken: %+v; want the name of this program", f)
		}
	}
	l.Close()
	free := []Port{{"tcp", l.Addr().String(), "API"}}
	if f := Ports(free, false); f[0].Level != OK {
		t.Errorf("a free port: %+v", f)
	}
	if f := Ports(free, true); f[0].Level != Failure {
		t.Errorf("a port that the running server should have: %+v", f)
	}
	if f := inUse("port 69/udp", Port{For: "TFTP"}, "pxeserver (pid 7)"); f.Level != OK {
		t.Errorf("the server's own port: %+v", f)
	}
	if f := Ports([]Port{{"tcp", "192.0.2.1:1", "API"}}, false); f[0].Level != Failure {
		t.Errorf("an address of nobody here: %+v", f)
	}
}

func TestInterface(t *testing.T) {
	if f, name := Interface("127.0.0.1", ""); f.Level != OK || name == "" {
		t.Errorf("loopback: %+v on %q", f, name)
	}
	if f, _ := Interface("127.0.0.1", "rack0"); f.Level != Failure || !strings.Contains(f.Found, "rack0") {
		t.Errorf("another interface: %+v", f)
	}
	if f, name := Interface("192.0.2.1", ""); f.Level != Failure || name != "" {
		t.Errorf("nobody's address: %+v on %q", f, name)
	}
}

func TestOtherServers(t *testing.T) {
	lease := dhcpclient.Answer{Server: netip.MustParseAddr("10.7.0.5"), Address: netip.MustParseAddr("10.7.0.90")}
	loader := dhcpclient.Answer{Server: netip.MustParseAddr("10.7.0.6"), BootFile: "grub.efi"}
	for _, c := range []struct {
		name, mode string
		found      []dhcpclient.Answer
		want       []Level
		say        string
	}{
		{"alone", "server", nil, []Level{OK}, "none on rack0"},
		{"two that lease", "server", []dhcpclient.Answer{lease}, []Level{Failure}, "10.7.0.5"},
		{"beside another", "proxy", []dhcpclient.Answer{lease}, []Level{OK}, "10.7.0.5"},
		{"a proxy alone", "proxy", nil, []Level{Warning}, "leases no addresses"},
		{"another boots", "proxy", []dhcpclient.Answer{lease, loader}, []Level{OK, Failure}, `"grub.efi"`},
	} {
		fs := judgeServers("other", "rack0", c.mode, c.found)
		var levels []Level
		text := ""
		for _, f := range fs {
			levels = append(levels, f.Level)
			text += f.Found
		}
		if len(levels) != len(c.want) || Worst(fs) != Worst(levelsOf(c.want)) || !strings.Contains(text, c.say) {
			t.Errorf("%s: %+v", c.name, fs)
		}
	}
}

func levelsOf(ls []Level) (fs []Finding) {
	for _, l := range ls {
		fs = append(fs, Finding{Level: l})
	}
	return fs
}

func TestDisk(t *testing.T) {
	if f := Disk(t.TempDir(), 1); f.Level == Warning {
		t.Errorf("a byte needed: %+v", f)
	}
	if f := Disk(t.TempDir(), 1<<62); f.Level == OK {
		t.Errorf("4 EiB needed: %+v", f)
	}
	if f := Disk("/nowhere/at/all", 1); f.Level != Failure {
		t.Errorf("no folder: %+v", f)
	}
}

func TestImages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "images")
	if f := Images(dir); f.Level != OK {
		t.Errorf("no store yet: %+v", f)
	}
	l, err := oci.Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	if f := Images(dir); f.Level != OK || !strings.HasPrefix(f.Found, "0 images") {
		t.Errorf("an empty store: %+v", f)
	}
	if err := os.WriteFile(filepath.Join(l.Dir(), "index.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if f := Images(dir); f.Level != Failure {
		t.Errorf("a broken index: %+v", f)
	}
}
