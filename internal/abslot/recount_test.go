package abslot_test

import (
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/abslot/memesp"
	"github.com/turnout-project/turnout/internal/abslot/slottest"
	"github.com/turnout-project/turnout/internal/fleet"
)

// refusing is a node with a trial of v2 in B, on firmware that does not let
// the loader count.
func refusing(t *testing.T) *slottest.Node {
	t.Helper()
	n := slottest.NewNode(&memesp.ESP{})
	must(t, n.Provision(t.Context(), v1))
	must(t, n.Install(t.Context(), fleet.SlotB, v2, 2))
	n.RefusesRename = true
	return n
}

// TestRecountFallsBack: a slot that hangs each time before its agent lives is
// given up after its tries where the initrd counts, and never where it does
// not.
func TestRecountFallsBack(t *testing.T) {
	for _, counts := range []bool{true, false} {
		n, ran := refusing(t), ""
		for range abslot.MaxTries + 2 {
			_, err := n.Boot(t.Context())
			must(t, err)
			ran = n.Evidence.RootHash
			if counts {
				_, err = n.Machine().Recount(t.Context())
				must(t, err)
			}
		}
		if fellBack := ran == v1.RootHash; fellBack != counts {
			t.Errorf("counted by the initrd: %v; fell back: %v", counts, fellBack)
		}
	}
}

// TestRecountConfirms: a boot that the initrd counted can be confirmed, by the
// path that it leaves.
func TestRecountConfirms(t *testing.T) {
	n := refusing(t)
	_, err := n.Boot(t.Context())
	must(t, err)
	path, err := n.Machine().Recount(t.Context())
	must(t, err)
	if !strings.HasPrefix(path, `\EFI\Linux\g000002-`) || !strings.HasSuffix(path, "+1-1.efi") {
		t.Fatalf("Recount = %q", path)
	}
	n.Evidence.CountPath = path
	if again, err := n.Machine().Recount(t.Context()); err != nil || again != "" {
		t.Errorf("a second Recount of one boot = %q, %v", again, err)
	}
	must(t, n.Confirm(t.Context()))
}

// TestRecountLeavesAlone: what the loader counted, what it did not start, and
// what is confirmed is not counted.
func TestRecountLeavesAlone(t *testing.T) {
	for name, setup := range map[string]func(n *slottest.Node){
		"counted by the loader": func(n *slottest.Node) { n.RefusesRename = false; _, err := n.Boot(t.Context()); must(t, err) },
		"kexec":                 func(n *slottest.Node) { _, err := n.Boot(t.Context()); must(t, err); n.Evidence.Kexec = true },
		"over the network":      func(n *slottest.Node) { n.BootNetwork(fleet.SlotB) },
		"installer":             func(n *slottest.Node) { n.BootInstaller() },
		"another path": func(n *slottest.Node) {
			_, err := n.Boot(t.Context())
			must(t, err)
			n.Evidence.CountPath = `\EFI\Linux\x+0-2.efi`
		},
		"confirmed": func(n *slottest.Node) {
			must(t, n.Machine().Condemn(t.Context(), fleet.SlotB, "x", false))
			_, err := n.Boot(t.Context())
			must(t, err)
		},
	} {
		n := slottest.NewNode(&memesp.ESP{})
		must(t, n.Provision(t.Context(), v1))
		must(t, n.Install(t.Context(), fleet.SlotB, v2, 2))
		n.RefusesRename = true
		setup(n)
		before := n.ESP.(*memesp.ESP).Files()
		path, err := n.Machine().Recount(t.Context())
		if err != nil || path != "" {
			t.Errorf("%s: Recount = %q, %v", name, path, err)
		}
		for f := range n.ESP.(*memesp.ESP).Files() {
			if _, ok := before[f]; !ok {
				t.Errorf("%s: %s is new", name, f)
			}
		}
	}
}

func TestNeedsRecount(t *testing.T) {
	const entry = "g000002-ba9876543210+2.efi"
	for _, tt := range []struct {
		name      string
		files     []string
		countPath string
		want      bool
	}{
		{"refused", []string{"g000001-0123456789ab.efi", "g000002-ba9876543210+2.efi"}, "", true},
		{"refused, with the path that was wanted", []string{"g000002-ba9876543210+2.efi"}, `\EFI\Linux\g000002-ba9876543210+1-1.efi`, true},
		{"counted", []string{"g000002-ba9876543210+1-1.efi"}, `\EFI\Linux\g000002-ba9876543210+1-1.efi`, false},
		{"confirmed", []string{"g000002-ba9876543210.efi"}, "", false},
		{"no tries left", []string{"g000002-ba9876543210+0-2.efi"}, "", false},
		{"another one has tries", []string{"g000003-ba9876543210+2.efi", "g000002-ba9876543210.efi"}, "", false},
	} {
		if got := abslot.NeedsRecount(tt.files, entry, tt.countPath); got != tt.want {
			t.Errorf("%s: NeedsRecount = %v", tt.name, got)
		}
	}
}
