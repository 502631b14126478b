package rootfs

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/deb"
)

const adminDir = "var/lib/dpkg"

// scripts are the members of a control archive that dpkg runs.
var scripts = map[string]bool{"preinst": true, "postinst": true, "prerm": true, "postrm": true, "config": true}

// writeDatabase writes dpkg's database as if dpkg had unpacked the packages:
// its layout is that of dpkg's doc/triggers.txt and dpkg(1), format 1.
func (b *build) writeDatabase(context.Context) error {
	for _, dir := range []string{"info", "updates", "triggers", "parts", "alternatives"} {
		if err := b.tree.MkdirAll(adminDir+"/"+dir, 0o755); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{"info/format": "1\n", "available": "", "triggers/Unincorp": "", "diversions": "", "statoverride": ""} {
		if b.tree.Exists(adminDir + "/" + name) {
			continue
		}
		if err := b.tree.WriteFile(adminDir+"/"+name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	for _, p := range b.debs {
		if p.diverts() {
			continue // its files are not there yet
		}
		if err := b.writeInfo(p); err != nil {
			return fmt.Errorf("package %s: %w", p.Name, err)
		}
	}
	return b.writeStatus(func(p *unpacked) bool { return !p.diverts() })
}

// infoName is the stem of the package's files in info/.
func (p *unpacked) infoName() string {
	if strings.EqualFold(p.control.Get("Multi-Arch"), "same") {
		return p.Name + ":" + p.Architecture
	}
	return p.Name
}

// writeInfo writes the package's files in info/.
func (b *build) writeInfo(p *unpacked) error {
	stem := adminDir + "/info/" + p.infoName() + "."
	for _, name := range slices.Sorted(maps.Keys(p.control.Files)) {
		mode := fs.FileMode(0o644)
		if scripts[name] {
			mode = 0o755
		}
		if err := b.tree.WriteFile(stem+name, p.control.Files[name].Data, mode); err != nil {
			return err
		}
	}
	if _, ok := p.control.Files["md5sums"]; !ok && len(p.md5) > 0 {
		if err := b.tree.WriteFile(stem+"md5sums", p.sums(), 0o644); err != nil {
			return err
		}
	}
	return b.tree.WriteFile(stem+"list", p.listFile(), 0o644)
}

// sums is what dpkg writes for packages without md5sums: every file that is no conffile.
func (p *unpacked) sums() []byte {
	var out bytes.Buffer
	conffiles := p.control.Conffiles()
	for _, name := range p.list {
		if sum, ok := p.md5[name]; ok && !slices.Contains(conffiles, name) {
			fmt.Fprintf(&out, "%s  %s\n", sum, strings.TrimPrefix(name, "/"))
		}
	}
	return out.Bytes()
}

func (p *unpacked) listFile() []byte {
	var out bytes.Buffer
	for _, name := range p.list {
		if !p.dropped[name] {
			out.WriteString(name + "\n")
		}
	}
	return out.Bytes()
}

// writeStatus writes the status file and the triggers for the packages that
// there says are unpacked, all of them yet to be configured.
func (b *build) writeStatus(there func(*unpacked) bool) error {
	var status bytes.Buffer
	t := triggers{named: map[string][]string{}}
	for _, p := range slices.SortedFunc(slices.Values(b.debs), func(x, y *unpacked) int { return cmp.Compare(x.Name, y.Name) }) {
		if !there(p) {
			continue
		}
		status.WriteString(p.statusEntry().String())
		status.WriteByte('\n')
		if err := t.add(p); err != nil {
			return fmt.Errorf("package %s: %w", p.Name, err)
		}
	}
	if err := b.tree.WriteFile(adminDir+"/triggers/File", t.files.Bytes(), 0o644); err != nil {
		return err
	}
	for name, lines := range t.named {
		if err := b.tree.WriteFile(adminDir+"/triggers/"+name, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			return err
		}
	}
	return b.tree.WriteFile(adminDir+"/status", status.Bytes(), 0o644)
}

// statusEntry is the package's paragraph in the status file.
func (p *unpacked) statusEntry() deb.Paragraph {
	e := deb.Paragraph{Fields: []deb.Field{{Name: "Package", Value: p.Name}, {Name: "Status", Value: "install ok unpacked"}}}
	for _, f := range p.control.Fields {
		if !strings.EqualFold(f.Name, "Package") && !strings.EqualFold(f.Name, "Status") && !strings.EqualFold(f.Name, "Conffiles") {
			e.Fields = append(e.Fields, f)
		}
	}
	var conffiles strings.Builder
	for _, name := range p.control.Conffiles() {
		if sum, ok := p.md5[name]; ok {
			conffiles.WriteString("\n " + name + " " + sum)
		}
	}
	if conffiles.Len() > 0 {
		e.Fields = append(e.Fields, deb.Field{Name: "Conffiles", Value: conffiles.String()})
	}
	return e
}

// triggers collects what packages are interested in (deb-triggers(5)).
type triggers struct {
	files bytes.Buffer        // lines "path package"
	named map[string][]string // packages by the trigger's name
}

func (t *triggers) add(p *unpacked) error {
	for line := range strings.Lines(string(p.control.Files["triggers"].Data)) {
		line, _, _ = strings.Cut(line, "#")
		f := strings.Fields(line)
		if len(f) != 2 || !strings.HasPrefix(f[0], "interest") {
			continue
		}
		who := p.Name
		if p.infoName() != p.Name {
			who += ":" + p.Architecture
		}
		if f[0] == "interest-noawait" {
			who += "/noawait"
		}
		if strings.HasPrefix(f[1], "/") {
			fmt.Fprintf(&t.files, "%s %s\n", f[1], who)
			continue
		}
		if strings.ContainsAny(f[1], "/\x00") || f[1] == "." || f[1] == ".." || f[1] == "File" || f[1] == "Unincorp" || f[1] == "Lock" {
			return fmt.Errorf("trigger %q: %w", f[1], deb.ErrHostile)
		}
		t.named[f[1]] = append(t.named[f[1]], who)
	}
	return nil
}
