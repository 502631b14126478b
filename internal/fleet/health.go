package fleet

// CheckStatus is the outcome of one health check.
type CheckStatus string

// The outcomes of a health check. CheckUnknown (a time-out, a tool that is
// missing, a value that is not available) never counts as passed.
const (
	CheckPassed  CheckStatus = "passed"
	CheckFailed  CheckStatus = "failed"
	CheckUnknown CheckStatus = "unknown"
)

// FaultClass says what kind of trouble a failed check points to, and so what
// may be done about it. Only software faults are answered by a fallback to
// the other slot.
type FaultClass string

// The classes of fault.
const (
	FaultSoftware    FaultClass = "software"    // the image: fall back
	FaultHardware    FaultClass = "hardware"    // quarantine the node, keep the slot
	FaultEnvironment FaultClass = "environment" // cooling or power: keep the slot
)

// CheckResult is one run of one health check.
type CheckResult struct {
	Name     string      `json:"name"`
	Status   CheckStatus `json:"status"`
	Class    FaultClass  `json:"class"`
	Required bool        `json:"required"`         // gates the confirm
	Detail   string      `json:"detail,omitempty"` // one line: expected, seen
	Millis   int64       `json:"millis"`           // how long it took
}

// Passed reports whether every required check of rs passed. It is false for
// an empty list: nothing checked is nothing proven.
func Passed(rs []CheckResult) bool {
	for _, r := range rs {
		if r.Required && r.Status != CheckPassed {
			return false
		}
	}
	return len(rs) > 0
}

// FirstFailure returns the first required check of rs that did not pass.
func FirstFailure(rs []CheckResult) (CheckResult, bool) {
	for _, r := range rs {
		if r.Required && r.Status != CheckPassed {
			return r, true
		}
	}
	return CheckResult{}, false
}
