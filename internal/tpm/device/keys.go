package device

import (
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/google/go-tpm/tpm2"
	gotpm "github.com/google/go-tpm/tpm2/transport"

	"github.com/turnout-project/turnout/internal/tpm/credential"
)

// ekKind is a kind of endorsement key that has a standard template (TCG EK
// Credential Profile 2.5, appendix B, templates L-1 and L-2).
type ekKind struct {
	name     string
	certNV   uint32 // NV index of its certificate
	template tpm2.TPMTPublic
}

// ekKinds in the order of preference: elliptic-curve keys are made at once.
var ekKinds = []ekKind{
	{"ECC P-256", 0x01c0000a, tpm2.ECCEKTemplate},
	{"RSA 2048", 0x01c00002, tpm2.RSAEKTemplate},
}

// EK is an endorsement key.
type EK struct {
	Kind        string // "ECC P-256" or "RSA 2048"
	Public      []byte // TPM2B_PUBLIC
	Certificate []byte // DER, perhaps with padding after it; nil if the TPM holds none for this key
	Chain       []byte // certificates of authorities that the TPM keeps for it, DER one after the other; nil for none
}

// EK returns the endorsement key that has a certificate, else the first kind
// that the TPM can make. It is the same at every boot.
func (d *Device) EK() (EK, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ek, _, err := d.chooseEK()
	return ek, err
}

func (d *Device) chooseEK() (EK, ekKind, error) {
	for _, k := range ekKinds {
		cert, err := d.readNV(k.certNV)
		if err != nil {
			continue // no such index is the usual reason
		}
		pub, err := d.publicOf(k.template)
		if err == nil && credential.SameKey(cert, pub) {
			return EK{Kind: k.name, Public: pub, Certificate: cert, Chain: d.chain()}, k, nil
		}
	}
	var first error
	for _, k := range ekKinds {
		pub, err := d.publicOf(k.template)
		if err == nil {
			return EK{Kind: k.name, Public: pub}, k, nil
		}
		if first == nil {
			first = err
		}
	}
	return EK{}, ekKind{}, fmt.Errorf("making the endorsement key: %w", first)
}

// NV indices of certificates between an EK and its maker's root (TCG EK
// Credential Profile 2.5, section 2.2.1.5.2). TPMs that sit in a processor keep
// them there, since they are made on the die and published nowhere.
const chainFirst, chainLast = 0x01c00100, 0x01c001ff

// chain reads these indices, one after the other. A TPM that has none, or
// cannot tell, has no chain: whether one is needed is the server's to say.
func (d *Device) chain() (out []byte) {
	rsp, err := tpm2.GetCapability{Capability: tpm2.TPMCapHandles, Property: chainFirst, PropertyCount: 32}.Execute(d.t)
	if err != nil {
		return nil
	}
	found, err := rsp.CapabilityData.Data.Handles()
	if err != nil {
		return nil
	}
	for _, h := range found.Handle {
		if h < chainFirst || h > chainLast {
			continue
		}
		b, err := d.readNV(uint32(h))
		if err != nil || len(out)+len(b) > credential.MaxChain {
			return nil
		}
		out = append(out, b...)
	}
	return out
}

// akTemplate is that of the attestation key. Unique makes it another key
// than any other program's with the same attributes.
func akTemplate() tpm2.TPMTPublic {
	label := sha256.Sum256([]byte("turnout attestation key v1"))
	return tpm2.TPMTPublic{
		Type:    tpm2.TPMAlgECC,
		NameAlg: tpm2.TPMAlgSHA256,
		ObjectAttributes: tpm2.TPMAObject{
			FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true,
			UserWithAuth: true, NoDA: true, Restricted: true, SignEncrypt: true,
		},
		Parameters: tpm2.NewTPMUPublicParms(tpm2.TPMAlgECC, &tpm2.TPMSECCParms{
			Scheme: tpm2.TPMTECCScheme{
				Scheme:  tpm2.TPMAlgECDSA,
				Details: tpm2.NewTPMUAsymScheme(tpm2.TPMAlgECDSA, &tpm2.TPMSSigSchemeECDSA{HashAlg: tpm2.TPMAlgSHA256}),
			},
			CurveID: tpm2.TPMECCNistP256,
		}),
		Unique: tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{
			X: tpm2.TPM2BECCParameter{Buffer: label[:]},
			Y: tpm2.TPM2BECCParameter{Buffer: make([]byte, 32)},
		}),
	}
}

// AK returns the public area (TPM2B_PUBLIC) of the attestation key: a
// restricted ECDSA P-256 key. It is the same at every boot until the TPM is
// cleared by its vendor's means.
func (d *Device) AK() ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	pub, err := d.publicOf(akTemplate())
	if err != nil {
		return nil, fmt.Errorf("making the attestation key: %w", err)
	}
	return pub, nil
}

// Activate recovers the secret of a challenge that was made for this TPM's EK
// and AK (contents of TPM2B_ID_OBJECT and TPM2B_ENCRYPTED_SECRET).
func (d *Device) Activate(blob, encSecret []byte) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, kind, err := d.chooseEK()
	if err != nil {
		return nil, err
	}
	var secret []byte
	err = d.withKey(akTemplate(), func(ak *tpm2.CreatePrimaryResponse) error {
		return d.withKey(kind.template, func(ek *tpm2.CreatePrimaryResponse) error {
			rsp, err := tpm2.ActivateCredential{
				ActivateHandle: tpm2.NamedHandle{Handle: ak.ObjectHandle, Name: ak.Name},
				KeyHandle: tpm2.AuthHandle{
					Handle: ek.ObjectHandle, Name: ek.Name,
					Auth: tpm2.Policy(tpm2.TPMAlgSHA256, 16, d.endorsementPolicy),
				},
				CredentialBlob: tpm2.TPM2BIDObject{Buffer: blob},
				Secret:         tpm2.TPM2BEncryptedSecret{Buffer: encSecret},
			}.Execute(d.t)
			if err != nil {
				return err
			}
			secret = rsp.CertInfo.Buffer
			return nil
		})
	})
	if errors.Is(err, tpm2.TPMRCIntegrity) || errors.Is(err, tpm2.TPMRCValue) || errors.Is(err, tpm2.TPMRCSize) || errors.Is(err, tpm2.TPMRCInsufficient) {
		return nil, fmt.Errorf("the challenge was not made for this TPM and this attestation key, or was damaged: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("activating a credential: %w", explain(err))
	}
	return secret, nil
}

// endorsementPolicy satisfies the policy of the standard EK templates:
// PolicySecret of the endorsement hierarchy, whose password is empty.
func (d *Device) endorsementPolicy(_ gotpm.TPM, session tpm2.TPMISHPolicy, nonce tpm2.TPM2BNonce) error {
	_, err := tpm2.PolicySecret{
		AuthHandle:    tpm2.AuthHandle{Handle: tpm2.TPMRHEndorsement, Auth: tpm2.PasswordAuth(nil)},
		PolicySession: session,
		NonceTPM:      nonce,
	}.Execute(d.t)
	return err
}

// withKey makes a primary key in the endorsement hierarchy, calls f with it
// and flushes it, whatever happens.
func (d *Device) withKey(template tpm2.TPMTPublic, f func(*tpm2.CreatePrimaryResponse) error) (err error) {
	rsp, err := tpm2.CreatePrimary{
		PrimaryHandle: tpm2.AuthHandle{Handle: tpm2.TPMRHEndorsement, Auth: tpm2.PasswordAuth(nil)},
		InPublic:      tpm2.New2B(template),
	}.Execute(d.t)
	if err != nil {
		return explain(err)
	}
	defer func() {
		if _, ferr := (tpm2.FlushContext{FlushHandle: rsp.ObjectHandle}).Execute(d.t); ferr != nil && err == nil {
			err = fmt.Errorf("flushing a key: %w", ferr)
		}
	}()
	return f(rsp)
}

func (d *Device) publicOf(template tpm2.TPMTPublic) (pub []byte, err error) {
	err = d.withKey(template, func(rsp *tpm2.CreatePrimaryResponse) error {
		pub = tpm2.Marshal(rsp.OutPublic)
		return nil
	})
	return pub, err
}

// maxNV is the largest EK certificate that is read.
const maxNV = 8192

// readNV reads a whole NV index with its own, empty password, else with that
// of the owner.
func (d *Device) readNV(index uint32) ([]byte, error) {
	info, err := tpm2.NVReadPublic{NVIndex: tpm2.TPMHandle(index)}.Execute(d.t)
	if err != nil {
		return nil, err
	}
	pub, err := info.NVPublic.Contents()
	if err != nil {
		return nil, err
	}
	if pub.DataSize == 0 || pub.DataSize > maxNV {
		return nil, fmt.Errorf("NV index %#x has %d bytes", index, pub.DataSize)
	}
	self := tpm2.NamedHandle{Handle: tpm2.TPMHandle(index), Name: info.NVName}
	b, err := d.readNVAs(tpm2.AuthHandle{Handle: self.Handle, Name: self.Name, Auth: tpm2.PasswordAuth(nil)}, self, pub.DataSize)
	if err == nil {
		return b, nil
	}
	return d.readNVAs(tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: tpm2.PasswordAuth(nil)}, self, pub.DataSize)
}

func (d *Device) readNVAs(auth tpm2.AuthHandle, index tpm2.NamedHandle, size uint16) ([]byte, error) {
	const chunk = 512 // every PC Client TPM takes this much at once
	var out []byte
	for len(out) < int(size) {
		rsp, err := tpm2.NVRead{
			AuthHandle: auth, NVIndex: index,
			Offset: uint16(len(out)), Size: min(chunk, size-uint16(len(out))),
		}.Execute(d.t)
		if err != nil {
			return nil, err
		}
		if len(rsp.Data.Buffer) == 0 {
			return nil, fmt.Errorf("NV index %#x gave no data at offset %d", uint32(index.Handle), len(out))
		}
		out = append(out, rsp.Data.Buffer...)
	}
	return out, nil
}
