package credential

import (
	"crypto/rand"
	"fmt"

	"github.com/google/go-tpm/tpm2"
)

// SecretSize is the number of bytes of the secret in a challenge.
const SecretSize = 32

// MakeCredential makes a challenge for a TPM: only one that holds both the
// endorsement key and the very attestation key can recover the secret, with
// TPM2_ActivateCredential. Both keys are given as TPM2B_PUBLIC and are checked
// first. Blob and encSecret are the contents of TPM2B_ID_OBJECT and
// TPM2B_ENCRYPTED_SECRET; the secret stays here (compare in constant time).
func MakeCredential(ekPub, akPub []byte) (blob, encSecret, secret []byte, err error) {
	ek, err := parseEK(ekPub)
	if err != nil {
		return nil, nil, nil, err
	}
	if err := strong(ek); err != nil {
		return nil, nil, nil, err
	}
	ak, err := ParseAK(akPub)
	if err != nil {
		return nil, nil, nil, err
	}
	key, err := tpm2.ImportEncapsulationKey(ek)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("endorsement key: %w: %w", err, ErrKey)
	}
	secret = make([]byte, SecretSize)
	if _, err := rand.Read(secret); err != nil {
		return nil, nil, nil, err
	}
	blob, encSecret, err = tpm2.CreateCredential(rand.Reader, key, ak.Name, secret)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("making a credential: %w", err)
	}
	return blob, encSecret, secret, nil
}
