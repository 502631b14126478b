package config

import (
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"time"
)

// Hook is how rollouts drain nodes, and give them back to the scheduler of
// their jobs: a program, or a webhook. It can be named through the API, but
// made here only.
type Hook struct {
	Exec    []string      `yaml:"exec" json:"exec,omitempty"`               // program and its first arguments
	URL     string        `yaml:"url" json:"url,omitempty"`                 // webhook
	Secret  string        `yaml:"secret_file" json:"secret_file,omitempty"` // signs what is sent to it
	Timeout time.Duration `yaml:"timeout" json:"-"`                         // of one call; 0: 1m
}

func checkHooks(all map[string]Hook) error {
	for name, h := range all {
		bad := func(format string, x ...any) error {
			return &fault{"hooks", name + ": " + fmt.Sprintf(format, x...)}
		}
		u, err := url.Parse(h.URL)
		switch {
		case !alertName.MatchString(name):
			return &fault{"hooks", fmt.Sprintf("name %q: want a-z, digits and hyphens", name)}
		case (len(h.Exec) == 0) == (h.URL == ""):
			return bad("want either exec: [PROGRAM, ARGUMENT, …] or url: https://…")
		case h.Timeout < 0 || h.Timeout > time.Hour:
			return bad("timeout %s: want up to 1h; a call that finds jobs is made again", h.Timeout)
		case len(h.Exec) > 0 && !filepath.IsAbs(h.Exec[0]):
			return bad("exec %q: name the program by its whole path", h.Exec[0])
		case h.URL == "":
			continue
		case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || u.Fragment != "":
			return bad("url %q: want https://HOST/PATH", h.URL)
		case u.Scheme == "http" && !slices.Contains([]string{"127.0.0.1", "::1", "localhost"}, u.Hostname()):
			return bad("url %q: plain http is for this machine only", h.URL)
		case h.Secret == "":
			return bad("name a secret_file: what is sent is signed")
		}
	}
	return nil
}

// resolveHooks makes file names whole.
func resolveHooks(dir string, all map[string]Hook) {
	for name, h := range all {
		if h.Secret != "" && !filepath.IsAbs(h.Secret) {
			h.Secret = filepath.Join(dir, h.Secret)
			all[name] = h
		}
	}
}

// flowHooks writes hooks as YAML in one line (JSON is).
func flowHooks(all map[string]Hook) (string, error) {
	type line struct {
		Hook
		Timeout string `json:"timeout,omitempty"`
	}
	out := map[string]line{}
	for name, h := range all {
		l := line{Hook: h}
		if h.Timeout != 0 {
			l.Timeout = h.Timeout.String()
		}
		out[name] = l
	}
	b, err := json.Marshal(out)
	return string(b), err
}
