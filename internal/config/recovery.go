package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/recovery"
)

// Recovery says what is done by itself about nodes in trouble.
type Recovery struct {
	Mode         recovery.Mode           `yaml:"mode"`
	Steps        []recovery.Step         `yaml:"steps"`
	PerHour      fleet.Amount            `yaml:"pool_per_hour"`
	AtOnce       fleet.Amount            `yaml:"pool_at_once"`
	FleetPerHour int                     `yaml:"fleet_per_hour"`
	NodePerDay   int                     `yaml:"node_per_day"`
	Storm        fleet.Amount            `yaml:"storm"`
	Pools        map[string]RecoveryPool `yaml:"pools"`
}

// RecoveryPool is what differs for a pool; what is absent is as for all.
type RecoveryPool struct {
	Mode    recovery.Mode   `yaml:"mode" json:"mode,omitempty"`
	Steps   []recovery.Step `yaml:"steps" json:"steps,omitempty"`
	PerHour fleet.Amount    `yaml:"pool_per_hour" json:"pool_per_hour,omitzero"`
	AtOnce  fleet.Amount    `yaml:"pool_at_once" json:"pool_at_once,omitzero"`
}

func defaultRecovery() Recovery {
	c := recovery.DefaultConfig()
	return Recovery{Mode: c.Default.Mode, Steps: c.Default.Steps, PerHour: c.Default.PerHour, AtOnce: c.Default.AtOnce,
		FleetPerHour: c.Limits.PerHour, NodePerDay: c.Limits.PerNode, Storm: fleet.Amount{Percent: c.Limits.Storm}}
}

// Config returns it in recovery's words.
func (r Recovery) Config() recovery.Config {
	c := recovery.Config{
		Default: recovery.Policy{Mode: r.Mode, Steps: r.Steps, PerHour: r.PerHour, AtOnce: r.AtOnce},
		Pools:   map[string]recovery.Policy{},
		Limits:  recovery.Limits{PerHour: r.FleetPerHour, Storm: r.Storm.Percent, PerNode: r.NodePerDay},
	}
	for name, p := range r.Pools {
		x := c.Default
		if p.Mode != "" {
			x.Mode = p.Mode
		}
		if p.Steps != nil {
			x.Steps = p.Steps
		}
		if p.PerHour != (fleet.Amount{}) {
			x.PerHour = p.PerHour
		}
		if p.AtOnce != (fleet.Amount{}) {
			x.AtOnce = p.AtOnce
		}
		c.Pools[name] = x
	}
	return c
}

func (r Recovery) check() error {
	if r.Storm.Nodes != 0 {
		return &fault{"recovery.storm", fmt.Sprintf("%s: want a percentage such as 20%%", r.Storm)}
	}
	if err := r.Config().Check(); err != nil {
		return &fault{"recovery", err.Error()}
	}
	return nil
}

// Alert is one webhook that is told of events.
type Alert struct {
	Name   string   `yaml:"name" json:"name"`
	URL    string   `yaml:"url" json:"url"`
	Secret string   `yaml:"secret_file" json:"secret_file"` // signs what is sent
	CA     string   `yaml:"ca_file" json:"ca_file,omitempty"`
	Kinds  []string `yaml:"kinds" json:"kinds,omitempty"` // beginnings of kinds; none: what alert.DefaultKinds lists
}

var alertName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,30}$`)

func checkAlerts(all []Alert) error {
	seen := map[string]bool{}
	for _, a := range all {
		bad := func(format string, x ...any) error {
			return &fault{"alerts", a.Name + ": " + fmt.Sprintf(format, x...)}
		}
		u, err := url.Parse(a.URL)
		switch {
		case !alertName.MatchString(a.Name):
			return &fault{"alerts", fmt.Sprintf("name %q: want a-z, digits and hyphens", a.Name)}
		case seen[a.Name]:
			return bad("the name is taken")
		case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || u.Fragment != "":
			return bad("url %q: want https://HOST/PATH", a.URL)
		case u.Scheme == "http" && !slices.Contains([]string{"127.0.0.1", "::1", "localhost"}, u.Hostname()):
			return bad("url %q: plain http is for this machine only", a.URL)
		case a.Secret == "":
			return bad("name a secret_file: what is sent is signed")
		}
		seen[a.Name] = true
	}
	return nil
}

// resolveAlerts makes file names whole.
func resolveAlerts(dir string, all []Alert) {
	for i := range all {
		for _, p := range []*string{&all[i].Secret, &all[i].CA} {
			if *p != "" && !filepath.IsAbs(*p) {
				*p = filepath.Join(dir, *p)
			}
		}
	}
}

// flowAlerts writes webhooks as YAML in one line (JSON is).
func flowAlerts(all []Alert) (string, error) {
	if len(all) == 0 {
		return "[]", nil
	}
	b, err := json.Marshal(all)
	return string(b), err
}

func flowSteps(s []recovery.Step) string {
	out := make([]string, len(s))
	for i := range s {
		out[i] = string(s[i])
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// flowPools writes pools in an order of their own.
func flowPools(m map[string]RecoveryPool) (string, error) {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		b, err := json.Marshal(m[k])
		if err != nil {
			return "", err
		}
		parts = append(parts, fmt.Sprintf("%q: %s", k, b))
	}
	return "{" + strings.Join(parts, ", ") + "}", nil
}
