package redfish_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/bmc"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/vmtest"
	"github.com/turnout-project/turnout/internal/vmtest/redfish"
)

// TestRealNode switches a QEMU node on, sends it to the network once, cycles
// its power and switches it off, all through Redfish.
func TestRealNode(t *testing.T) {
	if os.Getenv("TURNOUT_MACHINE_TEST") == "" {
		t.Skip("set TURNOUT_MACHINE_TEST=1 to boot a virtual machine")
	}
	if lacks := vmtest.Missing(); lacks != "" {
		t.Fatalf("this machine lacks %s", lacks)
	}
	rack, err := vmtest.NewRack(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rack.Close(); err != nil {
			t.Error(err)
		}
	})
	node, err := rack.AddNode(vmtest.NodeSpec{Name: "n1", DiskBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	b := redfish.New(node, "root", "s3cret", redfish.Manners{})
	ts := httptest.NewTLSServer(b)
	defer ts.Close()
	h := sha256.Sum256(ts.Certificate().Raw)
	target := bmc.Target{URL: ts.URL, User: "root", Password: "s3cret", Pin: hex.EncodeToString(h[:])}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	do := func(fn func(s *bmc.Session) error) {
		t.Helper()
		s, err := bmc.Open(ctx, target)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if err := fn(s); err != nil {
			t.Fatal(err)
		}
	}
	act := func(a fleet.PowerAct) {
		t.Helper()
		do(func(s *bmc.Session) error { return s.Act(ctx, a) })
	}
	// firstTried is what the firmware tries first after the console has grown
	// beyond what it was.
	firstTried := func(before int) string {
		t.Helper()
		for deadline := time.Now().Add(4 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
			text := node.Console()
			if len(text) < before {
				continue
			}
			_, line, ok := strings.Cut(text[before:], "BdsDxe: ")
			if line, _, whole := strings.Cut(line, "\n"); ok && whole {
				return line
			}
		}
		t.Fatalf("the firmware tried nothing; console: %q", node.Console()[before:])
		return ""
	}
	act(fleet.PowerOn)
	if !node.Running() {
		t.Fatal("the node is off after PowerOn")
	}
	if line := firstTried(0); strings.Contains(line, "PXE") {
		t.Errorf("the disk is not the first: %q", line)
	}
	do(func(s *bmc.Session) error { return s.BootOnce(fleet.BootPXE) })
	before := len(node.Console())
	act(fleet.PowerCycle)
	if line := firstTried(before); !strings.Contains(line, "PXE") {
		t.Errorf("after a boot override to PXE the firmware tries %q", line)
	}
	before = len(node.Console())
	if err := node.Reset(); err != nil {
		t.Fatal(err)
	}
	if line := firstTried(before); strings.Contains(line, "PXE") {
		t.Errorf("the override outlives one boot: %q", line)
	}
	act(fleet.PowerOff)
	if node.Running() {
		t.Error("the node runs after PowerOff")
	}
	do(func(s *bmc.Session) error {
		state, err := s.Power()
		if state != "Off" {
			t.Errorf("power is %s", state)
		}
		return err
	})
	if open, _ := b.Sessions(); open != 0 {
		t.Errorf("%d sessions are open", open)
	}
}
