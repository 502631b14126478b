package sdboot_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/abslot/sdboot"
)

func TestSelect(t *testing.T) {
	const (
		good1  = "g000001-aaaaaaaaaaaa.efi"
		armed2 = "g000002-bbbbbbbbbbbb+2.efi"
		try2   = "g000002-bbbbbbbbbbbb+1-1.efi"
		last2  = "g000002-bbbbbbbbbbbb+0-2.efi"
		good2  = "g000002-bbbbbbbbbbbb.efi"
	)
	tests := []struct {
		name  string
		files []string
		want  string
		after []string
	}{
		{"nothing", nil, "", nil},
		{"no UKI", []string{"x.new", "y.tmp", "z.old", ".hidden.efi", "auto-osx.efi"}, "", []string{"x.new", "y.tmp", "z.old", ".hidden.efi", "auto-osx.efi"}},
		{"newest good", []string{good1, good2}, good2, []string{good1, good2}},
		{"armed first", []string{good1, armed2}, armed2, []string{good1, try2}},
		{"tried again", []string{good1, try2}, try2, []string{good1, last2}},
		{"out of tries (systemd 15667)", []string{last2, good1}, good1, []string{last2, good1}},
		{"all bad: the newest, and it counts on", []string{"g000001-aaaaaaaaaaaa+0-50.efi", last2}, last2, []string{"g000001-aaaaaaaaaaaa+0-50.efi", "g000002-bbbbbbbbbbbb+0-3.efi"}},
		{"flip: old image, new generation", []string{good2, "g000003-aaaaaaaaaaaa+2.efi"}, "g000003-aaaaaaaaaaaa+2.efi", []string{good2, "g000003-aaaaaaaaaaaa+1-1.efi"}},
		{"generations are numbers", []string{"g999999-aaaaaaaaaaaa.efi", "g1000000-bbbbbbbbbbbb.efi"}, "g1000000-bbbbbbbbbbbb.efi", []string{"g999999-aaaaaaaaaaaa.efi", "g1000000-bbbbbbbbbbbb.efi"}},
		{"remnant of a torn rename goes last", []string{"G00000~1.EFI", good1}, good1, []string{"G00000~1.EFI", good1}},
		{"remnant before bad ones", []string{last2, "G00000~1.EFI"}, "G00000~1.EFI", []string{last2, "G00000~1.EFI"}},
		{"plain and counted of one stem: directory order (systemd 33504)", []string{try2, good2, good1}, try2, []string{last2, good2, good1}},
		{"two counted of one stem: more tries left", []string{try2, armed2}, armed2, nil},
		{"plus sign that is no counter", []string{"a+b.efi"}, "a+b.efi", []string{"a+b.efi"}},
		{"upper-case suffix", []string{"X+1.EFI"}, "X+1.EFI", []string{"X+0-1.EFI"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := sdboot.Select(tt.files)
			if got != tt.want || ok != (tt.want != "") {
				t.Errorf("Select(%q) = %q, %v; want %q", tt.files, got, ok, tt.want)
			}
			if tt.after == nil && tt.want != "" {
				return
			}
			_, after, _ := sdboot.Boot(tt.files)
			if diff := cmp.Diff(tt.after, after); diff != "" {
				t.Errorf("Boot(%q) (-want +got):\n%s", tt.files, diff)
			}
		})
	}
}

// The rows are those of the version format specification and of systemd's own
// test-string-util, in rising order within each row.
func TestCompareVersions(t *testing.T) {
	for _, row := range [][]string{
		{"", "0"},
		{"~", "", "1"},
		{"122.1", "123~rc1-1", "123", "123-a", "123-a.1", "123-1", "123-1.1", "123^post1", "123.a-1", "123.1-1", "123a-1", "124-1"},
		{"g00000~1", "g000001-a", "g000002-a", "g000010-0", "g999999-f", "g1000000-0"},
	} {
		for i, a := range row {
			for j, b := range row {
				if got, want := cmpSign(sdboot.CompareVersions(a, b)), cmpSign(i-j); got != want {
					t.Errorf("CompareVersions(%q, %q) = %d; want %d", a, b, got, want)
				}
			}
		}
	}
	if got := sdboot.CompareVersions("0000123", "123"); got != 0 {
		t.Errorf("leading zeros count: %d", got)
	}
}

func cmpSign(n int) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}
