package main

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"text/tabwriter"

	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/tpm/emulator"
)

// booted is the text by which a console tells that the system is up: PCR 11
// has its last value by then.
const booted = "Reached target multi-user.target"

// finalPhase is the boot phase of a system that is up.
const finalPhase = "enter-initrd:leave-initrd"

// pcrCheck is one PCR of one bank, as predicted and as seen.
type pcrCheck struct {
	Bank     string `json:"bank"`
	PCR      int    `json:"pcr"`
	Expected string `json:"expected"`
	Seen     string `json:"seen"`
	OK       bool   `json:"ok"`
}

// errMeasured is wrapped when a machine measures otherwise than predicted.
var errMeasured = errors.New("measured boot")

var hashes = []struct {
	bank string
	new  func() hash.Hash
}{{"sha256", sha256.New}, {"sha384", sha512.New384}}

// attestRun compares what a machine's TPM holds with what the image predicts
// for a boot from disk without Secure Boot.
func attestRun(w io.Writer, tpm, architecture string, m *manifest.Measurements) error {
	var checks []pcrCheck
	final := finalPhase
	if architecture == "arm64" {
		final = "" // see noDriver
	}
	for _, h := range hashes {
		seen, err := emulator.ReadPCRs(tpm, h.bank, []int{4, 11, 12, 13})
		if err != nil {
			return err
		}
		c, err := comparePCRs(m, final, h.bank, h.new, seen)
		if err != nil {
			return err
		}
		checks = append(checks, c...)
	}
	if err := showPCRs(w, checks); err != nil || final == finalPhase {
		return err
	}
	_, err := fmt.Fprintln(w, noDriver)
	return err
}

// noDriver is what cannot be seen of arm64 images in QEMU. Debian's arm64
// kernels are built without CONFIG_TCG_TIS, and QEMU's arm64 machines have
// no other TPM.
const noDriver = "PCR 11 is that before userspace: Debian's arm64 kernels have no driver for the TPM of QEMU's arm64 machine, so the boot phases are not measured here"

func comparePCRs(m *manifest.Measurements, final, bank string, newHash func() hash.Hash, seen map[int][]byte) ([]pcrCheck, error) {
	want := map[int][]string{}
	for _, p := range m.Paths {
		if p.Name == "disk" {
			want[4] = append(want[4], p.PCR4[bank])
		}
	}
	for _, p := range m.PCR11 {
		if p.Phase == final {
			want[11] = append(want[11], p.PCR[bank])
		}
	}
	zero := make([]byte, newHash().Size())
	want[12], want[13] = []string{hex.EncodeToString(zero)}, []string{hex.EncodeToString(zero)}
	if d := m.Cmdline[bank]; d != "" { // systemd-boot 252 and 254 measure it once, the stub of 252 once more
		event, err := hex.DecodeString(d)
		if err != nil {
			return nil, fmt.Errorf("the image's manifest: digest of the command line: %w", err)
		}
		v := zero
		for range 2 {
			h := newHash()
			h.Write(v)
			h.Write(event)
			v = h.Sum(nil)
			want[12] = append(want[12], hex.EncodeToString(v))
		}
	}
	var out []pcrCheck
	for _, pcr := range []int{4, 11, 12, 13} {
		if len(want[pcr]) == 0 || want[pcr][0] == "" {
			return nil, fmt.Errorf("the image predicts no value of PCR %d in the bank %s", pcr, bank)
		}
		c := pcrCheck{Bank: bank, PCR: pcr, Expected: want[pcr][0], Seen: hex.EncodeToString(seen[pcr])}
		for _, w := range want[pcr] {
			if w == c.Seen {
				c.Expected, c.OK = w, true
			}
		}
		out = append(out, c)
	}
	return out, nil
}

// showPCRs prints the comparison; a difference is an error.
func showPCRs(w io.Writer, checks []pcrCheck) error {
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "BANK\tPCR\tPREDICTED\tSEEN\t")
	bad := 0
	for _, c := range checks {
		word := "as predicted"
		if !c.OK {
			word, bad = "DIFFERS", bad+1
		}
		fmt.Fprintf(t, "%s\t%d\t%.24s…\t%.24s…\t%s\n", c.Bank, c.PCR, c.Expected, c.Seen, word)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if _, err := w.Write(b.Bytes()); err != nil {
		return err
	}
	if bad > 0 {
		return fmt.Errorf("%w: %d PCRs are not as predicted: nodes that boot this image would be refused", errMeasured, bad)
	}
	return nil
}
