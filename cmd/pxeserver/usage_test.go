package main

import (
	"strings"
	"testing"
)

func TestUsageExport(t *testing.T) {
	l := newLab(t)
	l.start()
	for _, tt := range []struct {
		args string
		code int
		want string
	}{
		{"usage export --from 2026-03-01 --to 2026-03-02 -o csv", exitOK, "from,to,pool,profile,tenant,occupied_hours"},
		{"usage export --from 2026-03-01 --to 2026-03-02T00:00:00+01:00 -o json", exitOK, "[]"},
		{"usage export --from 2026-03-02 --to 2026-03-01", exitUsage, "want a time ahead"},
		{"usage export --from yesterday --to 2026-03-01", exitUsage, "--from: \"yesterday\": want a day"},
		{"usage export --from 2026-03-01 --to 2026-03-02 --by week", exitUsage, "want hour, day, month or all"},
		{"usage export --from 2026-03-01 --to 2026-03-02 -o xml", exitUsage, "--output"},
		{"alert list", exitOK, "NAME"},
		{"alert test nobody", exitFailure, "no webhook is called"},
		{"drift", exitOK, "nodes off their pool's image: 0"},
		{"recovery status", exitOK, "0 step(s)"},
		{"recovery pause --for 1h --reason switches", exitOK, "PAUSED until"},
		{"recovery resume", exitOK, "0 step(s)"},
		{"recovery resume", exitRefused, "not paused"},
	} {
		r := l.do(strings.Fields(tt.args)...)
		if r.code != tt.code || !strings.Contains(r.out+r.errOut, tt.want) {
			t.Errorf("pxeserver %s: status %d, want %d and %q\n%s%s", tt.args, r.code, tt.code, tt.want, r.out, r.errOut)
		}
	}
}
