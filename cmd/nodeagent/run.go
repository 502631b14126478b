//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/buildinfo"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/health"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/node"
	"github.com/turnout-project/turnout/internal/node/bootinfo"
	"github.com/turnout-project/turnout/internal/node/gauges"
	"github.com/turnout-project/turnout/internal/node/inventory"
	"github.com/turnout-project/turnout/internal/node/session"
	"github.com/turnout-project/turnout/internal/node/slots"
	"github.com/turnout-project/turnout/internal/tpm/device"
)

const (
	agentDir   = "/var/lib/turnout"
	reportFile = "/run/turnout/report.json"
)

func newRunCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "run",
		Example: "  nodeagent run",
		Short:   "Be the agent of this node (the service)",
		Long: `run is the service of a system that was started by Turnout's initrd. It finds the
server (trust.json, DHCP option 224, or what the installer left), proves by TPM
which machine this is and what it booted, runs the image's health checks, and
confirms the slot, goes back to the other one, or installs what the server wants.

Without a server it keeps the slot and goes on trying: a silent server demotes
nothing.

` + exitCodes,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), logTo(cmd.ErrOrStderr())) },
	}
}

// logTo returns a log of plain lines; systemd's journal adds the times.
func logTo(w io.Writer) func(string, ...any) {
	var mu sync.Mutex
	return func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(w, format+"\n", args...)
	}
}

func serve(ctx context.Context, log func(string, ...any)) error {
	info, err := bootinfo.Read(bootinfo.Path)
	if err != nil {
		return err
	}
	trust, identity, err := imageFiles()
	if err != nil {
		return err
	}
	machine, err := openSlots(info, log)
	if err != nil {
		return err
	}
	log("nodeagent %s, slot %s from %s, %s %s", buildinfo.Version(), info.Slot, info.BootPath, identity.Name, identity.Version)
	tpm := &opener{}
	a, err := node.New(node.Config{
		Info: info, Trust: trust, Identity: identity, Slots: machine,
		TPM:     tpm.open,
		Servers: func() []string { return node.Servers(trust.Server) }, KeepServers: node.KeepServers,
		Inventory: func() *fleet.Inventory { return tpm.describe(inventory.Read("")) },
		Gauges:    new(gauges.Reader).Read,
		Checks:    &health.Runner{Kernel: identity.Kernel.Release},
		BootEntry: bootEntry(info.Disk),
		Dir:       agentDir, ReportTo: reportFile,
		Reboot: func(string) error { return reboot(ctx, log) },
		Log:    log,
	})
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// imageFiles reads what the verified root says of itself.
func imageFiles() (*manifest.Trust, *manifest.Identity, error) {
	b, err := os.ReadFile(manifest.TrustPath)
	if err != nil {
		return nil, nil, err
	}
	trust, err := manifest.DecodeTrust(b)
	if err != nil {
		return nil, nil, err
	}
	identity := &manifest.Identity{}
	if b, err = os.ReadFile(manifest.ImagePath); err == nil {
		err = json.Unmarshal(b, identity)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("identity of the image: %w", err)
	}
	return trust, identity, nil
}

func openSlots(info *bootinfo.Info, log func(string, ...any)) (*abslot.Machine, error) {
	return slots.Open(slots.Devices{ESP: info.ESP, Verities: info.Verities}, slots.Evidence(info), log)
}

// opener opens the TPM once, and again after it failed to.
type opener struct {
	mu  sync.Mutex
	tpm *device.Device
}

func (o *opener) open(ctx context.Context) (session.TPM, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.tpm != nil {
		return o.tpm, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	d, err := device.Open(ctx)
	if err != nil {
		return nil, err
	}
	o.tpm = d
	return d, nil
}

func (o *opener) describe(i *fleet.Inventory) *fleet.Inventory {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.tpm != nil {
		if info, err := o.tpm.Info(); err == nil {
			i.TPM = info.String()
		}
	}
	return i
}

// rebootLimit is how long an orderly reboot may take.
const rebootLimit = 3 * time.Minute

// reboot asks systemd, and resets the machine when that does not come about.
func reboot(ctx context.Context, log func(string, ...any)) error {
	rctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(rctx, "systemctl", "reboot", "--no-wall")
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		log("error: systemctl reboot: %v: %s", err, out)
		return reset()
	}
	time.AfterFunc(rebootLimit, func() {
		log("error: no reboot within %s: resetting", rebootLimit)
		if err := reset(); err != nil {
			log("error: %v", err)
		}
	})
	return nil
}

func reset() error {
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART); err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	return nil
}
