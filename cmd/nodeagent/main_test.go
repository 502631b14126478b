//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/node"
	"github.com/turnout-project/turnout/internal/node/bootinfo"
)

func TestRun(t *testing.T) {
	tests := []struct {
		args   string
		code   int
		stdout string // a part of it
		stderr string
	}{
		{"", exitOK, "nodeagent status", ""},
		{"--help", exitOK, "EXIT STATUS", ""},
		{"run --help", exitOK, "a silent server demotes\nnothing", ""},
		{"version", exitOK, "linux/", ""},
		{"completion bash", exitOK, "bash completion", ""},
		{"statsu", exitUsage, "", `unknown argument "statsu" for "nodeagent"; see ` + "`nodeagent --help`"},
		{"status --jsno", exitUsage, "", "unknown flag: --jsno; see `nodeagent status --help`"},
		{"status now", exitUsage, "", `unknown argument "now"`},
		{"status", exitFailure, "", "was this system started by Turnout's initrd?"},
		{"run", exitFailure, "", "was this system started by Turnout's initrd?"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), strings.Fields(tt.args), &stdout, &stderr)
			if code != tt.code || !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(stderr.String(), tt.stderr) {
				t.Errorf("nodeagent %s = %d\nstdout: %s\nstderr: %s\nwant %d, %q, %q", tt.args, code, &stdout, &stderr, tt.code, tt.stdout, tt.stderr)
			}
			if tt.stderr == "" && stderr.Len() > 0 {
				t.Errorf("nodeagent %s wrote to standard error: %s", tt.args, &stderr)
			}
		})
	}
}

// TestStatusBothBad is the second half of case C72: with both slots bad the
// status must still be shown.
func TestStatusBothBad(t *testing.T) {
	image := "sha256:" + strings.Repeat("b", 64)
	v := statusView{
		Boot:    &bootinfo.Info{Slot: fleet.SlotB, BootPath: "disk", Starts: 4, Watchdog: bootinfo.Watchdog{Device: "/dev/watchdog0", Seconds: 60}},
		Problem: "evidence of the booted slot disagrees",
		Slots: []fleet.SlotReport{
			{Slot: fleet.SlotA, State: fleet.SlotBad, Image: "aaaaaaaaaaaa", Generation: 1, Reason: "ran out of trial boots"},
			{Slot: fleet.SlotB, State: fleet.SlotBad, Image: "bbbbbbbbbbbb", Generation: 2, Reason: `health check "gpu" failed: expected 8, seen 7`},
		},
		Agent: &node.View{Report: &fleet.Report{
			Activity: "booted slot B is bad", Slots: []fleet.SlotReport{{Slot: fleet.SlotB, Image: image, Name: "rack-base 2"}},
			Health: []fleet.CheckResult{{Name: "gpu", Status: fleet.CheckFailed, Detail: "expected 8, seen 7"}},
		}, Verdict: &fleet.Verdict{Summary: "PCR 11 differs"}},
	}
	var b bytes.Buffer
	if err := v.print(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"B (running)  bad    rack-base 2 (bbbbbbbbbbbb)", "ran out of trial boots", "start 4 without local health", "/dev/watchdog0, 60 s",
		"evidence of the booted slot disagrees", "no session", "REFUSED: PCR 11 differs", "check gpu",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("status lacks %q:\n%s", want, &b)
		}
	}
	j, err := json.Marshal(v)
	if err != nil || !strings.Contains(string(j), `"state":"bad"`) {
		t.Errorf("as JSON: %v %s", err, j)
	}
}
