//go:build linux

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The exit status is all that the agent's health check sees of a GPU check.
func TestGPUCheck(t *testing.T) {
	tests := []struct {
		name, args     string
		files          map[string]string
		code           int
		stdout, stderr string
	}{
		{"no configuration", "", nil, exitUnknown, "", "cannot tell: open"},
		{"as asked", "params", map[string]string{"etc/turnout/gpu.json": `{"params": {"A": "1"}}`, "proc/driver/nvidia/params": "A: 1\n"}, exitOK, "params: 1 of 1 options", ""},
		{"all that is asked", "", map[string]string{"etc/turnout/gpu.json": `{"params": {"A": "1"}}`, "proc/driver/nvidia/params": "A: 1\n"}, exitOK, "params: 1 of 1", ""},
		{"not as asked", "driver", map[string]string{"etc/turnout/gpu.json": `{"driver": "535.261.03"}`, "sys/module/nvidia/version": "535.309.01\n"}, exitFailure, "", "expected 535.261.03, seen 535.309.01"},
		{"cannot tell", "params", map[string]string{"etc/turnout/gpu.json": `{"params": {"A": "1"}}`}, exitUnknown, "", "params: cannot tell"},
		{"one of each", "params driver", map[string]string{"etc/turnout/gpu.json": `{"driver": "535.261.03", "params": {"A": "1"}}`}, exitFailure, "", "seen none loaded"},
		{"no such check", "heat", map[string]string{"etc/turnout/gpu.json": `{}`}, exitUnknown, "", `there is no check "heat"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			for name, text := range tt.files {
				path := filepath.Join(root, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			var stdout, stderr bytes.Buffer
			args := append([]string{"gpu", "check", "--root", root}, strings.Fields(tt.args)...)
			code := run(t.Context(), args, &stdout, &stderr)
			if code != tt.code || !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(stderr.String(), tt.stderr) {
				t.Errorf("%v = %d\nstdout: %s\nstderr: %s\nwant %d, %q, %q", args, code, &stdout, &stderr, tt.code, tt.stdout, tt.stderr)
			}
			if strings.Count(stderr.String(), "\n") > 1 {
				t.Errorf("the agent shows one line of this: %s", &stderr)
			}
		})
	}
}
