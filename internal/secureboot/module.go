package secureboot

import (
	"bytes"
	"encoding/asn1"
	"encoding/binary"
	"fmt"
)

// moduleMagic ends every signed kernel module (Linux, include/linux/module_signature.h).
const moduleMagic = "~Module signature appended~\n"

// moduleTrailer is the kernel's struct module_signature: all zero but for the
// kind of identifier, which is PKCS #7, and the length of the signature.
type moduleTrailer struct {
	Algo, Hash, IDType, SignerLen, KeyIDLen uint8
	_                                       [3]uint8
	SigLen                                  uint32
}

const modulePKCS7 = 2

// SignModule appends a signature to a kernel module, as the kernel's
// sign-file does: PKCS #7 over the module, detached, without attributes.
// Debian's kernels take keys of the firmware's db for modules, so that one
// key is enough for loader, UKI and drivers. A module that is signed already
// is refused.
func (s *Signer) SignModule(module []byte) ([]byte, error) {
	if bytes.HasSuffix(module, []byte(moduleMagic)) {
		return nil, fmt.Errorf("kernel module is signed already")
	}
	bare, err := s.signDetached(module)
	if err != nil {
		return nil, err
	}
	sig, err := asn1.Marshal(contentInfo{oidSignedData, context(0, bare)})
	if err != nil {
		return nil, err
	}
	out := bytes.NewBuffer(bytes.Clone(module))
	out.Write(sig)
	if err := binary.Write(out, binary.BigEndian, moduleTrailer{IDType: modulePKCS7, SigLen: uint32(len(sig))}); err != nil {
		return nil, err
	}
	out.WriteString(moduleMagic)
	return out.Bytes(), nil
}
