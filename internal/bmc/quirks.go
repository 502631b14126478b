package bmc

import (
	_ "embed"
	"strings"
	"sync"

	"gopkg.in/yaml.v3"
)

//go:embed quirks.yaml
var quirkFile []byte

// Quirk is one row of quirks.yaml.
type Quirk struct {
	Name         string   `yaml:"name"`
	Match        []string `yaml:"match"`
	BootMode     string   `yaml:"boot_mode"`
	BootSettings bool     `yaml:"boot_settings"`
	BootETag     bool     `yaml:"boot_etag"`
	NoHTTPBoot   bool     `yaml:"no_http_boot"`
	What         string   `yaml:"what"`
	Source       string   `yaml:"source"`
}

// Quirks returns the whole table.
var Quirks = sync.OnceValue(func() []Quirk {
	var q []Quirk
	if err := yaml.Unmarshal(quirkFile, &q); err != nil {
		panic("bmc: quirks.yaml: " + err.Error()) // a fault of this program, seen by its tests
	}
	return q
})

// Kind is what a row is matched against.
type Kind struct{ Vendor, Service, Model, Product string }

type quirks []Quirk

func quirksOf(k Kind) (out quirks) {
	words := map[string]bool{}
	for _, w := range strings.FieldsFunc(strings.ToLower(k.Vendor+" "+k.Service+" "+k.Model+" "+k.Product), func(r rune) bool { return r < 'a' || r > 'z' }) {
		words[w] = true
	}
	for _, q := range Quirks() {
		fits := true
		for _, m := range q.Match {
			fits = fits && words[m]
		}
		if fits {
			out = append(out, q)
		}
	}
	return out
}

func (qs quirks) any(f func(Quirk) bool) bool {
	for _, q := range qs {
		if f(q) {
			return true
		}
	}
	return false
}

func (qs quirks) bootMode() string {
	for _, q := range qs {
		if q.BootMode != "" {
			return q.BootMode
		}
	}
	return ""
}

func (qs quirks) names() (out []string) {
	for _, q := range qs {
		out = append(out, q.Name)
	}
	return out
}

// isPart reports whether a system is a part of a machine rather than one: the
// GPU baseboard of HGX machines, a DPU.
func isPart(id, systemType string) bool {
	l := strings.ToLower(id)
	return strings.HasPrefix(l, "hgx_") || strings.Contains(l, "bluefield") || strings.Contains(l, "dpu") || systemType == "DPU"
}
