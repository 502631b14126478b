package fleet

// Diagnosis says in one word what a node's checks point to. What may be done
// about a node follows from it, so the five are kept apart.
type Diagnosis string

// The diagnoses.
const (
	DiagnosisHealthy     Diagnosis = "healthy"     // every required check passed
	DiagnosisSoftware    Diagnosis = "software"    // the image: fall back, count against a rollout
	DiagnosisHardware    Diagnosis = "hardware"    // the node: quarantine, keep the slot
	DiagnosisEnvironment Diagnosis = "environment" // cooling or power: keep node and slot, look at the rack
	DiagnosisUnknown     Diagnosis = "unknown"     // no check failed, but not all have passed: wait
)

// Diagnose looks at the required checks of rs. If checks of several classes
// fail, environment goes before hardware before software: a GPU that
// throttles or has fallen off the bus makes software checks fail too, and
// putting another image on it would not help.
func Diagnose(rs []CheckResult) Diagnosis {
	failed := map[FaultClass]bool{}
	for _, r := range rs {
		if r.Required && r.Status == CheckFailed {
			failed[r.Class] = true
		}
	}
	switch {
	case failed[FaultEnvironment]:
		return DiagnosisEnvironment
	case failed[FaultHardware]:
		return DiagnosisHardware
	case len(failed) > 0:
		return DiagnosisSoftware
	case Passed(rs):
		return DiagnosisHealthy
	}
	return DiagnosisUnknown
}

// BlamesImage reports whether an image may be held responsible. It may while
// nothing is known; it may not for trouble of the node or of its rack.
func (d Diagnosis) BlamesImage() bool {
	return d != DiagnosisHardware && d != DiagnosisEnvironment
}
