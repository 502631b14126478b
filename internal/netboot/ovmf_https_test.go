package netboot

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// needMachineTest skips what starts virtual machines for minutes.
func needMachineTest(t *testing.T) {
	t.Helper()
	if os.Getenv("TURNOUT_MACHINE_TEST") == "" {
		t.Skip("set TURNOUT_MACHINE_TEST=1, or run `make bootside`")
	}
}

// bootCert is a certificate of the kind that pxeserver makes for firmware.
func bootCert(t *testing.T, ip net.IP) tls.Certificate {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	c := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "Turnout HTTPS boot"},
		NotBefore: now.AddDate(-1, 0, 0), NotAfter: now.AddDate(10, 0, 0), IPAddresses: []net.IP{ip},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// signatureList is EFI_SIGNATURE_LIST (UEFI 2.10 section 32.4.1) with one
// certificate, as firmware keeps its CAs.
func signatureList(der []byte) []byte {
	guid := []byte{0xa1, 0x59, 0xc0, 0xa5, 0xe4, 0x94, 0xa7, 0x4a, 0x87, 0xb5, 0xab, 0x15, 0x5c, 0x2b, 0xf0, 0x72} // EFI_CERT_X509_GUID
	b := append([]byte{}, guid...)
	for _, n := range []int{28 + 16 + len(der), 0, 16 + len(der)} {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	return append(append(b, make([]byte, 16)...), der...)
}

// OVMF that knows the certificate boots by the https URL that DHCP names.
func TestOVMFBootsByHTTPS(t *testing.T) {
	needMachineTest(t)
	const mac, text = "52:54:00:77:00:12", "NETBOOT-HTTPS-OK"
	rack(t, "tap0")
	cfg := rackConfig()
	cfg.OfferHTTPS, cfg.Ports.HTTP = true, -1
	s := &Server{Config: cfg, Policy: PolicyFunc(func(_ context.Context, c Client) (Answer, error) {
		if c.Kind != KindUEFIHTTP {
			return Answer{Kind: AnswerNone, Reason: "not under test"}, nil
		}
		return installer(efiProgram("amd64", text, 4<<20)), nil
	})}
	cert := bootCert(t, net.IPv4(10, 77, 0, 1))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, CipherSuites: []uint16{
		tls.TLS_RSA_WITH_AES_256_GCM_SHA384, tls.TLS_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_RSA_WITH_AES_256_CBC_SHA, tls.TLS_RSA_WITH_AES_128_CBC_SHA,
		tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	}}
	rec := start(t, s)
	db := filepath.Join(t.TempDir(), "cacerts")
	if err := os.WriteFile(db, signatureList(cert.Certificate[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	out := ovmf.boot(t, "tap0", mac, 6*time.Minute,
		append([]string{"-fw_cfg", "name=etc/edk2/https/cacerts,file=" + db, "-device", "virtio-rng-pci"}, onlyHTTP...)...)
	if !strings.Contains(out, text) || rec.count("http.sent") != 1 {
		t.Errorf("the program did not run; console:\n%s\nevents:\n%s", out, rec)
	}
}
