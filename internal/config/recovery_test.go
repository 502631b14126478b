package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/recovery"
)

const least = "address: 10.0.0.1\ndhcp: {mode: off}\n"

func TestRecoveryByPool(t *testing.T) {
	c, err := Parse("/etc/turnout/x.yaml", []byte(least+`
recovery:
  mode: act
  pool_per_hour: 10%
  pools:
    inference: {steps: [recheck, power-cycle], pool_at_once: 1}
    lab: {mode: "off"}
alerts:
  - {name: pager, url: "https://pager.example/x", secret_file: pager.secret, kinds: [node.]}
`))
	if err != nil {
		t.Fatal(err)
	}
	r := c.Recovery.Config()
	if got := r.Of("rack"); got.Mode != recovery.Act || len(got.Steps) != len(recovery.Steps) || got.PerHour != (fleet.Amount{Percent: 10}) {
		t.Errorf("rack: %+v", got)
	}
	want := recovery.Policy{Mode: recovery.Act, Steps: []recovery.Step{recovery.Recheck, recovery.PowerCycle}, PerHour: fleet.Amount{Percent: 10}, AtOnce: fleet.Amount{Nodes: 1}}
	if d := cmp.Diff(want, r.Of("inference")); d != "" {
		t.Errorf("inference (-want +got):\n%s", d)
	}
	if got := r.Of("lab"); got.Mode != recovery.Off {
		t.Errorf("lab: %+v", got)
	}
	if c.Alerts[0].Secret != "/etc/turnout/pager.secret" {
		t.Errorf("secret file %q", c.Alerts[0].Secret)
	}
	text, err := Write(c)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse("/etc/turnout/x.yaml", text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if d := cmp.Diff(c, again, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("written and read (-want +got):\n%s", d)
	}
}

func TestRecoveryFaults(t *testing.T) {
	for in, want := range map[string]string{
		"recovery: {mode: on}": "mode", "recovery: {mode: perhaps}": `mode "perhaps": want off, tell or act`,
		"recovery: {steps: [reboot]}": `step "reboot"`, "recovery: {storm: 3}": "want a percentage", "recovery: {storm: 80%}": "1% to 50%",
		"recovery: {fleet_per_hour: 0}": "at least 1", "recovery: {pools: {a: {mode: x}}}": "pool a", "recovery: {speed: 3}": "unknown key",
		`alerts: [{name: a, url: "http://pager.example/", secret_file: s}]`:                                  "plain http",
		`alerts: [{name: a, url: "file:///etc/passwd", secret_file: s}]`:                                     "want https",
		`alerts: [{name: a, url: "https://x"}]`:                                                              "secret_file",
		`alerts: [{name: "A b", url: "https://x", secret_file: s}]`:                                          "name",
		`alerts: [{name: a, url: "https://x", secret_file: s}, {name: a, url: "https://y", secret_file: s}]`: "taken",
	} {
		if _, err := Parse("x.yaml", []byte(least+in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", in, err, want)
		}
	}
}
