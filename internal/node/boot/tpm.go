//go:build linux

package boot

import (
	"context"
	"time"

	"github.com/turnout-project/turnout/internal/tpm/device"
)

// phasePCR is where boot phases are measured, after the sections of the UKI.
const phasePCR = 11

// tpmWait is how long a TPM may take to appear.
const tpmWait = 10 * time.Second

// measure extends PCR 11 of every active bank with the name of a boot phase,
// the bare word, as systemd-pcrphase does. A machine without a TPM boots all
// the same; it is the server that will not accept it.
func (m *machine) measure(ctx context.Context, phase string) {
	ctx, cancel := context.WithTimeout(ctx, tpmWait)
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
