package disk

import (
	"encoding/hex"
	"testing"
)

// C47: the one entry of the protective MBR, to the byte.
func TestProtectiveMBR(t *testing.T) {
	for _, tt := range []struct {
		name string
		g    Geometry
		want string
	}{
		{"8 GiB", Geometry{8 * GiB, 512}, "00000200eeffffff01000000ffffff00"},
		{"8 GiB, 4Kn", Geometry{8 * GiB, 4096}, "00000200eeffffff01000000ffff1f00"},
		{"2 TiB", Geometry{2 << 40, 512}, "00000200eeffffff01000000ffffffff"},
		{"4 TB is capped", Geometry{4e12, 512}, "00000200eeffffff01000000ffffffff"},
		{"4096 sectors", Geometry{2 * MiB, 512}, "00000200eeffffff01000000ff0f0000"},
	} {
		b := protectiveMBR(tt.g)
		if got := hex.EncodeToString(b[0x1BE:0x1CE]); got != tt.want || b[510] != 0x55 || b[511] != 0xAA || len(b) != 512 {
			t.Errorf("%s: entry %s, signature %x; want %s, 55aa", tt.name, got, b[510:], tt.want)
		}
		for i, c := range b[:0x1BE] {
			if c != 0 {
				t.Fatalf("%s: boot code byte %d is %#x; want none", tt.name, i, c)
			}
		}
	}
}
