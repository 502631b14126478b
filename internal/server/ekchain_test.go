package server_test

import (
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/server"
	"github.com/turnout-project/turnout/internal/tpm/device"
	"github.com/turnout-project/turnout/internal/tpm/swtpm"
)

// The chain that a TPM keeps leads to a root that is configured, and to no
// other: makers of TPMs in processors publish their intermediates nowhere.
func TestChainOfTheTPM(t *testing.T) {
	s := swtpm.Provision(t, "sha256")
	d, err := device.OpenPath(ctx, s.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ek, err := d.EK()
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) (text, der []byte) {
		b, err := os.ReadFile(filepath.Join(s.CA, name))
		if err != nil {
			t.Fatal(err)
		}
		p, _ := pem.Decode(b)
		return b, p.Bytes
	}
	rootPEM, root := read("swtpm-localca-rootca-cert.pem")
	_, link := read("issuercert.pem")
	_, strangerPEM, _, err := server.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		roots, chain []byte
		want         string // of the error, "" for accepted
	}{
		"chain of the TPM":          {rootPEM, link, ""},
		"with padding":              {rootPEM, append(append([]byte(nil), link...), 0xff, 0xff), ""},
		"no chain":                  {rootPEM, nil, "chain"},
		"damaged chain":             {rootPEM, []byte{0x30, 0x80}, "not DER"},
		"root that the TPM brought": {strangerPEM, append(append([]byte(nil), link...), root...), "chain"},
	} {
		trust, err := server.NewTrust([][]byte{c.roots}, time.Now)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // nothing is remembered for the next TPM
			_, by, err := trust.CheckEK(ek.Public, ek.Certificate, c.chain)
			switch {
			case c.want == "" && (err != nil || !strings.HasPrefix(by, "certified by ")):
				t.Errorf("%s: %q, %v; want it accepted", name, by, err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%s: %q, %v; want an error with %q", name, by, err, c.want)
			}
		}
		if c.want == "" {
			if _, _, err := trust.CheckEK(ek.Public, ek.Certificate, nil); err == nil {
				t.Errorf("%s: the chain of one TPM was remembered for others", name)
			}
		}
	}
}
