package fleet

import "time"

// Verdict is the server's judgement of one attestation. The zero value is
// "not accepted".
type Verdict struct {
	Accepted bool      `json:"accepted"`
	Image    string    `json:"image,omitempty"` // digest of the manifest it was judged against
	Path     string    `json:"path,omitempty"`  // boot path that matched: "disk", "network", "installer"
	Phase    string    `json:"phase,omitempty"` // PCR 11 phase that matched
	Bank     string    `json:"bank,omitempty"`  // "sha256"
	Findings []Finding `json:"findings,omitempty"`
	At       time.Time `json:"at"` // server clock
	BootID   string    `json:"bootID,omitempty"`
	Summary  string    `json:"summary"` // one sentence for a person
}

// Finding is one thing that was not as expected. Event numbers count from 0
// in the event log; Event is -1 where no single event can be named.
type Finding struct {
	Kind     string `json:"kind"`  // stable word for programs: "signature", "nonce", "selection", "empty-bank", "replay", "pcr-value", "event", "no-log", "truncated-log", …
	PCR      int    `json:"pcr"`   // -1 where it concerns none
	Event    int    `json:"event"` // index in the log, or -1
	What     string `json:"what"`  // the event for people: "EV_EFI_BOOT_SERVICES_APPLICATION (UKI)"
	Expected string `json:"expected,omitempty"`
	Seen     string `json:"seen,omitempty"`
	Detail   string `json:"detail"` // one sentence
}
