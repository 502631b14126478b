//go:build linux

// Package installer is nodeagent's work in the installer's initrd: it gets an
// address, enrols by TPM, waits for approval and for a wish, lays out the
// disk, installs the image into a slot, arms it, and says so all along.
//
// An installation that is cut at any point is begun anew by the next start of
// the installer, and goes on where it was as far as that can be proven. A
// confirmed slot is not touched unless an operator asked for a reinstallation.
package installer

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/buildinfo"
	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/install"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/node/bootinfo"
	"github.com/turnout-project/turnout/internal/node/inventory"
	"github.com/turnout-project/turnout/internal/node/session"
	"github.com/turnout-project/turnout/internal/pause"
	"github.com/turnout-project/turnout/internal/tpm/device"
)

// Config is what the initrd knows.
type Config struct {
	Server string              // of the kernel command line, "" for none
	Wipe   bool                // foreign data may be erased
	Grant  func(time.Duration) // vouch for the boot, so that the watchdog stays quiet
	Log    func(format string, a ...any)
}

const (
	tpmWait     = 30 * time.Second
	callTime    = 2 * time.Minute  // within which a call to the server ends one way or the other
	patience    = 10 * time.Minute // without an answer from the server, before the machine is reset
	refusedWait = 30 * time.Second
	beatDefault = 5 * time.Second
	maxTries    = 5 // of one wish, before the machine is reset
)

// Run installs the machine. It returns nil when it shall be reset to start
// what was installed. An error means that starting all over may help.
func Run(ctx context.Context, cfg Config) error {
	i := &installer{Config: cfg}
	if err := i.prepare(ctx); err != nil {
		return err
	}
	defer i.tpm.Close()
	if err := i.enrol(ctx); err != nil {
		return err
	}
	return i.serve(ctx)
}

type installer struct {
	Config
	trust   *manifest.Trust
	keys    []ed25519.PublicKey
	tpm     *device.Device
	bootID  string
	session *session.Session
	inv     *fleet.Inventory // not yet sent
	slots   []fleet.SlotReport
	told    time.Time // last progress report
	server  string
	fleet   []string // URLs of all servers, if there are several
}

// prepare reads whom to trust and brings up TPM and network.
func (i *installer) prepare(ctx context.Context) error {
	b, err := os.ReadFile(manifest.TrustPath)
	if err != nil {
		return err
	}
	if i.trust, err = manifest.DecodeTrust(b); err != nil {
		return err
	}
	if i.keys, err = manifest.ParsePublicKeys([]byte(i.trust.ImageKeys)); err != nil {
		return err
	}
	if i.bootID, err = bootinfo.BootID(); err != nil {
		return err
	}
	i.Grant(tpmWait + callTime)
	tctx, cancel := context.WithTimeout(ctx, tpmWait)
	defer cancel()
	if i.tpm, err = device.Open(tctx); err != nil {
		return err
	}
	i.inv = inventory.Read("")
	if info, err := i.tpm.Info(); err == nil {
		i.inv.TPM = info.String()
	}
	setClock([]byte(i.trust.ServerCA), i.Log)
	lease, err := i.network(ctx)
	if err != nil {
		return err
	}
	for _, url := range []string{i.Server, i.trust.Server, lease.ServerURL} {
		if url != "" {
			i.server = url
			return nil
		}
	}
	return errors.New("no server: neither the command line, nor trust.json, nor DHCP option 224 names one")
}

// enrol opens the session, however long approval takes.
func (i *installer) enrol(ctx context.Context) error {
	var err error
	i.session, err = session.New(session.Config{
		Server: i.server, CA: []byte(i.trust.ServerCA), TPM: i.tpm, Stage: fleet.StageInstaller,
		BootID: i.bootID, MACs: inventory.MACs(), Inventory: i.inv, Log: i.Log,
	})
	if err != nil {
		return err
	}
	heard := time.Now()
	for next := time.Second; ; {
		i.Grant(callTime)
		wait, err := i.session.Open(ctx)
		switch {
		case err == nil && wait == 0:
			i.attest(ctx)
			return nil
		case err == nil:
			heard, next = time.Now(), time.Second
		case errors.Is(err, session.ErrRefused):
			heard, wait = time.Now(), refusedWait
			i.Log("%v; asking again in %s", err, wait)
		case time.Since(heard) > patience:
			return fmt.Errorf("no session within %s: %w", patience, err)
		default:
			wait, next = next, min(2*next, 30*time.Second)
			i.Log("%v; asking again in %s", err, wait)
		}
		i.Grant(wait + callTime)
		if pause.For(ctx, wait) != nil {
			return ctx.Err()
		}
	}
}

// attest shows the server which installer runs. A refusal does not end the
// installation: what is installed is checked by signature here, and the
// system that it starts is judged before it is confirmed.
func (i *installer) attest(ctx context.Context) {
	hb, err := i.session.Client().Heartbeat(ctx, i.report("enrolled"))
	if err != nil || hb.Desired.Image == "" {
		return // the server gave no image whose installer this could be
	}
	i.inv = nil
	v, err := i.session.Attest(ctx, hb.Desired.Image, "installer")
	switch {
	case err != nil:
		i.Log("attestation: %v", err)
	case v.Accepted:
		i.Log("attestation accepted: %s", v.Summary)
	default:
		i.Log("attestation refused: %s", v.Summary)
	}
}

// serve heartbeats until a wish was carried out.
func (i *installer) serve(ctx context.Context) error {
	var given fleet.Desired // the wish that was given up
	activity := "waiting for an image"
	heard, tries := time.Now(), 0
	for {
		i.Grant(callTime)
		hb, err := i.session.Client().Heartbeat(ctx, i.report(activity))
		wait := beatDefault
		switch {
		case api.Unauthorized(err):
			if err := i.enrol(ctx); err != nil {
				return err
			}
			continue
		case err != nil && time.Since(heard) > patience:
			return err
		case err != nil:
			i.Log("%v", err)
		default:
			heard, i.inv, i.fleet = time.Now(), nil, hb.Servers
			i.session.Client().UseServers(hb.Servers)
			i.session.Client().UseCache(hb.Cache)
			if hb.Interval > 0 {
				wait = time.Duration(hb.Interval) * time.Second
			}
			if hb.Desired.Image == "" || hb.Desired == given {
				break
			}
			err := i.carryOut(ctx, hb.Desired)
			if err == nil {
				return nil
			}
			if errors.Is(err, errQuarantined) { // kept by the server as what keeps the image from being installed
				i.tell(ctx, "install.refused", "image %s: %v", manifest.Short(hb.Desired.Image), err)
				given, activity = hb.Desired, err.Error()
				break
			}
			i.tell(ctx, "install.failed", "image %s: %v", manifest.Short(hb.Desired.Image), err)
			if errors.Is(err, install.ErrRefused) || errors.Is(err, errDisk) {
				given, activity = hb.Desired, "refused: "+err.Error()
				break
			}
			if tries++; tries >= maxTries {
				return err
			}
			activity = "trying again: " + err.Error()
		}
		i.Grant(wait + callTime)
		if pause.For(ctx, wait) != nil {
			return ctx.Err()
		}
	}
}

func (i *installer) report(activity string) *fleet.Report {
	return &fleet.Report{
		Stage: fleet.StageInstaller, BootID: i.bootID, Slots: i.slots, Activity: activity,
		Versions: map[string]string{"nodeagent": buildinfo.Version()}, Inventory: i.inv, Time: time.Now(),
	}
}

// tell says something on the console and to the server, as far as it hears.
func (i *installer) tell(ctx context.Context, kind, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	i.Log("%s", text)
	i.Grant(callTime)
	if err := i.session.Client().Events(ctx, api.NodeEvent{Kind: kind, Message: text}); err != nil {
		i.Log("warning: %v", err)
	}
}

// progress is told to the server now and then, and to the console by tenths.
func (i *installer) progress(ctx context.Context) install.Progress {
	tenth := 0
	return func(step string, percent int) {
		i.Grant(callTime)
		if percent/10 > tenth {
			tenth = percent / 10
			i.Log("installing: %d %% (%s)", percent, step)
		}
		if time.Since(i.told) < 2*time.Second {
			return
		}
		i.told = time.Now()
		r := i.report(fmt.Sprintf("installing %d %%: %s", percent, step))
		hctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if _, err := i.session.Client().Heartbeat(hctx, r); err != nil {
			i.Log("warning: %v", err)
		}
	}
}

// diskHost is the machine whose disks are installed on.
var diskHost = disk.Host{}
