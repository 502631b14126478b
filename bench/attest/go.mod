module github.com/turnout-project/turnout/bench/attest

go 1.26.8

require (
	github.com/google/go-attestation v0.6.4
	github.com/google/go-tpm v0.9.8
	github.com/turnout-project/turnout v0.0.0
)

require golang.org/x/sys v0.50.0 // indirect

replace github.com/turnout-project/turnout => ../..
