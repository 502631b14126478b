package fleet

import (
	"strings"
	"testing"
)

func TestSelector(t *testing.T) {
	labels := map[string]string{"gpu": "h100", "zone": "a", "canary": ""}
	for _, tt := range []struct {
		selector string
		want     bool
	}{
		{"gpu=h100", true}, {"gpu==h100", true}, {"gpu=b200", false}, {"gpu!=b200", true}, {"gpu!=h100", false},
		{"canary", true}, {"!canary", false}, {"rack", false}, {"!rack", true}, {"rack!=r7", true}, {"rack=r7", false},
		{"canary=", true}, {"zone=", false}, {"gpu=h100,zone=a", true}, {"gpu=h100, zone!=a", false}, {"gpu,!rack,zone=a", true},
	} {
		s, err := ParseSelector(tt.selector)
		if err != nil {
			t.Errorf("ParseSelector(%q): %v", tt.selector, err)
			continue
		}
		if got := s.Matches(labels); got != tt.want {
			t.Errorf("%q matches = %v; want %v", tt.selector, got, tt.want)
		}
		again, err := ParseSelector(s.String())
		if err != nil || again.String() != s.String() || again.Matches(labels) != tt.want {
			t.Errorf("%q is written %q and read back as %q, %v", tt.selector, s, again, err)
		}
	}
	for _, bad := range []string{"", ",", "=x", "!=x", "gpu=h100,", "a b", "gpu=h 100", "!", "-a", "gpu!", "!gpu=x", strings.Repeat("k", 64)} {
		if s, err := ParseSelector(bad); err == nil {
			t.Errorf("ParseSelector(%q) = %q; want an error", bad, s)
		}
	}
	if !(Selector{}).Matches(nil) {
		t.Error("the zero selector does not pick all")
	}
}

func TestParseLabels(t *testing.T) {
	got, err := ParseLabels([]string{"gpu=h100", "example.org/zone=a", "spare="})
	if err != nil || LabelText(got) != "example.org/zone=a,gpu=h100,spare=" {
		t.Errorf("ParseLabels = %v, %v", got, err)
	}
	for _, bad := range [][]string{{"gpu"}, {"=x"}, {"a=b", "a=c"}, {"a=b=c"}, {"a=b/c"}, {"a:b=c"}} {
		if got, err := ParseLabels(bad); err == nil {
			t.Errorf("ParseLabels(%q) = %v; want an error", bad, got)
		}
	}
}

func FuzzSelector(f *testing.F) {
	for _, s := range []string{"gpu=h100", "a!=b,!c,d", "!a=b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSelector(text)
		if err != nil {
			return
		}
		again, err := ParseSelector(s.String())
		if err != nil || again.String() != s.String() {
			t.Errorf("%q is written %q, which is read back as %q, %v", text, s, again, err)
		}
	})
}
