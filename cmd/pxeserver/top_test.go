package main

import (
	"strings"
	"testing"
)

func TestTopOnce(t *testing.T) {
	l := newLab(t)
	l.start()
	if r := l.do("node", "add", "r1-n01", "--pool", "training", "--mac", "52:54:00:12:34:56"); r.code != exitOK {
		t.Fatalf("node add: %+v", r)
	}
	r := l.do("top", "--once")
	if r.code != exitOK || strings.Contains(r.out, "\x1b") {
		t.Fatalf("top: %+v", r)
	}
	for _, want := range []string{"1 node ", "training", "r1-n01", "never seen"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("%q is not in:\n%s", want, r.out)
		}
	}
}
