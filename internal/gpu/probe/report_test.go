package probe

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/gpu/probe/smitest"
)

func TestMain(m *testing.M) {
	smitest.Main()
	os.Exit(m.Run())
}

const (
	h100 = "testdata/nvidia-smi/nvidia-h100-80gb-hbm3-590.48.01.txt"
	h200 = "testdata/nvidia-smi/nvidia-h200-mig-590.48.01.txt" // cut by MIG
)

// procs are the control groups and owners of the processes in the captures.
var procs = map[string]string{
	"proc/12249/cgroup": "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a1b2c3d_0001_0002_0003_0123456789ab.slice/cri-x.scope\n",
	"proc/12250/cgroup": "1:memory:/slurm/uid_1001/job_77/step_0\n",
	"proc/12267/cgroup": "0::/user.slice/user-1002.slice\n", "proc/12267/status": "Name:\tgpu_burn\nUid:\t1002\t1002\t1002\t1002\n",
	"proc/11327/cgroup": "0::/system.slice/x.service\n", "proc/11327/status": "Uid:\t0\t0\t0\t0\n",
	"proc/11328/cgroup": "0::/system.slice/slurmstepd.scope/job_5/step_0/user\n",
}

func TestReport(t *testing.T) {
	tests := []struct {
		name, path, phase string
		metrics           map[string]float64
		uses              []fleet.Use
		vbios             string
	}{
		{"idle", h100, "idle", map[string]float64{
			"gpu.0.temperature_celsius": 41, "gpu.0.temperature_margin_celsius": 46, "gpu.0.ecc_corrected_total": 0,
			"gpu.0.ecc_uncorrected_total": 0, "gpu.0.remapped_rows_total": 0,
		}, []fleet.Use{{Device: "0"}}, ""},
		{"at work", h100, "load", map[string]float64{
			"gpu.0.temperature_celsius": 59, "gpu.0.temperature_margin_celsius": 26, "gpu.0.sm_clock_megahertz": 1980,
			"gpu.0.power_watts": 631.95, "gpu.0.ecc_corrected_total": 0, "gpu.0.ecc_uncorrected_total": 0,
			"gpu.0.remapped_rows_total": 0, "gpu.0.pcie_width_lanes": 16, "gpu.0.pcie_generation": 5,
		}, []fleet.Use{{Device: "0", Occupied: true, Tenant: "job:5", Load: 1}}, ""},
		{"cut, idle", h200, "idle", map[string]float64{
			"gpu.0.temperature_celsius": 28, "gpu.0.temperature_margin_celsius": 59, "gpu.0.ecc_corrected_total": 0, "gpu.0.ecc_uncorrected_total": 0,
		}, []fleet.Use{
			{Device: "0/2/0", Profile: "1c.3g.71gb"}, {Device: "0/2/1", Profile: "2c.3g.71gb"},
			{Device: "0/3", Profile: "2g.35gb"}, {Device: "0/9", Profile: "1g.18gb"}, {Device: "0/10", Profile: "1g.18gb"},
		}, "96.00.A5.00.03"},
		{"cut, at work", h200, "load", map[string]float64{
			"gpu.0.temperature_celsius": 36, "gpu.0.temperature_margin_celsius": 46, "gpu.0.sm_clock_megahertz": 1980,
			"gpu.0.power_watts": 295.01, "gpu.0.ecc_corrected_total": 0, "gpu.0.ecc_uncorrected_total": 0,
			"gpu.0.pcie_width_lanes": 16, "gpu.0.pcie_generation": 5,
		}, []fleet.Use{
			{Device: "0/2/0", Profile: "1c.3g.71gb"}, {Device: "0/2/1", Profile: "2c.3g.71gb", Occupied: true, Tenant: "pod:0a1b2c3d-0001-0002-0003-0123456789ab"},
			{Device: "0/3", Profile: "2g.35gb"}, {Device: "0/9", Profile: "1g.18gb"}, {Device: "0/10", Profile: "1g.18gb"},
		}, "96.00.A5.00.03"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, procs, nil)
			l.SMI = smitest.Command(tt.path, tt.phase)
			metrics, uses, versions, err := l.Report(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.uses, uses); d != "" {
				t.Errorf("uses (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.metrics, metrics); d != "" {
				t.Errorf("metrics (-want +got):\n%s", d)
			}
			if got := versions["firmware.vbios"]; got == "" || tt.vbios != "" && got != tt.vbios {
				t.Errorf("VBIOS %q, want %q", got, tt.vbios)
			}
		})
	}
}

// TestReportOdd: answers that are not as they should be leave values out, and
// never give zeroes.
func TestReportOdd(t *testing.T) {
	tests := []struct {
		name  string
		edits []string
		field string // that is left out
	}{
		{"temperature without brackets", []string{"temperature.gpu=N/A"}, "gpu.0.temperature_celsius"},
		{"power not supported", []string{"power.draw=[Not Supported]"}, "gpu.0.power_watts"},
		{"unknown error", []string{"ecc.errors.uncorrected.volatile.total=[Unknown Error]"}, "gpu.0.ecc_uncorrected_total"},
		{"ERR!", []string{"power.draw=ERR!"}, "gpu.0.power_watts"},
		{"deprecated", []string{"clocks.sm=[Requested functionality has been deprecated]"}, "gpu.0.sm_clock_megahertz"},
		{"reset needed", []string{"temperature.gpu=[GPU requires reset]"}, "gpu.0.temperature_celsius"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, nil, nil)
			l.SMI = smitest.Command(h100, "load", tt.edits...)
			metrics, _, _, err := l.Report(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if v, ok := metrics[tt.field]; ok {
				t.Errorf("%s = %v, want it left out", tt.field, v)
			}
			if len(metrics) < 7 {
				t.Errorf("only %v is left", metrics)
			}
		})
	}
}

func FuzzParseDetails(f *testing.F) {
	for _, path := range []string{h100, h200} {
		c, err := smitest.New(path, "load")
		if err != nil {
			f.Fatal(err)
		}
		out, _ := c.Answer([]string{"-q"})
		f.Add(out)
	}
	f.Add("GPU 00000000:83:00.0\n    Processes\n        Process ID : 1\n        Process ID : 2\n    MIG Device\n        GPU Instance ID : 3\n")
	f.Fuzz(func(t *testing.T, out string) {
		for address := range parseDetails(out) {
			if address != filepath.Base(address) {
				t.Errorf("address %q", address)
			}
		}
	})
}

// TestReportHangs: a call that does not end is given up, and while a process
// of it lives no other one is started.
func TestReportHangs(t *testing.T) {
	l := newLab(t, nil, nil)
	l.SMI = []string{"/bin/sh", "-c", "sleep 300 & wait"}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, _, _, err := l.Report(ctx); !errors.Is(err, ErrUnknown) {
		t.Errorf("Report = %v, want that it cannot tell", err)
	}
	l.hangs.Store(true) // as one in state D leaves it
	l.SMI = []string{"/bin/sh", "-c", "touch " + l.log}
	if _, _, _, err := l.Report(t.Context()); !errors.Is(err, errHangs) {
		t.Errorf("Report = %v, want %v", err, errHangs)
	}
	if _, err := os.Stat(l.log); err == nil {
		t.Error("a second nvidia-smi was started beside one that hangs")
	}
}
