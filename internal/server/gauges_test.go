package server_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/gpu/probe"
	"github.com/turnout-project/turnout/internal/gpu/probe/smitest"
	"github.com/turnout-project/turnout/internal/node/gauges"
	"github.com/turnout-project/turnout/internal/server"
)

func TestMain(m *testing.M) {
	smitest.Main()
	os.Exit(m.Run())
}

// TestMeasured lets nodes measure themselves as the agent does, by captured
// answers of real GPUs, and looks at what the fleet makes of it: the slow one
// of them is named, hours are counted, and the driver is listed.
func TestMeasured(t *testing.T) {
	l := newLab(t, func(o *server.Options) { o.NodeCert = 1000 * 24 * time.Hour })
	image := l.publish("1.0.0")
	root := t.TempDir()
	for name, text := range map[string]string{
		"sys/bus/pci/devices/0000:83:00.0/vendor": "0x10de", "sys/bus/pci/devices/0000:83:00.0/class": "0x030200",
		"sys/module/nvidia/version": "590.48.01", "proc/12249/cgroup": "0::/system.slice/slurmstepd.scope/job_77/step_0\n",
	} {
		l.must(os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		l.must(os.WriteFile(filepath.Join(root, name), []byte(text), 0o644))
	}
	var nodes []*machine
	for n := range 6 {
		var edits []string
		if n == 3 {
			edits = []string{"clocks.sm=1410"}
		}
		m := l.ready(n+1, "rack", image)
		r := gauges.Reader{Machine: probe.Machine{Root: root, SMI: smitest.Command("../gpu/probe/testdata/nvidia-smi/nvidia-h200-mig-590.48.01.txt", "load", edits...)}}
		s, err := r.Read(ctx)
		l.must(err)
		m.report.Metrics, m.report.Usage, m.report.Versions = s.Metrics, s.Uses, s.Versions
		nodes = append(nodes, m)
	}
	seen := server.NothingOutlying()
	begin := l.clock.now().UTC()
	for range 10 {
		for _, m := range nodes {
			m.beat()
		}
		l.must(l.srv.ComparePeers(ctx, seen))
		l.must(l.srv.CountUsageOnce(ctx))
		l.clock.add(time.Minute)
	}
	out := l.events("node.outlier")
	if len(out) != 1 || !strings.Contains(out[0], "gpu.0.sm_clock_megahertz is 1410") {
		t.Errorf("outliers: %q, want the clock of one node", out)
	}
	from := begin.Truncate(time.Hour)
	rows, err := l.view.Usage(ctx, from, from.Add(2*time.Hour), "all", "")
	l.must(err)
	hours := map[string]float64{}
	for _, r := range rows {
		hours[r.Profile+" "+r.Tenant] += r.Occupied + r.Free
	}
	// Six nodes, nine minutes: the first sample stands for no time.
	for what, want := range map[string]float64{"2c.3g.71gb job:77": 0.9, "1g.18gb ": 1.8, "2g.35gb ": 0.9} {
		if d := hours[what] - want; d < -0.01 || d > 0.01 {
			t.Errorf("%q had %.2f hours, want %.2f; all: %v", what, hours[what], want, hours)
		}
	}
	all, err := l.view.Nodes(ctx)
	l.must(err)
	if len(all) != 6 || slices.ContainsFunc(all, func(n fleet.Node) bool { return n.Reported.Versions["driver"] != "590.48.01" }) {
		t.Errorf("%d nodes, not all with the driver's version", len(all))
	}
}
