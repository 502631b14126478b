package imagediff

import (
	"archive/tar"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/deb/debtest"
	"github.com/turnout-project/turnout/internal/lock"
)

// TestKernelConfig: options that moved are told; a kernel whose package is not
// at hand, or brings no configuration, is told as unknown.
func TestKernelConfig(t *testing.T) {
	kernel := func(config string) string {
		p := debtest.Package{Name: "linux-image", Data: []tar.Header{debtest.Dir("./"), debtest.Dir("./boot/")}}
		if config != "" {
			p.Data = append(p.Data, debtest.File("./boot/config-6.1.0", 0o644))
			p.Contents = map[string]string{"./boot/config-6.1.0": config}
		}
		return p.Write(t)
	}
	paths := map[string]string{
		"old":  kernel("# generated\nCONFIG_A=y\nCONFIG_B=m\nCONFIG_C=\"x=1\"\n# CONFIG_D is not set\n"),
		"new":  kernel("CONFIG_A=y\nCONFIG_B=y\n# CONFIG_C is not set\nCONFIG_D=16\n"),
		"none": kernel(""),
	}
	o := Options{Package: func(sum string) string { return paths[sum] }}
	for _, tt := range []struct {
		old, new string
		want     []Change
		unknown  string
	}{
		{"old", "old", nil, ""},
		{"old", "new", []Change{{"CONFIG_B", "m", "y"}, {"CONFIG_C", `"x=1"`, ""}, {"CONFIG_D", "", "16"}}, ""},
		{"old", "gone", nil, "is not in the store"},
		{"none", "new", nil, "has no /boot/config-<release>"},
	} {
		var d Diff
		if err := d.kernelConfig(t.Context(), lock.Package{SHA256: tt.old}, lock.Package{SHA256: tt.new}, o); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, d.Config); diff != "" {
			t.Errorf("%s, %s (-want +got):\n%s", tt.old, tt.new, diff)
		}
		if got := strings.Join(d.Unknown, ""); !strings.Contains(got, tt.unknown) || (tt.unknown == "") != (got == "") {
			t.Errorf("%s, %s: unknown is %q, want %q", tt.old, tt.new, got, tt.unknown)
		}
	}
}
