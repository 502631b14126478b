package config

import (
	"strings"
	"testing"
	"time"
)

func TestHooks(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`{slurm: {exec: [/usr/local/lib/turnout/slurm-drain], timeout: 90s}}`, ""},
		{`{k8s: {url: "https://x/y", secret_file: s}}`, ""},
		{`{k8s: {url: "http://127.0.0.1:1/y", secret_file: s}}`, ""},
		{`{Slurm: {exec: [/x]}}`, "want a-z"},
		{`{slurm: {}}`, "want either"},
		{`{slurm: {exec: [/x], url: "https://x"}}`, "want either"},
		{`{slurm: {exec: [drain]}}`, "whole path"},
		{`{slurm: {exec: [/x], timeout: 2h}}`, "up to 1h"},
		{`{k8s: {url: "http://x/y", secret_file: s}}`, "plain http"},
		{`{k8s: {url: "https://u:p@x/y", secret_file: s}}`, "want https"},
		{`{k8s: {url: "https://x/y"}}`, "secret_file"},
	} {
		got, err := Parse("/etc/x/x.yaml", []byte("address: 10.0.0.1\ndhcp: {mode: off}\nhooks: "+c.text+"\n"))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v; want %q", c.text, err, c.want)
		}
		if err != nil {
			continue
		}
		if h := got.Hooks["k8s"]; h.URL != "" && h.Secret != "/etc/x/s" {
			t.Errorf("%s: secret in %q", c.text, h.Secret)
		}
		text, err := Write(got)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse("/etc/x/x.yaml", text)
		if err != nil || len(again.Hooks) != 1 || again.Hooks["slurm"].Timeout != got.Hooks["slurm"].Timeout {
			t.Errorf("%s: read back: %v, %+v", c.text, err, again)
		}
		if c.text[1:6] == "slurm" && got.Hooks["slurm"].Timeout != 90*time.Second {
			t.Errorf("timeout %s", got.Hooks["slurm"].Timeout)
		}
	}
}
