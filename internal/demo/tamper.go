package demo

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/vmtest"
)

// corruptRoot is scene 6a: a byte in the middle of the running slot's root
// is changed while the node is off.
func corruptRoot(ctx context.Context, l *lab) error {
	node := l.rack.Nodes()[2]
	n, err := l.node(ctx, node.Name)
	if err != nil {
		return err
	}
	slot := n.Reported.Booted
	if err := node.PowerOff(); err != nil {
		return err
	}
	label := "root-" + strings.ToLower(string(slot))
	start, err := partitionStart(node.Disk(), label)
	if err != nil {
		return err
	}
	const within = 3<<20 + 17
	if err := node.EditDisk(func(f *os.File) error { return vmtest.FlipByte(f, start+within) }); err != nil {
		return err
	}
	l.say("%s is off; byte %d of its partition %s was changed; power on", node.Name, within, label)
	if err := node.PowerOn(); err != nil {
		return err
	}
	other := n.Reported.Slot(slot.Other()).Image
	n, err = l.settled(ctx, node.Name, other, patience)
	if err != nil {
		return err
	}
	bad := n.Reported.Slot(slot)
	if n.Reported.Booted != slot.Other() || bad.State != fleet.SlotBad {
		return fmt.Errorf("node %s: %s, want slot %s running and slot %s bad", n.Name, l.describe(n), slot.Other(), slot)
	}
	l.say("%s runs slot %s; slot %s is bad: %s", n.Name, n.Reported.Booted, slot, bad.Reason)
	return nil
}

// tamperedUKI is scene 6b: a byte of the running slot's UKI is changed, in a
// section that does not keep it from booting.
func tamperedUKI(ctx context.Context, l *lab) error {
	node := l.rack.Nodes()[1]
	n, err := l.node(ctx, node.Name)
	if err != nil {
		return err
	}
	slot := n.Reported.Booted
	digest := n.Reported.BootedImage()
	if err := node.PowerOff(); err != nil {
		return err
	}
	if err := l.tamper(node, digest); err != nil {
		return err
	}
	l.say("%s is off; one byte of the UKI in slot %s was changed; power on", node.Name, slot)
	if err := node.PowerOn(); err != nil {
		return err
	}
	var verdict fleet.Verdict
	err = l.until(ctx, "the attestation of "+node.Name+" to fail", patience, func() (bool, string) {
		x, err := l.node(ctx, node.Name)
		if err != nil || x.Verdict == nil {
			return false, fmt.Sprint(err)
		}
		verdict = *x.Verdict
		return !verdict.Accepted, l.describe(x)
	})
	if err != nil {
		return err
	}
	l.say("verdict: %s", verdict.Summary)
	if err := namesPCRandEvent(verdict); err != nil {
		return err
	}
	n, err = l.settled(ctx, node.Name, n.Reported.Slot(slot.Other()).Image, patience)
	if err != nil {
		return err
	}
	if bad := n.Reported.Slot(slot); bad.State != fleet.SlotBad {
		return fmt.Errorf("slot %s of %s is %s although its UKI was changed, want bad", slot, n.Name, bad.State)
	}
	return nil
}

func namesPCRandEvent(v fleet.Verdict) error {
	for _, f := range v.Findings {
		if (f.PCR == 4 || f.PCR == 11) && f.Event >= 0 && f.What != "" {
			return nil
		}
	}
	return fmt.Errorf("the verdict names no PCR and event: %+v", v)
}

// tamper changes one byte of the .osrel text of a UKI on the node's ESP.
func (l *lab) tamper(node *vmtest.Node, digest string) error {
	start, err := partitionStart(node.Disk(), "esp")
	if err != nil {
		return err
	}
	drive := fmt.Sprintf("%s@@%d", node.Disk(), start)
	listing, err := exec.Command("mdir", "-i", drive, "-b", "::/EFI/Linux").Output()
	if err != nil {
		return commandError("mdir", err)
	}
	short := strings.TrimPrefix(digest, "sha256:")[:12]
	var name string
	for line := range strings.Lines(string(listing)) {
		if strings.Contains(line, short) && strings.Contains(line, ".efi") {
			name = strings.TrimSpace(line)
		}
	}
	if name == "" {
		return fmt.Errorf("no UKI of %s on the ESP of %s:\n%s", short, node.Name, listing)
	}
	local := filepath.Join(l.Dir, "tampered.efi")
	if out, err := exec.Command("mcopy", "-n", "-o", "-i", drive, name, local).CombinedOutput(); err != nil {
		return fmt.Errorf("mcopy: %w: %s", err, out)
	}
	pe, err := os.ReadFile(local)
	if err != nil {
		return err
	}
	at := bytes.Index(pe, []byte("PRETTY_NAME="))
	if at < 0 {
		return fmt.Errorf("the UKI of %s has no PRETTY_NAME", node.Name)
	}
	pe[at+len("PRETTY_NAME=")+1] ^= 0x20
	if err := os.WriteFile(local, pe, 0o644); err != nil {
		return err
	}
	if out, err := exec.Command("mcopy", "-n", "-o", "-i", drive, local, name).CombinedOutput(); err != nil {
		return fmt.Errorf("mcopy: %w: %s", err, out)
	}
	return nil
}

// partitionStart returns the byte offset of a partition by its label.
func partitionStart(image, label string) (int64, error) {
	d, err := disk.Open(image)
	if err != nil {
		return 0, err
	}
	p, err := d.Partition(label)
	return p.StartBytes, err
}
