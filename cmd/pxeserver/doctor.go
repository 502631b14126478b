package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/config"
	"github.com/turnout-project/turnout/internal/doctor"
	"github.com/turnout-project/turnout/internal/store/postgres"
	"github.com/turnout-project/turnout/internal/store/sqlite"
)

func newDoctorCommand(g *globals) *cobra.Command {
	var (
		quiet bool
		wait  time.Duration
		nodes int
	)
	cmd := &cobra.Command{
		Use: "doctor", Short: "Look for what keeps this server from its work",
		Long: `Looks, on the machine of the server, at its configuration, interface, ports,
other DHCP servers, clock, certificates, secrets, fleet state, images, disk
space and limits, through a running server at the BMCs of nodes, and says of
each what it found and what to do about it. Nothing is changed; it may be called while the server runs, and before.

It asks on the rack's interface which DHCP servers there are, as a booting
machine does, and waits --wait for their answers. Run it as root: others see
less.

Exit status 1 means that something does not work; warnings do not count.
` + exitCodes,
		Example: "  pxeserver doctor --config /etc/turnout/pxeserver.yaml\n  pxeserver doctor -o json | jq '.[] | select(.level != \"ok\")'",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := g.load()
			if err != nil {
				return err
			}
			fs := examine(cmd.Context(), c, wait, nodes)
			if api, err := g.client(); err == nil && serverRuns(c) {
				fs = append(fs, bmcs(cmd.Context(), api))
			}
			if quiet {
				fs = trouble(fs)
			}
			if err := g.print(cmd, fs, func(t *tabwriter.Writer) { showFindings(t, fs) }); err != nil {
				return err
			}
			if doctor.Worst(fs) == doctor.Failure {
				return &statusError{exitFailure, "something does not work: see the lines marked ✗"}
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "show warnings and failures only")
	cmd.Flags().DurationVar(&wait, "wait", 4*time.Second, "how long to wait for other DHCP servers; 0: do not ask")
	cmd.Flags().IntVar(&nodes, "nodes", 10000, "for how many nodes the limits must do")
	return cmd
}

func trouble(fs []doctor.Finding) []doctor.Finding {
	out := []doctor.Finding{}
	for _, f := range fs {
		if f.Level != doctor.OK {
			out = append(out, f)
		}
	}
	return out
}

func showFindings(t *tabwriter.Writer, fs []doctor.Finding) {
	mark := map[doctor.Level]string{doctor.OK: "✓", doctor.Warning: "!", doctor.Failure: "✗"}
	for _, f := range fs {
		fmt.Fprintf(t, "%s %s\t%s\n", mark[f.Level], f.Check, f.Found)
		if f.Fix != "" {
			fmt.Fprintf(t, "\t→ %s\n", f.Fix)
		}
	}
}

// imageRoom is what an image of a GPU server may take in the store.
const imageRoom = 8 << 30

func examine(ctx context.Context, c *config.Config, wait time.Duration, nodes int) []doctor.Finding {
	out := []doctor.Finding{configuration(c)}
	running := serverRuns(c)
	face, name := doctor.Interface(c.Address, c.Interface)
	out = append(out, face)
	out = append(out, doctor.Ports(wantedPorts(c), running)...)
	if name != "" && wait > 0 && c.DHCP.Mode != "off" {
		out = append(out, doctor.OtherServers(ctx, name, c.DHCP.Mode, wait)...)
	}
	out = append(out, doctor.Clock(), doctor.OpenFiles(nodes))
	if cert, err := os.ReadFile(c.CAFile()); err == nil {
		out = append(out, doctor.Certificate("CA certificate", cert, time.Now()))
	} // else check-config's finding says so
	out = append(out, doctor.Secret("CA key", c.CAKeyFile(), 0o600), doctor.Secret("tokens", c.Tokens, 0o640))
	return append(out, state(ctx, c), doctor.Images(c.ImageDir()), doctor.Disk(c.DataDir, imageRoom))
}

// configuration says what check-config says.
func configuration(c *config.Config) doctor.Finding {
	f := doctor.Finding{Check: "configuration", Level: doctor.Failure, Fix: "correct it, then: pxeserver check-config"}
	if _, err := options(c); err != nil {
		f.Found = err.Error()
		return f
	}
	if _, err := bootConfig(c); err != nil {
		f.Found = err.Error()
		return f
	}
	if len(c.ImageKeys) == 0 {
		return doctor.Finding{Check: "configuration", Level: doctor.Warning, Found: "good, but no key may sign images, so none can be published", Fix: "imgbuild keygen --out keys, and name keys/image.pub in image_keys"}
	}
	return doctor.Finding{Check: "configuration", Level: doctor.OK, Found: "good"}
}

// serverRuns says whether a server works on the data folder.
func serverRuns(c *config.Config) bool {
	if _, err := os.Stat(filepath.Join(c.DataDir, "lock")); err != nil {
		return false
	}
	unlock, err := lockDir(c.DataDir)
	if err != nil {
		return true
	}
	unlock()
	return false
}

// wantedPorts are those that `serve` opens.
func wantedPorts(c *config.Config) []doctor.Port {
	out := []doctor.Port{{Network: "tcp", Address: c.Listen.API, For: "API and console"}}
	add := func(network string, port, usual int, what string) {
		if port == 0 {
			port = usual
		}
		if port > 0 {
			out = append(out, doctor.Port{Network: network, Address: net.JoinHostPort("", strconv.Itoa(port)), For: what})
		}
	}
	if c.DHCP.Mode != "off" {
		add("udp", c.Listen.DHCP, 67, "DHCP")
	}
	if c.DHCP.Mode == "proxy" {
		add("udp", c.Listen.Proxy, 4011, "ProxyDHCP")
	}
	add("udp", c.Listen.TFTP, 69, "TFTP")
	add("tcp", c.Listen.HTTPBoot, 8080, "HTTP boot")
	return out
}

// state examines a copy of the fleet's state, taken as a backup is, so that
// a running server is not disturbed.
func state(ctx context.Context, c *config.Config) doctor.Finding {
	const check = "fleet state"
	if c.Store != "" {
		return database(ctx, c, check)
	}
	dir, err := os.MkdirTemp("", "turnout-doctor-")
	if err != nil {
		return doctor.Finding{Check: check, Level: doctor.Warning, Found: err.Error()}
	}
	defer os.RemoveAll(dir)
	copied := filepath.Join(dir, "fleet.db")
	err = sqlite.Backup(ctx, c.StateFile(), copied)
	if errors.Is(err, fs.ErrNotExist) {
		return doctor.Finding{Check: check, Level: doctor.OK, Found: "none yet: the first `pxeserver serve` makes it"}
	}
	if err == nil {
		err = sqlite.Check(ctx, copied)
	}
	if err != nil {
		return doctor.Finding{Check: check, Level: doctor.Failure, Found: err.Error(), Fix: "restore the last backup: pxeserver restore FILE --force"}
	}
	return doctor.Finding{Check: check, Level: doctor.OK, Found: c.StateFile() + " is whole"}
}

// database asks whether the database answers and has tables we know.
func database(ctx context.Context, c *config.Config, check string) doctor.Finding {
	password, err := c.StoreSecret()
	if err == nil {
		err = postgres.Check(ctx, c.Store, password)
	}
	if err != nil {
		return doctor.Finding{Check: check, Level: doctor.Failure, Found: err.Error(), Fix: "docs/high-availability.md says what the database needs"}
	}
	return doctor.Finding{Check: check, Level: doctor.OK, Found: c.Store + " answers"}
}
