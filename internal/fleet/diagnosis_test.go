package fleet

import "testing"

func TestDiagnose(t *testing.T) {
	check := func(c FaultClass, s CheckStatus, required bool) CheckResult {
		return CheckResult{Name: "x", Class: c, Status: s, Required: required}
	}
	for _, c := range []struct {
		name   string
		checks []CheckResult
		want   Diagnosis
		blames bool
	}{
		{"nothing checked", nil, DiagnosisUnknown, true},
		{"passed", []CheckResult{check(FaultSoftware, CheckPassed, true)}, DiagnosisHealthy, true},
		{"a check gives no answer", []CheckResult{check(FaultHardware, CheckUnknown, true), check(FaultSoftware, CheckPassed, true)}, DiagnosisUnknown, true},
		{"software", []CheckResult{check(FaultSoftware, CheckFailed, true)}, DiagnosisSoftware, true},
		{"no class", []CheckResult{check("", CheckFailed, true)}, DiagnosisSoftware, true},
		{"hardware", []CheckResult{check(FaultHardware, CheckFailed, true)}, DiagnosisHardware, false},
		{"hardware and what comes of it", []CheckResult{check(FaultSoftware, CheckFailed, true), check(FaultHardware, CheckFailed, true)}, DiagnosisHardware, false},
		{"heat and what comes of it", []CheckResult{check(FaultHardware, CheckFailed, true), check(FaultEnvironment, CheckFailed, true)}, DiagnosisEnvironment, false},
		{"heat that gates nothing", []CheckResult{check(FaultEnvironment, CheckFailed, false), check(FaultSoftware, CheckPassed, true)}, DiagnosisHealthy, true},
	} {
		got := Diagnose(c.checks)
		if got != c.want || got.BlamesImage() != c.blames {
			t.Errorf("%s: %s, blames the image: %v; want %s, %v", c.name, got, got.BlamesImage(), c.want, c.blames)
		}
	}
}
