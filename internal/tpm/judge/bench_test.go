package judge_test

import (
	"encoding/base64"
	"testing"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/tpm/judge"
	"github.com/turnout-project/turnout/internal/tpm/quote"
)

// What one attestation costs the server: a quote and a verdict.
func BenchmarkAttestation(b *testing.B) {
	f, log := readFixture(b, "ovmf-stub252-disk")
	unb64 := func(s string) []byte {
		out, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			b.Fatal(err)
		}
		return out
	}
	want := quote.Expect{AK: unb64(f.AK), Nonce: unb64(f.Nonce), Bank: "sha256", PCRs: judge.Selection}
	q, sig, pcrs, m := unb64(f.Quote), unb64(f.Signature), values(b, f.PCRs), f.manifest()
	for b.Loop() {
		a, err := quote.Verify(want, q, sig, pcrs)
		if err != nil {
			b.Fatal(err)
		}
		if v := judge.Judge(judge.Input{Manifest: m, Path: f.Path, Stage: fleet.StageSystem, Bank: "sha256", PCRs: a.PCRs, Log: log}); !v.Accepted {
			b.Fatal(v.Summary)
		}
	}
}
