package swtpm

import (
	"testing"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport/linuxudstpm"

	"github.com/turnout-project/turnout/internal/tpm/eventlog"
)

// Play does to the TPM what the firmware that wrote a log did, then extends
// PCR 11 with the words of a boot phase, in every bank of the log.
func (t *TPM) Play(tb testing.TB, log *eventlog.Log, words ...string) {
	tb.Helper()
	c, err := linuxudstpm.Open(t.Socket)
	if err != nil {
		tb.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // nothing is written at close
	extend := func(pcr int, digests []eventlog.Digest) {
		tb.Helper()
		var list []tpm2.TPMTHA
		for _, d := range digests {
			list = append(list, tpm2.TPMTHA{HashAlg: tpm2.TPMAlgID(d.ID), Digest: d.Value})
		}
		_, err := tpm2.PCRExtend{
			PCRHandle: tpm2.AuthHandle{Handle: tpm2.TPMHandle(pcr), Auth: tpm2.PasswordAuth(nil)},
			Digests:   tpm2.TPMLDigestValues{Digests: list},
		}.Execute(c)
		if err != nil {
			tb.Fatalf("extending PCR %d: %v", pcr, err)
		}
	}
	for _, e := range log.Events {
		if e.Extends() {
			extend(e.PCR, e.Digests)
		}
	}
	for _, w := range words {
		var ds []eventlog.Digest
		for _, a := range log.Algorithms {
			if eventlog.Size(a.Bank()) > 0 {
				ds = append(ds, eventlog.Digest{ID: a.ID, Value: eventlog.Hash(a.Bank(), []byte(w))})
			}
		}
		extend(11, ds)
	}
}
