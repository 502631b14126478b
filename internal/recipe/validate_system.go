package recipe

import (
	"time"

	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/manifest"
)

func (r *Recipe) validateServices() error {
	s := r.Services
	if err := first(r.matchAll("services.enable", s.Enable, unitRule), r.matchAll("services.mask", s.Mask, unitRule)); err != nil {
		return err
	}
	for i, u := range s.Mask {
		if slices.Contains(s.Enable, u) {
			return r.Errorf(fmt.Sprintf("services.mask[%d]", i), "", "%s is both enabled and masked", u)
		}
	}
	return nil
}

func (r *Recipe) validateSystem() error {
	for _, key := range sortedKeys(r.Sysctl) {
		field := "sysctl." + key
		if err := first(r.match(field, key, sysctlRule), r.match(field, r.Sysctl[key], oneLineRule)); err != nil {
			return err
		}
	}
	return r.matchAll("modprobe", r.Modprobe, modprobeRule)
}

func (r *Recipe) validateUsers() error {
	names, ids := map[string]bool{}, map[int]string{}
	for i, u := range r.Users {
		field := fmt.Sprintf("users[%d]", i)
		if err := first(
			r.required(field+".name", u.Name, "name: operator"),
			r.match(field+".name", u.Name, userRule),
			r.matchAll(field+".groups", u.Groups, userRule),
			r.absolute(field+".shell", u.Shell),
			r.absolute(field+".home", u.Home),
		); err != nil {
			return err
		}
		switch {
		case names[u.Name]:
			return r.Errorf(field+".name", "", "user %s is listed twice", u.Name)
		case u.UID < 1000 || u.UID > 59999:
			return r.Errorf(field+".uid", "give it a number from 1000 to 59999, the same in every image", "user %s: uid %d cannot be used", u.Name, u.UID)
		case ids[u.UID] != "":
			return r.Errorf(field+".uid", "", "users %s and %s have the same uid %d", ids[u.UID], u.Name, u.UID)
		}
		names[u.Name], ids[u.UID] = true, u.Name
	}
	return nil
}

func (r *Recipe) absolute(field, p string) error {
	if strings.HasPrefix(p, "/") && path.Clean(p) == p && !strings.ContainsAny(p, ":\n\x00") {
		return nil
	}
	return r.Errorf(field, "", "%s: %q is not an absolute path", field, p)
}

func (r *Recipe) validateBoot() error {
	b := r.Boot
	if b.Watchdog < 0 {
		return r.Errorf("boot.watchdog", "0s means no watchdog", "boot.watchdog is negative")
	}
	if !oneOf(b.Verify, "full", "lazy") {
		return r.Errorf("boot.verify", "", "boot.verify %q is not full or lazy", b.Verify)
	}
	return r.matchAll("boot.modules", b.Modules, moduleRule)
}

// busNames are the kinds of disk.
var busNames = []string{"nvme", "scsi", "virtio"}

func (r *Recipe) validateDisk() error {
	d := r.Disk
	for _, f := range [][2]string{{"disk.by_id", d.ByID}, {"disk.model", d.Model}, {"disk.serial", d.Serial}} {
		if _, err := path.Match(f[1], ""); err != nil {
			return r.Errorf(f[0], "* stands for any text, ? for one character, [a-c] for one of some", "%s: %q is no pattern", f[0], f[1])
		}
	}
	for i, b := range d.Bus {
		if !oneOf(b, busNames...) {
			return r.Errorf(fmt.Sprintf("disk.bus[%d]", i), "", "disk.bus: %q is none of %s", b, strings.Join(busNames, ", "))
		}
	}
	if r.Update.FetchMB < 0 || r.Update.DiskMB < 0 {
		return r.Errorf("update", "leave it out for no bound", "update: a bound is negative")
	}
	switch {
	case d.MinGB < 0 || d.MaxGB < 0:
		return r.Errorf("disk", "", "disk: a size is negative")
	case d.MaxGB > 0 && d.MaxGB < d.MinGB:
		return r.Errorf("disk.max_gb", "", "disk.max_gb %d is less than disk.min_gb %d", d.MaxGB, d.MinGB)
	case d.Erase && d.ByID == "" && d.Model == "" && d.Serial == "" && d.MinGB == 0 && d.MaxGB == 0:
		return r.Errorf("disk.erase", "say which: by_id, model, serial, min_gb or max_gb", "disk.erase would allow to erase any disk of a node")
	}
	return nil
}

func (r *Recipe) validateHealth() error {
	if s := r.Health.AgentSilence; s != 0 && time.Duration(s) < 30*time.Second {
		return r.Errorf("health.agent_silence", "an agent that starts needs some time", "health.agent_silence is %s; want 30s at least", time.Duration(s))
	}
	if r.Health.Soak < 0 {
		return r.Errorf("health.soak", "", "health.soak is negative")
	}
	seen := map[string]bool{}
	for i, c := range r.Health.Checks {
		field := fmt.Sprintf("health.checks[%d]", i)
		if err := r.validateCheck(field, c); err != nil {
			return err
		}
		if seen[c.Name] {
			return r.Errorf(field+".name", "", "health check %s is listed twice", c.Name)
		}
		seen[c.Name] = true
	}
	return nil
}

// checkKinds are the fields that say what a health check does.
var checkKinds = []string{"exec", "unit", "units", "module", "file", "kernel"}

func (r *Recipe) validateCheck(field string, c manifest.Check) error {
	if err := first(r.required(field+".name", c.Name, "name: network"), r.match(field+".name", c.Name, nameRule)); err != nil {
		return err
	}
	var kinds []string
	for _, k := range checkKinds {
		if r.has(field + "." + k) {
			kinds = append(kinds, k)
		}
	}
	switch {
	case len(kinds) == 0:
		return r.Errorf(field, "add one of "+strings.Join(checkKinds, ", "), "health check %s does not say what to check", c.Name)
	case len(kinds) > 1:
		return r.Errorf(field+"."+kinds[1], "make them two checks", "health check %s has both %s and %s", c.Name, kinds[0], kinds[1])
	case !oneOf(c.Class, "", "software", "hardware", "environment"):
		return r.Errorf(field+".class", "", "health check %s: class %q is not software, hardware or environment", c.Name, c.Class)
	case c.Timeout < 0:
		return r.Errorf(field+".timeout", "", "health check %s: timeout is negative", c.Name)
	}
	return r.validateCheckKind(field, kinds[0], c)
}

func (r *Recipe) validateCheckKind(field, kind string, c manifest.Check) error {
	field += "." + kind
	switch kind {
	case "exec":
		if len(c.Exec) == 0 {
			return r.Errorf(field, "for example exec: [/usr/bin/true]", "health check %s: exec is empty", c.Name)
		}
		return r.absolute(field+"[0]", c.Exec[0])
	case "unit":
		return r.match(field, c.Unit, unitRule)
	case "units":
		if c.Units != "no-failed" {
			return r.Errorf(field, "", "health check %s: units %q is not no-failed", c.Name, c.Units)
		}
	case "module":
		return r.match(field, c.Module, moduleRule)
	case "file":
		return r.absolute(field, c.File)
	case "kernel":
		if c.Kernel != "pinned" {
			return r.Errorf(field, "", "health check %s: kernel %q is not pinned", c.Name, c.Kernel)
		}
	}
	return nil
}
