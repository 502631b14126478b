package vmtest

import (
	"os"
	"strings"
	"testing"
	"time"
)

// need skips a test on a developer's machine that cannot run racks; in CI
// that is a failure.
func need(t *testing.T) {
	t.Helper()
	if lacks := Missing(); lacks != "" {
		if os.Getenv("CI") != "" {
			t.Fatalf("this machine lacks %s", lacks)
		}
		t.Skipf("this machine lacks %s", lacks)
	}
}

// TestPowerCycle starts a node with nothing to boot, waits for its firmware
// to speak, cuts the power and starts it again with the same TPM and disk.
func TestPowerCycle(t *testing.T) {
	need(t)
	rack, err := NewRack(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rack.Close(); err != nil {
			t.Error(err)
		}
	})
	node, err := rack.AddNode(NodeSpec{Name: "n1", DiskBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for _, root := range rack.EKRoots() {
		if b, err := os.ReadFile(root); err != nil || !strings.Contains(string(b), "BEGIN CERTIFICATE") {
			t.Errorf("EK root %q is not a PEM certificate: %v", root, err)
		}
	}
	for round := range 2 {
		before := len(node.Console())
		if err := node.PowerOn(); err != nil {
			t.Fatal(err)
		}
		if err := node.PowerOn(); err == nil {
			t.Error("PowerOn of a node that is on succeeded")
		}
		deadline := time.Now().Add(2 * time.Minute)
		for !strings.Contains(node.Console()[before:], "PXE") {
			if time.Now().After(deadline) {
				t.Fatalf("round %d: firmware did not reach its network boot; console: %q", round, node.Console())
			}
			time.Sleep(100 * time.Millisecond)
		}
		if err := node.EditDisk(func(*os.File) error { return nil }); err == nil {
			t.Error("the disk of a running node could be edited")
		}
		if err := node.PowerOff(); err != nil {
			t.Fatal(err)
		}
		if node.Running() {
			t.Fatal("node runs after PowerOff")
		}
	}
	if err := node.EditDisk(func(f *os.File) error { return FlipByte(f, 4096) }); err != nil {
		t.Fatal(err)
	}
}
