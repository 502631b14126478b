package deb

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// Control is the control member of a package.
type Control struct {
	Paragraph
	// Files are the member's other files by name: maintainer scripts
	// ("preinst", "postinst", …), "md5sums", "conffiles", "triggers",
	// "templates", …
	Files map[string]ControlFile
}

// ControlFile is one file of the control member.
type ControlFile struct {
	Data []byte
	Mode int64 // permission bits
}

// Conffiles returns the absolute paths the package declares as its
// configuration files, those it asks to remove left out.
func (c *Control) Conffiles() []string {
	var paths []string
	for line := range strings.Lines(string(c.Files["conffiles"].Data)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "/") {
			paths = append(paths, line)
		}
	}
	return paths
}

// maxControlFile bounds one file of the control member.
const maxControlFile = 32 << 20

// Control reads the control member. It may be called again.
func (p *Package) Control() (*Control, error) {
	c, err := p.readControl()
	if err != nil {
		return nil, fmt.Errorf("package %q: control: %w", p.name, err)
	}
	return c, nil
}

func (p *Package) readControl() (*Control, error) {
	r, err := p.open(p.control, p.opts.Limits.ControlBytes)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	c := &Control{Files: map[string]ControlFile{}}
	t := tar.NewReader(r)
	for n := 0; ; n++ {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if n >= p.opts.Limits.Entries {
			return nil, fmt.Errorf("more than %d entries: %w", n, ErrHostile)
		}
		name, err := cleanName(h.Name)
		if err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeDir && name == "." {
			continue
		}
		if err := checkControlEntry(name, h); err != nil {
			return nil, err
		}
		data, err := io.ReadAll(t)
		if err != nil {
			return nil, fmt.Errorf("reading %q: %w", name, err)
		}
		c.Files[name] = ControlFile{Data: data, Mode: h.Mode & 0o777}
	}
	main, ok := c.Files["control"]
	if !ok {
		return nil, errors.New(`no file "control"`)
	}
	delete(c.Files, "control")
	if c.Paragraph, err = ParseParagraph(main.Data); err != nil {
		return nil, err
	}
	return c, c.checkIdentity()
}

func checkControlEntry(name string, h *tar.Header) error {
	switch {
	case h.Typeflag != tar.TypeReg, path.Base(name) != name:
		return fmt.Errorf("entry %q is no plain file at the top: %w", name, ErrHostile)
	case strings.ContainsFunc(name, func(r rune) bool { return !isNameRune(r) && r != '_' && (r < 'A' || r > 'Z') }):
		return fmt.Errorf("entry %q has an unusual name: %w", name, ErrHostile)
	case h.Size > maxControlFile:
		return fmt.Errorf("entry %q of %d bytes: %w", name, h.Size, ErrHostile)
	}
	return nil
}

// checkIdentity makes sure that what becomes file names is fit for it.
func (c *Control) checkIdentity() error {
	for _, field := range []string{"Package", "Version", "Architecture"} {
		if c.Get(field) == "" {
			return fmt.Errorf("no field %s", field)
		}
	}
	for _, field := range []string{"Package", "Architecture"} {
		v := c.Get(field)
		if strings.ContainsFunc(v, func(r rune) bool { return !isNameRune(r) }) || v[0] == '.' || v[0] == '-' {
			return fmt.Errorf("field %s: %q is no name: %w", field, v, ErrHostile)
		}
	}
	if v := c.Get("Version"); strings.ContainsAny(v, "/ \t\n\x00") {
		return fmt.Errorf("field Version: %q is no version: %w", v, ErrHostile)
	}
	return nil
}

// isNameRune reports the characters of package names (Debian policy 5.6.1).
func isNameRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '+' || r == '-' || r == '.'
}

// Paragraph is one paragraph of deb822 fields (deb822(5)), in order.
type Paragraph struct {
	Fields []Field
}

// Field is one field. Value has no leading or trailing blanks; lines behind
// its first keep their leading blank and are parted by "\n".
type Field struct{ Name, Value string }

// Get returns the value of the field of that name, in any case, or "".
func (p Paragraph) Get(name string) string {
	for _, f := range p.Fields {
		if strings.EqualFold(f.Name, name) {
			return f.Value
		}
	}
	return ""
}

// ParseParagraph parses exactly one paragraph.
func ParseParagraph(text []byte) (Paragraph, error) {
	ps, err := ParseParagraphs(text)
	if err != nil {
		return Paragraph{}, err
	}
	if len(ps) != 1 {
		return Paragraph{}, fmt.Errorf("%d paragraphs where one was expected", len(ps))
	}
	return ps[0], nil
}

// ParseParagraphs parses paragraphs parted by blank lines, such as a dpkg
// status file. A field twice in one paragraph is an error.
func ParseParagraphs(text []byte) ([]Paragraph, error) {
	if bytes.IndexByte(text, 0) >= 0 {
		return nil, errors.New("NUL byte in a control file")
	}
	var ps []Paragraph
	var p Paragraph
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimRight(line, " \t\r\n")
		switch {
		case line == "":
			if len(p.Fields) > 0 {
				ps, p = append(ps, p), Paragraph{}
			}
		case line[0] == ' ' || line[0] == '\t':
			if len(p.Fields) == 0 {
				return nil, fmt.Errorf("line %d continues no field", number)
			}
			p.Fields[len(p.Fields)-1].Value += "\n" + line
		default:
			name, value, ok := strings.Cut(line, ":")
			if !ok || name == "" || strings.ContainsAny(name, " \t") {
				return nil, fmt.Errorf("line %d is no field", number)
			}
			if p.Get(name) != "" {
				return nil, fmt.Errorf("line %d: field %s is there twice", number, name)
			}
			p.Fields = append(p.Fields, Field{name, strings.TrimSpace(value)})
		}
	}
	if len(p.Fields) > 0 {
		ps = append(ps, p)
	}
	return ps, nil
}

// String writes the paragraph as it is read, without a blank line behind it.
func (p Paragraph) String() string {
	var b strings.Builder
	for _, f := range p.Fields {
		b.WriteString(f.Name)
		b.WriteByte(':')
		if f.Value != "" && f.Value[0] != '\n' {
			b.WriteByte(' ')
		}
		b.WriteString(f.Value)
		b.WriteByte('\n')
	}
	return b.String()
}
