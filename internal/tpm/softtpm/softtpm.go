// Package softtpm is an attestation key in memory that signs quotes over
// whatever an event log leads to, and an image that fits the log. It stands
// for a TPM where thousands are needed at once, in benchmarks; it proves
// nothing about any machine, and no program of the product may import it.
package softtpm

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/google/go-tpm/tpm2"

	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/tpm/eventlog"
	"github.com/turnout-project/turnout/internal/tpm/judge"
	"github.com/turnout-project/turnout/internal/tpm/measure"
)

// TPM is one key, and the counters that a TPM signs with each quote.
type TPM struct {
	Reset uint32 // boots so far
	Clock uint64 // milliseconds; Quote moves it on

	key *ecdsa.PrivateKey
	ak  []byte
}

// New makes a TPM with a key of its own.
func New() (*TPM, error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	raw, err := k.PublicKey.Bytes()
	if err != nil {
		return nil, err
	}
	pub := tpm2.TPMTPublic{
		Type: tpm2.TPMAlgECC, NameAlg: tpm2.TPMAlgSHA256,
		ObjectAttributes: tpm2.TPMAObject{FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true, UserWithAuth: true, Restricted: true, SignEncrypt: true},
		Parameters: tpm2.NewTPMUPublicParms(tpm2.TPMAlgECC, &tpm2.TPMSECCParms{
			Scheme:  tpm2.TPMTECCScheme{Scheme: tpm2.TPMAlgECDSA, Details: tpm2.NewTPMUAsymScheme(tpm2.TPMAlgECDSA, &tpm2.TPMSSigSchemeECDSA{HashAlg: tpm2.TPMAlgSHA256})},
			CurveID: tpm2.TPMECCNistP256,
		}),
		Unique: tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{X: tpm2.TPM2BECCParameter{Buffer: raw[1:33]}, Y: tpm2.TPM2BECCParameter{Buffer: raw[33:]}}),
	}
	return &TPM{Reset: 5, Clock: 1000, key: k, ak: tpm2.Marshal(tpm2.New2B(pub))}, nil
}

// AK returns the public area of the key (TPM2B_PUBLIC).
func (t *TPM) AK() []byte { return t.ak }

// Quote signs SHA-256 PCRs: a TPMS_ATTEST and a TPMT_SIGNATURE (TPM 2.0 Part
// 2, sections 10.12.12 and 11.3.4). The values are those of judge.Selection.
func (t *TPM) Quote(nonce []byte, pcrs map[int][]byte) (attested, sig []byte, err error) {
	be := binary.BigEndian
	sized := func(b []byte) []byte { return append(be.AppendUint16(nil, uint16(len(b))), b...) }
	h, bits := sha256.New(), make([]byte, 3)
	for _, p := range judge.Selection {
		h.Write(pcrs[p])
		bits[p/8] |= 1 << (p % 8)
	}
	t.Clock++
	b := be.AppendUint16(be.AppendUint32(nil, 0xff544347), 0x8018)
	b = append(b, sized(append([]byte{0, 0x0b}, make([]byte, 32)...))...) // qualified signer: a name
	b = append(b, sized(nonce)...)
	b = be.AppendUint64(b, t.Clock)
	b = be.AppendUint32(be.AppendUint32(b, t.Reset), 0)
	b = be.AppendUint64(append(b, 1), 1)
	b = append(be.AppendUint16(be.AppendUint32(b, 1), 0x000b), 3)
	b = append(b, bits...)
	b = append(b, sized(h.Sum(nil))...)
	sum := sha256.Sum256(b)
	r, s, err := ecdsa.Sign(rand.Reader, t.key, sum[:])
	if err != nil {
		return nil, nil, err
	}
	sig = be.AppendUint16(be.AppendUint16(nil, 0x0018), 0x000b)
	sig = append(sig, sized(r.Bytes())...)
	return b, append(sig, sized(s.Bytes())...), nil
}

// Boot returns what a TPM holds after the boot that a log tells of and the
// words of a running system, and the measurements of an image that boots so.
func Boot(raw []byte) (map[int][]byte, manifest.Measurements, error) {
	var m manifest.Measurements
	log, err := eventlog.Parse(raw)
	if err != nil {
		return nil, m, err
	}
	if !log.Has("sha256") {
		return nil, m, fmt.Errorf("the log has no SHA-256 bank")
	}
	pcrs := log.Replay("sha256", judge.Selection...)
	for _, p := range judge.Selection {
		if pcrs[p] == nil {
			pcrs[p] = make([]byte, sha256.Size)
		}
	}
	running := measure.Phases[len(measure.Phases)-1]
	for _, w := range measure.Words(running) {
		pcrs[11] = eventlog.Extend("sha256", pcrs[11], eventlog.Hash("sha256", []byte(w)))
	}
	path := manifest.BootPath{Name: measure.PathDisk}
	for _, e := range log.Events {
		if e.PCR == 4 && e.Type == eventlog.EFIBootServicesApp {
			path.Applications = append(path.Applications, manifest.Application{
				Name: fmt.Sprint("program ", len(path.Applications)), Authenticode: manifest.Digests{"sha256": hex.EncodeToString(e.Digest("sha256"))}})
		}
	}
	m.Paths, m.Zero = []manifest.BootPath{path}, []int{12, 13}
	m.PCR11 = []manifest.PhaseValue{{Phase: running, PCR: manifest.Digests{"sha256": hex.EncodeToString(pcrs[11])}}}
	return pcrs, m, nil
}
