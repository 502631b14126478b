package device

import (
	"bytes"
	"crypto"
	_ "crypto/sha1" // a bank that must be extended while it is active
	"crypto/sha256"
	_ "crypto/sha512"
	"errors"
	"fmt"
	"slices"

	"github.com/google/go-tpm/tpm2"
)

// hashes are the banks that this package can extend itself.
var hashes = []struct {
	name string
	alg  tpm2.TPMAlgID
	hash crypto.Hash
}{
	{"sha1", tpm2.TPMAlgSHA1, crypto.SHA1},
	{"sha256", tpm2.TPMAlgSHA256, crypto.SHA256},
	{"sha384", tpm2.TPMAlgSHA384, crypto.SHA384},
	{"sha512", tpm2.TPMAlgSHA512, crypto.SHA512},
}

// Banks returns the active PCR banks in the TPM's order. A bank of an
// algorithm without a common name is called "algorithm 0x0012".
func (d *Device) Banks() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	algs, err := d.banks()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, a := range algs {
		name := fmt.Sprintf("algorithm %#04x", uint16(a))
		for _, h := range hashes {
			if h.alg == a {
				name = h.name
			}
		}
		out = append(out, name)
	}
	return out, nil
}

// banks returns the algorithms of the banks of which any PCR is allocated.
// TPMs list others with an empty bitmap.
func (d *Device) banks() ([]tpm2.TPMAlgID, error) {
	rsp, err := tpm2.GetCapability{Capability: tpm2.TPMCapPCRs, PropertyCount: 1}.Execute(d.t)
	if err != nil {
		return nil, fmt.Errorf("asking the TPM for its PCR banks: %w", explain(err))
	}
	list, err := rsp.CapabilityData.Data.AssignedPCR()
	if err != nil {
		return nil, fmt.Errorf("asking the TPM for its PCR banks: %w", err)
	}
	var out []tpm2.TPMAlgID
	for _, s := range list.PCRSelections {
		if len(bytes.Trim(s.PCRSelect, "\x00")) > 0 {
			out = append(out, s.Hash)
		}
	}
	return out, nil
}

// active returns the algorithm of an active bank.
func (d *Device) active(bank string) (tpm2.TPMAlgID, error) {
	algs, err := d.banks()
	if err != nil {
		return 0, err
	}
	for _, h := range hashes {
		if h.name == bank && slices.Contains(algs, h.alg) {
			return h.alg, nil
		}
	}
	return 0, fmt.Errorf("the TPM has no active %s bank (active: %v); activate it in the firmware setup", bank, algs)
}

// Extend measures data into one PCR in every active bank. Data may have up
// to 1024 bytes.
func (d *Device) Extend(pcr int, data []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if pcr < 0 || pcr > 23 || len(data) == 0 || len(data) > 1024 {
		return fmt.Errorf("extending PCR %d with %d bytes: not possible", pcr, len(data))
	}
	algs, err := d.banks()
	if err != nil {
		return err
	}
	auth := tpm2.AuthHandle{Handle: tpm2.TPMHandle(pcr), Auth: tpm2.PasswordAuth(nil)}
	var digests []tpm2.TPMTHA
	for _, h := range hashes {
		if slices.Contains(algs, h.alg) {
			w := h.hash.New()
			w.Write(data)
			digests = append(digests, tpm2.TPMTHA{HashAlg: h.alg, Digest: w.Sum(nil)})
		}
	}
	if len(digests) == len(algs) {
		_, err = tpm2.PCRExtend{PCRHandle: auth, Digests: tpm2.TPMLDigestValues{Digests: digests}}.Execute(d.t)
	} else { // a bank that Go cannot hash for: let the TPM do it
		_, err = tpm2.PCREvent{PCRHandle: auth, EventData: tpm2.TPM2BEvent{Buffer: data}}.Execute(d.t)
	}
	if err != nil {
		return fmt.Errorf("extending PCR %d: %w", pcr, explain(err))
	}
	return nil
}

// ReadPCRs reads PCRs of one active bank, all at one moment.
func (d *Device) ReadPCRs(bank string, pcrs []int) (map[int][]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	alg, err := d.active(bank)
	if err != nil {
		return nil, err
	}
	return d.readPCRs(alg, pcrs)
}

// errMoved says that a PCR was extended between two commands.
var errMoved = errors.New("PCRs were extended while they were read; try again")

func (d *Device) readPCRs(alg tpm2.TPMAlgID, pcrs []int) (map[int][]byte, error) {
	for range 3 {
		out, err := d.readPCRsOnce(alg, pcrs)
		if !errors.Is(err, errMoved) {
			return out, err
		}
	}
	return nil, errMoved
}

// readPCRsOnce asks until every PCR was given: a TPM gives at most eight per
// command. The update counter shows whether they belong together.
func (d *Device) readPCRsOnce(alg tpm2.TPMAlgID, pcrs []int) (map[int][]byte, error) {
	out := map[int][]byte{}
	var counter uint32
	for {
		var left []int
		for _, p := range pcrs {
			if out[p] == nil {
				left = append(left, p)
			}
		}
		if len(left) == 0 {
			return out, nil
		}
		sel, err := selection(alg, left)
		if err != nil {
			return nil, err
		}
		rsp, err := tpm2.PCRRead{PCRSelectionIn: sel}.Execute(d.t)
		if err != nil {
			return nil, fmt.Errorf("reading PCRs: %w", explain(err))
		}
		if len(out) > 0 && rsp.PCRUpdateCounter != counter {
			return nil, errMoved
		}
		counter = rsp.PCRUpdateCounter
		given := selected(rsp.PCRSelectionOut, alg)
		if len(given) == 0 || len(given) != len(rsp.PCRValues.Digests) {
			return nil, fmt.Errorf("reading PCRs %v: the TPM gave %d of them and %d values", left, len(given), len(rsp.PCRValues.Digests))
		}
		for i, p := range given {
			out[p] = rsp.PCRValues.Digests[i].Buffer
		}
	}
}

// selection makes a TPML_PCR_SELECTION of one bank.
func selection(alg tpm2.TPMAlgID, pcrs []int) (tpm2.TPMLPCRSelection, error) {
	var list []uint
	for _, p := range pcrs {
		if p < 0 || p > 23 {
			return tpm2.TPMLPCRSelection{}, fmt.Errorf("there is no PCR %d", p)
		}
		list = append(list, uint(p))
	}
	return tpm2.TPMLPCRSelection{PCRSelections: []tpm2.TPMSPCRSelection{{Hash: alg, PCRSelect: tpm2.PCClientCompatible.PCRs(list...)}}}, nil
}

// selected returns the PCRs of one bank in a TPML_PCR_SELECTION, ascending.
func selected(l tpm2.TPMLPCRSelection, alg tpm2.TPMAlgID) []int {
	var out []int
	for _, s := range l.PCRSelections {
		if s.Hash != alg {
			continue
		}
		for i, b := range s.PCRSelect {
			for bit := range 8 {
				if b>>bit&1 == 1 {
					out = append(out, i*8+bit)
				}
			}
		}
	}
	return out
}

// Evidence is a quote with the values it is over.
type Evidence struct {
	Quote     []byte         // TPMS_ATTEST
	Signature []byte         // TPMT_SIGNATURE
	PCRs      map[int][]byte // of the bank asked for, exactly those asked for
}

// Quote has the TPM sign the values of PCRs in one bank together with a nonce
// of up to 32 bytes.
func (d *Device) Quote(nonce []byte, bank string, pcrs []int) (Evidence, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(nonce) == 0 || len(nonce) > 32 || len(pcrs) == 0 {
		return Evidence{}, fmt.Errorf("quote over %d PCRs with a nonce of %d bytes: want PCRs and 1 to 32 bytes", len(pcrs), len(nonce))
	}
	alg, err := d.active(bank)
	if err != nil {
		return Evidence{}, err
	}
	for range 3 {
		e, err := d.quoteOnce(nonce, alg, pcrs)
		if !errors.Is(err, errMoved) {
			return e, err
		}
	}
	return Evidence{}, errMoved
}

func (d *Device) quoteOnce(nonce []byte, alg tpm2.TPMAlgID, pcrs []int) (Evidence, error) {
	values, err := d.readPCRs(alg, pcrs)
	if err != nil {
		return Evidence{}, err
	}
	sel, err := selection(alg, pcrs)
	if err != nil {
		return Evidence{}, err
	}
	var e Evidence
	err = d.withKey(akTemplate(), func(ak *tpm2.CreatePrimaryResponse) error {
		rsp, err := tpm2.Quote{
			SignHandle:     tpm2.AuthHandle{Handle: ak.ObjectHandle, Name: ak.Name, Auth: tpm2.PasswordAuth(nil)},
			QualifyingData: tpm2.TPM2BData{Buffer: nonce},
			InScheme:       tpm2.TPMTSigScheme{Scheme: tpm2.TPMAlgNull},
			PCRSelect:      sel,
		}.Execute(d.t)
		if err != nil {
			return explain(err)
		}
		if err := sameValues(rsp.Quoted, values); err != nil {
			return err
		}
		e = Evidence{Quote: rsp.Quoted.Bytes(), Signature: tpm2.Marshal(rsp.Signature), PCRs: values}
		return nil
	})
	if err != nil && !errors.Is(err, errMoved) {
		return Evidence{}, fmt.Errorf("quoting PCRs: %w", err)
	}
	return e, err
}

// sameValues reports errMoved if a quote is over other values than those read
// before it.
func sameValues(quoted tpm2.TPM2BAttest, values map[int][]byte) error {
	att, err := quoted.Contents()
	if err != nil {
		return err
	}
	q, err := att.Attested.Quote()
	if err != nil {
		return err
	}
	h := sha256.New()
	for p := range 24 {
		h.Write(values[p])
	}
	if !bytes.Equal(h.Sum(nil), q.PCRDigest.Buffer) {
		return errMoved
	}
	return nil
}
