//go:build linux

package boot

import (
	"context"
	"os"
	"time"

	"github.com/turnout-project/turnout/internal/tpm/device"
)

// phasePCR is where boot phases are measured, after the sections of the UKI.
const phasePCR = 11

// tpmWait is how long a TPM may take to appear that the firmware announces,
// and noTPMWait one of which it says nothing.
const (
	tpmWait   = 10 * time.Second
	noTPMWait = 500 * time.Millisecond
)

// measure extends PCR 11 of every active bank with the name of a boot phase,
// the bare word, as systemd-pcrphase does. A machine without a TPM boots all
// the same; it is the server that will not accept it.
func (m *machine) measure(ctx context.Context, phase string) {
	wait := noTPMWait
	if _, err := os.Stat("/sys/firmware/acpi/tables/TPM2"); err == nil {
		wait = tpmWait
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	m.watchdog.Grant(phaseTime)
	d, err := device.Open(ctx)
	if err != nil {
		m.log("warning: boot phase %q is not measured: %v", phase, err)
		return
	}
	defer d.Close()
	if err := d.Extend(phasePCR, []byte(phase)); err != nil {
		m.log("warning: boot phase %q is not measured: %v", phase, err)
		return
	}
	m.log("PCR %d: %s", phasePCR, phase)
}
