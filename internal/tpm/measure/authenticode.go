package measure

import (
	"cmp"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"hash"
	"slices"

	"github.com/turnout-project/turnout/internal/manifest"
)

// hashes makes one hash per bank of Banks, in that order.
func hashes() []hash.Hash { return []hash.Hash{sha256.New(), sha512.New384()} }

// Authenticode returns the digest of a PE file in each of Banks, as the
// firmware extends it into PCR 4: everything but the checksum, the directory
// entry of the certificate table and the certificate table itself.
//
// A file whose length is no multiple of 8 is hashed as it is, like EDK II
// does; a signing tool pads it first, so that signing changes the digest.
func Authenticode(pe []byte) (manifest.Digests, error) {
	im, err := parsePE(pe)
	if err != nil {
		return nil, err
	}
	return im.authenticode()
}

func (im *image) authenticode() (manifest.Digests, error) {
	parts, err := im.authenticodeParts()
	if err != nil {
		return nil, err
	}
	d := manifest.Digests{}
	for i, h := range hashes() {
		for _, p := range parts {
			h.Write(p)
		}
		d[Banks[i]] = hex.EncodeToString(h.Sum(nil))
	}
	return d, nil
}

// authenticodeParts returns the pieces of the file that are hashed, in order.
// The rule for what follows the sections goes by the sum of the sizes hashed
// so far, not by where the last section ends: the specification (step 13)
// and EDK II's PeHash say so.
func (im *image) authenticodeParts() ([][]byte, error) {
	parts := [][]byte{im.raw[:im.checksum]}
	if im.security == 0 {
		parts = append(parts, im.raw[im.checksum+4:im.headersSize])
	} else {
		parts = append(parts, im.raw[im.checksum+4:im.security], im.raw[im.security+8:im.headersSize])
	}
	sorted := slices.Clone(im.sections)
	slices.SortStableFunc(sorted, func(a, b header) int { return cmp.Compare(a.rawOffset, b.rawOffset) })
	sum := im.headersSize
	for _, s := range sorted {
		if s.rawSize == 0 {
			continue
		}
		parts = append(parts, im.raw[s.rawOffset:s.rawOffset+s.rawSize])
		if sum += int(s.rawSize); sum > len(im.raw) {
			return nil, fmt.Errorf("PE section %q overlaps another: the sections are larger than the file", s.name)
		}
	}
	rest := len(im.raw) - sum - im.certSize
	if rest < 0 {
		return nil, fmt.Errorf("PE certificate table of %d bytes does not fit the file", im.certSize)
	}
	if rest > 0 {
		parts = append(parts, im.raw[sum:sum+rest])
	}
	return parts, nil
}
