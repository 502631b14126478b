// Command attest measures what verifying one attestation costs: with Turnout,
// and with go-attestation on the same inputs in the same run. It is a module
// of its own, so that go-attestation is no dependency of Turnout.
//
// Inputs are real event logs (the test data of go-attestation and
// go-eventlog), each with a quote that a software key signs over the values
// that the log leads to. One verification is: the quote's signature, nonce,
// selection and values; the log, parsed; its replay held against every quoted
// value. Turnout also judges what it read against a manifest, and accepts it,
// which go-attestation has no part in. Nothing but the keys is remembered from
// one verification to the next.
//
// The two verifiers take turns, and of each the fastest turn counts: what else
// the machine does only ever makes a turn slower.
//
//	cd bench/attest && go run . [-turns 20] [-for 20ms]
package main

import (
	"crypto"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/google/go-attestation/attest"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/tpm/judge"
	"github.com/turnout-project/turnout/internal/tpm/measure"
	"github.com/turnout-project/turnout/internal/tpm/quote"
	"github.com/turnout-project/turnout/internal/tpm/softtpm"
)

func main() {
	each := flag.Duration("for", 20*time.Millisecond, "how long a turn takes")
	turns := flag.Int("turns", 20, "turns of each verifier with each log")
	flag.Parse()
	runtime.GOMAXPROCS(1) // figures are per core
	files, err := logs()
	if err != nil {
		fail(err)
	}
	fmt.Printf("%-44s %6s %12s %12s %6s %10s %10s\n", "log", "KB", "turnout/s", "go-attest/s", "ratio", "B/verif.", "B/go-att.")
	product, n := 1.0, 0
	for _, f := range files {
		in, err := newInput(f)
		if err != nil {
			fmt.Printf("%-44s left out: %v\n", filepath.Base(f), err)
			continue
		}
		var ours, theirs cost
		for range *turns {
			ours.turn(*each, in.turnout)
			theirs.turn(*each, in.goAttestation)
		}
		ratio := theirs.time / ours.time
		product, n = product*ratio, n+1
		fmt.Printf("%-44s %6.1f %12.0f %12.0f %6.2f %10d %10d\n", filepath.Base(f), float64(len(in.log))/1000,
			1/ours.time, 1/theirs.time, ratio, ours.bytes, theirs.bytes)
	}
	if n == 0 {
		fail(fmt.Errorf("no log could be used"))
	}
	fmt.Printf("geometric mean of the ratio: %.2f over %d logs\n", root(product, n), n)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "attest:", err)
	os.Exit(1)
}

// cost is what one verification takes, in seconds and bytes allocated.
type cost struct {
	time  float64
	bytes uint64
}

// turn verifies again and again for a while, and keeps what it cost if it
// never cost less.
func (c *cost) turn(d time.Duration, verify func() error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	n, began, took := uint64(0), time.Now(), time.Duration(0)
	for ; took < d; took = time.Since(began) {
		for range 10 {
			if err := verify(); err != nil {
				fail(err)
			}
			n++
		}
	}
	runtime.ReadMemStats(&after)
	if each := took.Seconds() / float64(n); c.time == 0 || each < c.time {
		c.time, c.bytes = each, (after.TotalAlloc-before.TotalAlloc)/n
	}
}

// root is the n-th root, by bisection.
func root(x float64, n int) float64 {
	lo, hi := 0.0, max(x, 1)
	for range 200 {
		mid, p := (lo+hi)/2, 1.0
		for range n {
			p *= mid
		}
		if p < x {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

// logs finds the event logs of more than 14 KB with a SHA-256 bank.
func logs() ([]string, error) {
	var out []string
	for module, glob := range map[string]string{
		"github.com/google/go-eventlog@v0.0.2":    "testdata/eventlogs/tpm/*.bin",
		"github.com/google/go-attestation@v0.6.4": "attest/testdata/*eventlog",
	} {
		b, err := exec.Command("go", "mod", "download", "-json", module).Output()
		var m struct{ Dir string }
		if err != nil || json.Unmarshal(b, &m) != nil {
			return nil, fmt.Errorf("fetching %s: %w", module, err)
		}
		found, err := filepath.Glob(filepath.Join(m.Dir, glob))
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	slices.Sort(out)
	return out, nil
}

// input is one attestation.
type input struct {
	ak, nonce, quote, sig, log []byte
	pcrs                       map[int][]byte
	manifest                   manifest.Manifest
	theirs                     *attest.AKPublic // parsed once: Turnout remembers keys too
}

func newInput(file string) (*input, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if len(raw) < 14000 {
		return nil, fmt.Errorf("only %d bytes", len(raw))
	}
	tpm, err := softtpm.New()
	if err != nil {
		return nil, err
	}
	in := &input{ak: tpm.AK(), nonce: make([]byte, 32), log: raw}
	rand.Read(in.nonce) //nolint:errcheck // never fails
	if in.pcrs, in.manifest.Measurements, err = softtpm.Boot(raw); err != nil {
		return nil, err
	}
	if in.quote, in.sig, err = tpm.Quote(in.nonce, in.pcrs); err != nil {
		return nil, err
	}
	if in.theirs, err = attest.ParseAKPublic(in.ak[2:]); err != nil {
		return nil, err
	}
	if err := in.turnout(); err != nil {
		return nil, err
	}
	if err := in.goAttestation(); err != nil {
		return nil, fmt.Errorf("go-attestation: %w", err)
	}
	return in, nil
}

// turnout verifies with Turnout.
func (in *input) turnout() error {
	a, err := quote.Verify(quote.Expect{AK: in.ak, Nonce: in.nonce, Bank: "sha256", PCRs: judge.Selection}, in.quote, in.sig, in.pcrs)
	if err != nil {
		return err
	}
	v := judge.Judge(judge.Input{Manifest: &in.manifest, Path: measure.PathDisk, Stage: fleet.StageSystem, Bank: "sha256", PCRs: a.PCRs, Log: in.log})
	if !v.Accepted {
		return errors.New(v.Summary)
	}
	return nil
}

// goAttestation verifies with go-attestation.
func (in *input) goAttestation() error {
	var pcrs []attest.PCR
	for _, p := range judge.Selection {
		pcrs = append(pcrs, attest.PCR{Index: p, Digest: in.pcrs[p], DigestAlg: crypto.SHA256})
	}
	if err := in.theirs.Verify(attest.Quote{Quote: in.quote, Signature: in.sig}, pcrs, in.nonce); err != nil {
		return err
	}
	log, err := attest.ParseEventLog(in.log)
	if err != nil {
		return err
	}
	// PCR 11 went on after the log; go-attestation has no notion of that.
	_, err = log.Verify(slices.DeleteFunc(pcrs, func(p attest.PCR) bool { return p.Index == 11 }))
	return err
}
