package fleet

import "testing"

// Case C43: every spelling of a MAC is one MAC, and what a YAML reader makes
// of an unquoted one is refused.
func TestParseMAC(t *testing.T) {
	for in, want := range map[string]MAC{
		"52:54:00:12:34:56": "52:54:00:12:34:56", "52-54-00-AB-CD-EF": "52:54:00:ab:cd:ef",
		"5254.00ab.cdef": "52:54:00:ab:cd:ef", " 525400ABCDEF\n": "52:54:00:ab:cd:ef",
		"80:00:02:08:fe:80:00:00:00:00:00:00:00:02:c9:03:00:0a:0b:0c": "80:00:02:08:fe:80:00:00:00:00:00:00:00:02:c9:03:00:0a:0b:0c",
		"190027234056": "19:00:27:23:40:56",
		"41056736456":  "", "": "", "52:54:00:12:34": "", "52:54:00:12:34:5g": "", "00:00:00:00:00:00": "", "00-00-00-00-00-00": "",
	} {
		got, err := ParseMAC(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("ParseMAC(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
}

func TestAmountText(t *testing.T) {
	for _, s := range []string{"0", "3", "25%", "100%"} {
		var a Amount
		if err := a.UnmarshalText([]byte(s)); err != nil || a.String() != s {
			t.Errorf("amount %q reads as %v, %v", s, a, err)
		}
	}
}
