package dm

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

// TestTableBytes checks the bytes against the layout of dm-ioctl.h written
// out by hand. A real device is made by the machine test of
// internal/node/boot.
func TestTableBytes(t *testing.T) {
	b, err := request("turnout-root", "CRYPT-VERITY-ab-turnout-root", flagReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	if err := putTarget(b, Target{"verity", 2048, "1 8:2 8:3 4096"}); err != nil {
		t.Fatal(err)
	}
	ne := binary.NativeEndian
	for _, f := range []struct {
		what string
		off  int
		want uint32
	}{
		{"version", 0, 4}, {"data_size", 12, bufferSize}, {"data_start", 16, 312},
		{"target_count", 20, 1}, {"flags", 28, 1}, {"sector_start", 312, 0}, {"length", 320, 2048},
		{"next", 332, 56},
	} {
		if got := ne.Uint32(b[f.off:]); got != f.want {
			t.Errorf("%s = %d, want %d", f.what, got, f.want)
		}
	}
	for _, s := range []struct {
		off  int
		want string
	}{{48, "turnout-root\x00"}, {176, "CRYPT-VERITY-ab-turnout-root\x00"}, {336, "verity\x00"}, {352, "1 8:2 8:3 4096\x00"}} {
		if !bytes.HasPrefix(b[s.off:], []byte(s.want)) {
			t.Errorf("bytes at %d = %q, want %q", s.off, b[s.off:s.off+len(s.want)], s.want)
		}
	}
}

func TestRequestRefuses(t *testing.T) {
	for _, tt := range []struct{ name, uuid string }{
		{"", ""}, {"a/b", ""}, {"a\x00b", ""}, {strings.Repeat("n", 128), ""}, {"n", strings.Repeat("u", 129)},
	} {
		if _, err := request(tt.name, tt.uuid, 0); err == nil {
			t.Errorf("request(%q, %q) succeeded, want an error", tt.name, tt.uuid)
		}
	}
	b, _ := request("n", "", 0)
	if err := putTarget(b, Target{"verity", 1, strings.Repeat("x", bufferSize)}); err == nil {
		t.Error("putTarget took a table larger than the buffer")
	}
}
