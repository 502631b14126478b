package health

import (
	"slices"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

func TestSoak(t *testing.T) {
	pass := []fleet.CheckResult{{Name: "a", Status: fleet.CheckPassed, Required: true, Class: fleet.FaultSoftware}}
	soft := []fleet.CheckResult{{Name: "a", Status: fleet.CheckFailed, Required: true, Class: fleet.FaultSoftware}}
	hard := []fleet.CheckResult{
		{Name: "ecc", Status: fleet.CheckFailed, Required: true, Class: fleet.FaultHardware},
	}
	both := append(slices.Clone(soft), hard...)
	type step struct {
		at int // seconds
		rs []fleet.CheckResult
	}
	tests := []struct {
		name    string
		steps   []step
		soaked  bool
		failing time.Duration // -1: no software check fails
	}{
		{"one pass is not a soak", []step{{0, pass}}, false, -1},
		{"passes for the whole soak", []step{{0, pass}, {5, pass}, {10, pass}}, true, -1},
		{"not long enough", []step{{0, pass}, {9, pass}}, false, -1},
		{"a failure starts it anew", []step{{0, pass}, {8, soft}, {11, pass}, {20, pass}}, false, -1},
		{"fails from the start", []step{{0, soft}, {40, soft}}, false, 40 * time.Second},
		{"comes and goes", []step{{0, soft}, {5, pass}, {40, soft}}, false, 40 * time.Second},
		{"a full soak forgives", []step{{0, soft}, {5, pass}, {15, pass}, {40, soft}}, false, 0},
		{"hardware is not software", []step{{0, hard}, {40, hard}}, false, -1},
		{"software beside hardware is hardware", []step{{0, both}, {40, both}}, false, -1},
		{"nothing checked", []step{{0, nil}, {40, nil}}, false, -1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			start := time.Now()
			s := Soak{Need: 10 * time.Second}
			var now time.Time
			for _, st := range tt.steps {
				now = start.Add(time.Duration(st.at) * time.Second)
				s.Observe(now, st.rs)
			}
			if s.Soaked() != tt.soaked {
				t.Errorf("Soaked() = %v, want %v", s.Soaked(), tt.soaked)
			}
			_, d, ok := s.Failing(now)
			if !ok {
				d = -1
			}
			if d != tt.failing {
				t.Errorf("Failing() = %v, want %v", d, tt.failing)
			}
		})
	}
}
