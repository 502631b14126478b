package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/manifest"
)

func TestComparePCRs(t *testing.T) {
	digest := func(s string) []byte { h := sha256.Sum256([]byte(s)); return h[:] }
	extend := func(v, event []byte) []byte {
		h := sha256.Sum256(append(append([]byte{}, v...), event...))
		return h[:]
	}
	zero := make([]byte, 32)
	m := &manifest.Measurements{
		Paths: []manifest.BootPath{{Name: "network", PCR4: manifest.Digests{"sha256": hex.EncodeToString(digest("net"))}}, {Name: "disk", PCR4: manifest.Digests{"sha256": hex.EncodeToString(digest("disk"))}}},
		PCR11: []manifest.PhaseValue{{Phase: "", PCR: manifest.Digests{"sha256": "00"}}, {Phase: finalPhase, PCR: manifest.Digests{"sha256": hex.EncodeToString(digest("eleven"))}}},
	}
	good := func() map[int][]byte {
		return map[int][]byte{4: digest("disk"), 11: digest("eleven"), 12: zero, 13: zero}
	}
	withCmdline := *m
	withCmdline.Cmdline = manifest.Digests{"sha256": hex.EncodeToString(digest("cmdline"))}
	for _, tt := range []struct {
		name string
		m    *manifest.Measurements
		edit func(map[int][]byte)
		bad  string // what is told, "" for nothing
	}{
		{"as predicted", m, func(map[int][]byte) {}, ""},
		{"booted otherwise", m, func(s map[int][]byte) { s[4] = digest("net") }, "1 PCRs"},
		{"another section", m, func(s map[int][]byte) { s[11] = digest("other") }, "1 PCRs"},
		{"a command line where none is measured", m, func(s map[int][]byte) { s[12] = extend(zero, digest("cmdline")) }, "1 PCRs"},
		{"the command line once", &withCmdline, func(s map[int][]byte) { s[12] = extend(zero, digest("cmdline")) }, ""},
		{"the command line twice", &withCmdline, func(s map[int][]byte) { s[12] = extend(extend(zero, digest("cmdline")), digest("cmdline")) }, ""},
		{"another command line, and an extension", &withCmdline, func(s map[int][]byte) { s[12], s[13] = extend(zero, digest("x")), digest("x") }, "2 PCRs"},
	} {
		seen := good()
		tt.edit(seen)
		checks, err := comparePCRs(tt.m, finalPhase, "sha256", sha256.New, seen)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err = showPCRs(&out, checks)
		if (err != nil) != (tt.bad != "") || err != nil && (!errors.Is(err, errMeasured) || !strings.Contains(err.Error(), tt.bad)) || len(checks) != 4 {
			t.Errorf("%s: %v\n%s", tt.name, err, &out)
		}
	}
	if _, err := comparePCRs(&manifest.Measurements{}, finalPhase, "sha256", sha256.New, good()); err == nil {
		t.Error("an image without predictions is as predicted")
	}
}
