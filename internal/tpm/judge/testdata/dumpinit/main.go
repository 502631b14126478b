// Command dumpinit is the PID 1 of a machine that exists for one test: it
// measures the boot phases, has the TPM quote, prints what a node would send
// to a server as one line of JSON, and powers off.
package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/tpm/device"
	"github.com/turnout-project/turnout/internal/tpm/judge"
)

// Evidence is what the machine prints after the word EVIDENCE.
type Evidence struct {
	EK, AK, Nonce, Log     []byte
	Quote, Signature       []byte
	PCRs                   map[int][]byte // SHA-256
	Quote384, Signature384 []byte
	PCRs384                map[int][]byte
	TPM                    string
}

func main() {
	for _, m := range []struct{ what, where string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"securityfs", "/sys/kernel/security"},
	} {
		os.MkdirAll(m.where, 0o755)                //nolint:errcheck // the mount tells
		unix.Mount(m.what, m.where, m.what, 0, "") //nolint:errcheck // what needs it will tell
	}
	out, err := os.OpenFile("/dev/console", os.O_WRONLY, 0)
	if err != nil {
		out = os.Stdout
	}
	e, err := run()
	if err != nil {
		fmt.Fprintf(out, "\nFAILED %v\n", err)
	} else {
		b, _ := json.Marshal(e) //nolint:errcheck // plain data
		fmt.Fprintf(out, "\nEVIDENCE %s\n", b)
	}
	time.Sleep(200 * time.Millisecond)           // the serial line is slow
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF) //nolint:errcheck // nothing can be done
}

func run() (*Evidence, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	d, err := device.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer d.Close() //nolint:errcheck // the machine ends
	for _, word := range []string{"enter-initrd", "leave-initrd"} {
		if err := d.Extend(11, []byte(word)); err != nil {
			return nil, err
		}
	}
	var e Evidence
	cmdline, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return nil, err
	}
	for _, w := range strings.Fields(string(cmdline)) {
		if v, ok := strings.CutPrefix(w, "nonce="); ok {
			if e.Nonce, err = hex.DecodeString(v); err != nil {
				return nil, err
			}
		}
	}
	info, err := d.Info()
	if err != nil {
		return nil, err
	}
	e.TPM = info.String()
	ek, err := d.EK()
	if err != nil {
		return nil, err
	}
	e.EK = ek.Public
	if e.AK, err = d.AK(); err != nil {
		return nil, err
	}
	if e.Log, err = device.EventLog(); err != nil {
		return nil, err
	}
	q, err := d.Quote(e.Nonce, "sha256", judge.Selection)
	if err != nil {
		return nil, err
	}
	e.Quote, e.Signature, e.PCRs = q.Quote, q.Signature, q.PCRs
	q, err = d.Quote(e.Nonce, "sha384", judge.Selection)
	if err != nil {
		return nil, err
	}
	e.Quote384, e.Signature384, e.PCRs384 = q.Quote, q.Signature, q.PCRs
	return &e, nil
}
