package server

import (
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/tpm/credential"
	"github.com/turnout-project/turnout/internal/tpm/judge"
	"github.com/turnout-project/turnout/internal/tpm/measure"
)

// bank is the PCR bank that is judged.
const bank = "sha256"

// Trust is the TPM of a real server: the pure packages of internal/tpm, and
// whom it lets vouch for TPMs. The zero value lets nobody: a TPM is then
// trusted because an operator approved it.
type Trust struct {
	// Applications maps digests (hex, SHA-256) of programs that firmware may
	// start beside an image's own to their names.
	Applications map[string]string

	roots, intermediates *x509.CertPool // nil: EK certificates are not asked for
	now                  func() time.Time
}

// NewTrust reads the CA certificates of TPM makers from PEM texts: those that
// signed themselves are roots, the others link TPMs to a root. No text at all
// means that TPMs are pinned when approved.
func NewTrust(pems [][]byte, now func() time.Time) (*Trust, error) {
	t := &Trust{now: now}
	if len(pems) == 0 {
		return t, nil
	}
	t.roots, t.intermediates = x509.NewCertPool(), x509.NewCertPool()
	roots := 0
	for _, text := range pems {
		for {
			var p *pem.Block
			if p, text = pem.Decode(text); p == nil {
				break
			}
			c, err := x509.ParseCertificate(p.Bytes)
			if err != nil {
				return nil, fmt.Errorf("certificate of a TPM maker: %w", err)
			}
			if string(c.RawIssuer) == string(c.RawSubject) {
				t.roots.AddCert(c)
				roots++
			} else {
				t.intermediates.AddCert(c)
			}
		}
	}
	if roots == 0 {
		return nil, errors.New("certificates of TPM makers: none of them is a root, one that signed itself")
	}
	return t, nil
}

// CheckEK implements TPM. The chain that the TPM itself keeps helps to find
// the way to a root, as configured intermediates do; it makes no root.
func (t *Trust) CheckEK(ekPublic, cert, chain []byte) (hash, trust string, err error) {
	if hash, err = credential.EKHash(ekPublic); err != nil {
		return "", "", err
	}
	if t.roots == nil {
		return hash, "pinned", nil
	}
	if len(cert) == 0 {
		return "", "", errors.New("the TPM shows no EK certificate, and ek_roots asks for one")
	}
	between, err := credential.ParseChain(chain)
	if err != nil {
		return "", "", err
	}
	intermediates := t.intermediates.Clone()
	for _, c := range between {
		intermediates.AddCert(c)
	}
	if err := credential.VerifyEKCertificate(cert, t.roots, intermediates, ekPublic, t.now()); err != nil {
		return "", "", err
	}
	c, err := credential.ParseEKCertificate(cert)
	if err != nil {
		return "", "", err
	}
	return hash, "certified by " + c.Issuer.CommonName, nil
}

// AKName implements TPM.
func (t *Trust) AKName(akPublic []byte) (string, error) {
	ak, err := credential.ParseAK(akPublic)
	if err != nil {
		return "", err
	}
	return hex.EncodeToString(ak.Name), nil
}

// MakeCredential implements TPM.
func (t *Trust) MakeCredential(ekPublic, akPublic []byte) (blob, encrypted, secret []byte, err error) {
	return credential.MakeCredential(ekPublic, akPublic)
}

// Wanted implements TPM.
func (t *Trust) Wanted() (string, []int) { return bank, judge.Selection }

// allowed collects the programs that may run beside the image's own: what the
// configuration names, and the loaders of all images, since the ESP has one
// for both slots, that of the image that was installed first or last.
func (t *Trust) allowed(fleet []*oci.Image) map[string]string {
	out := map[string]string{}
	maps.Copy(out, t.Applications)
	for _, i := range fleet {
		for _, p := range i.Manifest.Measurements.Paths {
			for _, a := range p.Applications {
				if a.Name == measure.AppLoader && a.Authenticode[bank] != "" {
					out[a.Authenticode[bank]] = measure.AppLoader
				}
			}
		}
	}
	return out
}
