package measure

import (
	"fmt"
	"io"
)

// maxPadding is how much a section may be larger in memory than in the file.
// A kernel's .linux section is padded to the kernel's SizeOfImage by some
// tools, tens of megabytes.
const maxPadding = 256 << 20

// Section is one measured section of a UKI, as it lies in memory when the
// stub runs: Data, then Padding zero bytes. Data aliases the file.
type Section struct {
	Name    string
	Data    []byte
	Padding int
}

// Size returns the number of bytes that are measured.
func (s Section) Size() int { return len(s.Data) + s.Padding }

// WriteTo writes what is measured.
func (s Section) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(s.Data)
	if err != nil || s.Padding == 0 {
		return int64(n), err
	}
	m, err := io.CopyN(w, zeros{}, int64(s.Padding))
	return int64(n) + m, err
}

// zeros is an endless stream of zero bytes.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// UKI is what is measured of a unified kernel image.
type UKI struct {
	StubVersion string    // of the systemd stub: "252.39-1~deb12u2"
	Sections    []Section // in the order in which the stub measures them; empty ones are left out
	im          *image
	rule        stubRule
}

// ReadUKI parses a unified kernel image made from systemd's EFI stub. It
// refuses files whose measurements cannot be predicted.
func ReadUKI(b []byte) (*UKI, error) {
	im, err := parsePE(b)
	if err != nil {
		return nil, err
	}
	version, err := im.stubVersion()
	if err != nil {
		return nil, err
	}
	rule, err := ruleFor(version)
	if err != nil {
		return nil, err
	}
	u := &UKI{StubVersion: version, im: im, rule: rule}
	for _, name := range rule.sections {
		h, err := rule.find(im, name)
		if err != nil {
			return nil, err
		}
		if h == nil || h.virtualSize == 0 {
			continue
		}
		s, err := im.loaded(*h)
		if err != nil {
			return nil, err
		}
		u.Sections = append(u.Sections, s)
	}
	if len(u.Sections) == 0 || u.Sections[0].Name != ".linux" {
		return nil, errNoKernel
	}
	return u, nil
}

// file returns the bytes of a section that are both in the file and in
// memory: the smaller of SizeOfRawData and VirtualSize.
func (im *image) file(h header) []byte {
	if h.rawSize == 0 {
		return nil
	}
	return im.raw[h.rawOffset : h.rawOffset+min(h.rawSize, h.virtualSize)]
}

// loaded returns a section as the firmware's loader places it in memory.
func (im *image) loaded(h header) (Section, error) {
	data := im.file(h)
	pad := int64(h.virtualSize) - int64(len(data))
	if pad > maxPadding {
		return Section{}, fmt.Errorf("section %s is %d bytes larger in memory than in the file", h.name, pad)
	}
	return Section{Name: h.name, Data: data, Padding: int(pad)}, nil
}

// digests returns the digests of the two events of a section: its name with
// the closing zero byte, and its contents.
func (s Section) digests(bank string) (name, contents []byte) {
	h := newHash(bank)
	h.Write(append([]byte(s.Name), 0))
	name = h.Sum(nil)
	h = newHash(bank)
	s.WriteTo(h) //nolint:errcheck // a hash never fails
	return name, h.Sum(nil)
}

// kernel returns the PE file inside .linux.
func (u *UKI) kernel() ([]byte, error) {
	s := u.Sections[0]
	if s.Padding == 0 {
		return s.Data, nil
	}
	if int64(s.Size()) > maxFileSize {
		return nil, fmt.Errorf("section .linux of %d bytes is too large", s.Size())
	}
	b := make([]byte, s.Size())
	copy(b, s.Data)
	return b, nil
}
