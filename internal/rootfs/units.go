package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// updaters are the units that change a system behind its operator's back, or
// write where an image cannot be written. They are masked in every image,
// present or not, so that no later package brings one to life.
var updaters = []string{
	"apt-daily.service", "apt-daily.timer", "apt-daily-upgrade.service", "apt-daily-upgrade.timer",
	"apt-news.service", "esm-cache.service", "ua-timer.timer", "motd-news.timer",
	"unattended-upgrades.service",
	"packagekit.service", "packagekit-offline-update.service",
	"fwupd-refresh.service", "fwupd-refresh.timer", "fwupd-offline-update.service",
	"snapd.service", "snapd.socket", "snapd.seeded.service", "snapd.refresh.timer",
	"update-notifier-download.timer", "update-notifier-motd.timer",
	"dpkg-db-backup.service", "dpkg-db-backup.timer", "man-db.timer",
}

const systemUnits = "etc/systemd/system"

// unitDirs are where unit files are looked for, the first first
// (systemd.unit(5)).
var unitDirs = []string{systemUnits, "usr/local/lib/systemd/system", "usr/lib/systemd/system"}

// maskUnit makes it impossible to start a unit, and takes it out of what
// others pull in.
func (b *build) maskUnit(unit string) error {
	if err := checkUnit(unit); err != nil {
		return err
	}
	if err := b.tree.Symlink("/dev/null", systemUnits+"/"+unit); err != nil {
		return fmt.Errorf("masking unit %s: %w", unit, err)
	}
	for _, suffix := range []string{"wants", "requires"} {
		dirs, err := b.tree.Glob(systemUnits, "*."+suffix)
		if err != nil {
			return err
		}
		for _, dir := range dirs {
			if err := b.tree.Remove(path.Join(dir, unit)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

func checkUnit(unit string) error {
	if unit == "" || strings.ContainsAny(unit, "/\x00\n") || !strings.Contains(unit, ".") {
		return fmt.Errorf("%w: %q is no unit name (did you leave out .service?)", ErrSpec, unit)
	}
	return nil
}

// enableUnit does what "systemctl enable" does: it makes the links that the
// unit's [Install] section asks for.
func (b *build) enableUnit(unit string) error { return b.enable(unit, map[string]bool{}) }

func (b *build) enable(unit string, seen map[string]bool) error {
	if seen[unit] {
		return nil
	}
	seen[unit] = true
	if err := checkUnit(unit); err != nil {
		return err
	}
	file, text, err := b.findUnit(unit)
	if err != nil {
		return err
	}
	in := parseInstall(string(text))
	if len(in.wantedBy)+len(in.requiredBy)+len(in.alias)+len(in.also) == 0 {
		return fmt.Errorf("%w: unit %s cannot be enabled: it has no [Install] section (something else starts it, or nothing does)", ErrSpec, unit)
	}
	stem, rest, template := strings.Cut(unit, "@")
	if suffix := path.Ext(unit); template && rest == suffix {
		if in.defaultInstance == "" {
			return fmt.Errorf("%w: unit %s is a template: name an instance (%s@NAME%s)", ErrSpec, unit, stem, suffix)
		}
		unit = stem + "@" + in.defaultInstance + suffix
	}
	return b.linkUnit(unit, "/"+file, in, seen)
}

func (b *build) linkUnit(unit, target string, in install, seen map[string]bool) error {
	links := map[string]bool{}
	for _, w := range in.wantedBy {
		links[path.Join(systemUnits, w+".wants", unit)] = true
	}
	for _, r := range in.requiredBy {
		links[path.Join(systemUnits, r+".requires", unit)] = true
	}
	for _, a := range in.alias {
		links[path.Join(systemUnits, a)] = true
	}
	for link := range links {
		if err := b.tree.Symlink(target, link); err != nil {
			return fmt.Errorf("enabling unit %s: %w", unit, err)
		}
	}
	for _, other := range in.also {
		// A unit named by Also= that is masked, missing or without [Install]
		// is left as it is, as systemctl does.
		if err := b.enable(other, seen); err != nil && !errors.Is(err, ErrSpec) {
			return err
		}
	}
	return nil
}

// findUnit returns the file of a unit, of its template for an instance.
func (b *build) findUnit(unit string) (file string, text []byte, err error) {
	names := []string{unit}
	if stem, _, ok := strings.Cut(unit, "@"); ok {
		names = append(names, stem+"@"+path.Ext(unit))
	}
	for _, name := range names {
		for _, dir := range unitDirs {
			file = path.Join(dir, name)
			if target, err := b.tree.Readlink(file); err == nil && target == "/dev/null" {
				return "", nil, fmt.Errorf("%w: unit %s is masked and cannot be enabled", ErrSpec, unit)
			}
			text, err = b.tree.ReadFile(file)
			if err == nil {
				return file, text, nil
			}
			if !errors.Is(err, fs.ErrNotExist) {
				return "", nil, err
			}
		}
	}
	return "", nil, fmt.Errorf("%w: no unit %s in the image: which package brings it?", ErrSpec, unit)
}

// install is the [Install] section of a unit.
type install struct {
	wantedBy, requiredBy, alias, also []string
	defaultInstance                   string
}

func parseInstall(text string) install {
	var in install
	section := ""
	text = strings.ReplaceAll(text, "\\\n", " ")
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = line
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if section != "[Install]" || !ok || line[0] == '#' || line[0] == ';' {
			continue
		}
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		list := map[string]*[]string{"WantedBy": &in.wantedBy, "RequiredBy": &in.requiredBy, "Alias": &in.alias, "Also": &in.also}[key]
		switch {
		case list != nil && value == "":
			*list = nil
		case list != nil:
			*list = append(*list, strings.Fields(value)...)
		case key == "DefaultInstance":
			in.defaultInstance = value
		}
	}
	return in
}
