package recipe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// everything is a good recipe that has most sections.
const everything = gpuNode + `packages: [systemd, nftables]
files:
  - path: /etc/motd
    content: hello
    mode: "0644"
services:
  enable: [nftables.service]
sysctl:
  vm.swappiness: "10"
users:
  - name: ops
    uid: 1000
    shell: /bin/bash
boot:
  watchdog: 30s
  verify: full
health:
  soak: 1m
  checks:
    - name: units
      units: no-failed
labels:
  rack: a1
`

var keyLine = regexp.MustCompile(`^(\s*(?:- )?)([a-z_]+):(.*)$`)

// openMaps are sections whose keys are the recipe writer's own.
var openMaps = map[string]bool{"sysctl": true, "labels": true}

// malformed makes from each line of a recipe some that are wrong, and says at
// which line the error must be; 0 where YAML itself decides.
func malformed(text string, try func(name, text string, line int)) {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	with := func(i int, replacement ...string) string {
		out := append(append([]string{}, lines[:i]...), replacement...)
		return strings.Join(append(out, lines[i+1:]...), "\n") + "\n"
	}
	section := ""
	for i, l := range lines {
		m := keyLine.FindStringSubmatch(l)
		if m == nil {
			continue
		}
		lead, key, value := m[1], m[2], m[3]
		indent := strings.Repeat(" ", len(lead))
		if lead == "" {
			section = key
		}
		at := func(kind string) string { return fmt.Sprintf("line %d, %s: %s", i+1, key, kind) }
		if !openMaps[section] || lead == "" {
			try(at("misspelt"), with(i, lead+key+"x:"+value), i+1)
			try(at("unknown key before it"), with(i, lead+"no_such_key: 1", indent+key+":"+value), i+1)
		}
		if value != "" {
			try(at("twice"), with(i, l, indent+key+":"+value), i+2)
			try(at("a list of lists"), with(i, lead+key+": [[[x]]]"), i+1)
			try(at("a map"), with(i, lead+key+": {no_such_key: {a: b}}"), i+1)
			try(at("a date"), with(i, lead+key+": 2026-12-01"), i+1)
			try(at("an anchor"), with(i, lead+key+": &a"+value), i+1)
			try(at("an alias"), with(i, lead+key+": *a"), 0)
			try(at("cut in a quote"), strings.Join(lines[:i], "\n")+"\n"+lead+key+`: "`, 0)
		}
		try(at("a tab"), with(i, "\t"+l), 0)
		try(at("a NUL"), with(i, l+"\x00"), 0)
		try(at("not UTF-8"), with(i, l+"\xff\xfe"), 0)
	}
}

// Hundreds of recipes that are wrong in one place: each is refused, with file
// and line, on one line, and without a recipe beside the error.
func TestMalformed(t *testing.T) {
	if _, err := load(t, everything); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "r.yaml")
	n := 0
	malformed(everything, func(name, text string, line int) {
		n++
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		r, err := Load(path)
		var e *Error
		switch {
		case err == nil || r != nil:
			t.Errorf("%s: Load = %v, %v; want an error alone", name, r != nil, err)
		case !errors.As(err, &e):
			t.Errorf("%s: the error is a %T: %v", name, err, err)
		case e.Line == 0 || line != 0 && e.Line != line:
			t.Errorf("%s: the error is at line %d, want %d: %v", name, e.Line, line, err)
		case e.Column == 0 && line != 0:
			t.Errorf("%s: the error has no column: %v", name, err)
		case strings.ContainsAny(err.Error(), "\n\x00") || !strings.HasPrefix(err.Error(), path+":"):
			t.Errorf("%s: the error is not one line with the file: %q", name, err)
		}
	})
	if n < 300 {
		t.Errorf("%d malformed recipes, want hundreds", n)
	}
}
