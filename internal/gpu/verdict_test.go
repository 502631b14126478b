package gpu

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/gpu/probe"
	"github.com/turnout-project/turnout/internal/gpu/probe/smitest"
)

func TestMain(m *testing.M) {
	smitest.Main()
	os.Exit(m.Run())
}

const (
	h100 = "probe/testdata/nvidia-smi/nvidia-h100-80gb-hbm3-590.48.01.txt"
	h200 = "probe/testdata/nvidia-smi/nvidia-h200-mig-590.48.01.txt" // cut by MIG
)

// TestVerdicts gives whole machines to all checks of an image, by what real
// drivers answered, changed in one place each, and looks at the verdict: whose
// fault it is decides whether a slot is given up.
func TestVerdicts(t *testing.T) {
	type files map[string]string
	const xid = "3,1042,5021,-;NVRM: Xid (PCI:0000:00:09): "
	dead := func(line string) []string { return []string{"/bin/sh", "-c", "echo '" + line + "'; exit 15"} }
	mig := &probe.MIG{Tool: "nvidia-smi", Layout: "x", Entries: []probe.Entry{{Profiles: map[string]int{"1c.3g.71gb": 1, "2c.3g.71gb": 1, "2g.35gb": 1, "1g.18gb": 2}}}}
	tests := []struct {
		name, capture, phase string
		edits                []string
		files                files
		smi                  []string
		edit                 func(*probe.Config)
		want                 fleet.Diagnosis
		failed               string // check that says so
	}{
		{name: "H100, idle at 345 MHz", capture: h100, phase: "idle", want: "healthy"},
		{name: "H100, at work", capture: h100, phase: "load", want: "healthy"},
		{name: "H200 in MIG mode: no utilisation, no remapped rows", capture: h200, phase: "idle", edit: func(c *probe.Config) { c.MIG = mig }, want: "healthy"},
		{name: "H200 in MIG mode, at work", capture: h200, phase: "load", edit: func(c *probe.Config) { c.MIG = mig }, want: "healthy"},

		{name: "module of another version", capture: h100, phase: "idle", files: files{"sys/module/nvidia/version": "590.48.02\n"}, want: "software", failed: "driver"},
		{name: "no module", files: files{"sys/module/nvidia/version": "-"}, smi: dead("NVIDIA-SMI has failed because it couldn\\047t communicate with the NVIDIA driver."), want: "software", failed: "driver"},
		{name: "libraries of another version", smi: dead("Failed to initialize NVML: Driver/library version mismatch"), want: "software", failed: "driver"},
		{name: "MIG off", capture: h100, phase: "idle", edit: func(c *probe.Config) { c.MIG = mig }, want: "software", failed: "mig"},
		{name: "MIG waits for a reset", capture: h200, phase: "idle", edits: []string{"mig.mode.pending=Disabled"}, edit: func(c *probe.Config) { c.MIG = mig }, want: "software", failed: "mig"},
		{name: "low clock at work without a reason", capture: h100, phase: "load", edits: []string{"q:Clocks/SM=1200 MHz"}, edit: func(c *probe.Config) { c.Clocks.GPU = "1980" }, want: "software", failed: "clocks"},
		{name: "low clock, power cap", capture: h100, phase: "load", edits: []string{"q:Clocks/SM=1200 MHz", "q:SW Power Cap=Active"}, edit: func(c *probe.Config) { c.Clocks.GPU = "1980" }, want: "healthy"},
		{name: "low clock, idle", capture: h100, phase: "idle", edit: func(c *probe.Config) { c.Clocks.GPU = "1980" }, want: "healthy"},
		{name: "GSP does not answer", capture: h100, phase: "idle", files: files{"dev/kmsg": xid + "119, pid=2001, name=x, Timeout after 6s of waiting for RPC response from GPU0 GSP!\n"}, want: "software", failed: "xid-driver"},
		{name: "fabric not there", capture: h100, phase: "idle", edits: []string{"fabric.state=Not Supported"}, edit: func(c *probe.Config) { c.Fabric = true }, want: "unknown"},

		{name: "GPU lost, one line in place of a table", smi: dead("Unable to determine the device handle for GPU 0000:00:09.0: Unknown Error"), want: "hardware", failed: "gpus"},
		{name: "GPU lost, no blank", smi: dead("Unable to determine the device handle for GPU0000:00:09.0: Unknown Error"), want: "hardware", failed: "gpus"},
		{name: "GPU is lost", smi: dead("Unable to determine the device handle for GPU 0000:00:09.0: GPU is lost.  Reboot the system to recover this GPU"), want: "hardware", failed: "gpus"},
		{name: "off the bus, no Xid", smi: dead("No devices were found"), files: files{"dev/kmsg": "3,9,9,-;NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:2330) installed in this system has fallen off the bus and is not responding to commands.\n"}, want: "hardware", failed: "xid"},
		{name: "an empty table", smi: []string{"/bin/true"}, want: "hardware", failed: "gpus"},
		{name: "seven of eight", capture: h100, phase: "idle", edit: func(c *probe.Config) { c.Count = 8 }, want: "hardware", failed: "gpus"},
		{name: "Xid 79", capture: h100, phase: "idle", files: files{"dev/kmsg": xid + "79, pid=1234, name=python, GPU has fallen off the bus.\n"}, want: "hardware", failed: "xid"},
		{name: "Xid 48 without a process", capture: h100, phase: "idle", files: files{"dev/kmsg": xid + "48, DBE (double bit error)\n"}, want: "hardware", failed: "xid"},
		{name: "Xid of an application", capture: h100, phase: "idle", files: files{"dev/kmsg": xid + "31, pid=1, name=x, MMU Fault\n" + xid + "69, x\n" + xid + "94, x\n"}, want: "healthy"},
		{name: "Xid that nobody explained", capture: h100, phase: "idle", files: files{"dev/kmsg": xid + "171, x\n"}, want: "healthy"},
		{name: "the driver announces a reset", capture: h100, phase: "idle", files: files{"dev/kmsg": xid + "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)\n"}, want: "hardware", failed: "xid"},
		{name: "and takes it back", capture: h100, phase: "idle", files: files{"dev/kmsg": xid + "62, x\n" + xid + "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)\n"}, want: "healthy"},
		{name: "recovery wanted", capture: h100, phase: "idle", edits: []string{"q:GPU Recovery Action=Reset"}, want: "hardware", failed: "recovery"},
		{name: "driver without recovery actions", capture: h100, phase: "idle", edits: []string{"q:GPU Recovery Action=N/A"}, want: "healthy"},
		{name: "remapping failed", capture: h100, phase: "idle", edits: []string{"q:Remapping Failure Occurred=Yes"}, want: "hardware", failed: "remap"},
		{name: "remapping waits for a reset", capture: h100, phase: "idle", edits: []string{"q:Remapped Rows/Pending=Yes"}, want: "hardware", failed: "remap"},
		{name: "eight lanes of sixteen", capture: h100, phase: "idle", edits: []string{"pcie.link.width.current=8"}, want: "hardware", failed: "link"},
		{name: "generation 3 at work", capture: h100, phase: "load", edits: []string{"pcie.link.gen.current=3"}, want: "hardware", failed: "link"},
		{name: "generation 1, idle", capture: h100, phase: "idle", edits: []string{"pcie.link.gen.current=1"}, want: "healthy"},
		{name: "ECC off", capture: h100, phase: "idle", edits: []string{"ecc.mode.current=Disabled"}, edit: func(c *probe.Config) { c.ECC = "on" }, want: "hardware", failed: "ecc"},
		{name: "ECC not known", capture: h100, phase: "idle", edits: []string{"ecc.mode.current=[N/A]"}, edit: func(c *probe.Config) { c.ECC = "on" }, want: "unknown"},
		{name: "ECC not supported", capture: h100, phase: "idle", edits: []string{"ecc.mode.current=[Not Supported]"}, edit: func(c *probe.Config) { c.ECC = "on" }, want: "unknown"},
		{name: "ECC unknown error", capture: h100, phase: "idle", edits: []string{"ecc.mode.current=[Unknown Error]"}, edit: func(c *probe.Config) { c.ECC = "on" }, want: "unknown"},

		{name: "too hot", capture: h100, phase: "load", edits: []string{"q:HW Thermal Slowdown=Active"}, want: "environment", failed: "throttle"},
		{name: "margin used up", capture: h100, phase: "load", edits: []string{"q:GPU T.Limit Temp=-5 C"}, want: "environment", failed: "throttle"},
		{name: "margin small", capture: h100, phase: "load", edits: []string{"q:GPU T.Limit Temp=0 C"}, want: "healthy"},
		{name: "power brake", capture: h100, phase: "load", edits: []string{"q:HW Power Brake Slowdown=Active"}, want: "environment", failed: "throttle"},
		{name: "a slowdown that may be a change of state", capture: h100, phase: "load", edits: []string{"q:HW Slowdown=Active"}, want: "healthy"},
		{name: "power limit not known", capture: h100, phase: "idle", edits: []string{"power.limit=ERR!"}, edit: func(c *probe.Config) { c.Clocks.Power = 700 }, want: "unknown"},
		{name: "too hot, and a GPU is lost", capture: h100, phase: "load", edits: []string{"q:HW Thermal Slowdown=Active"}, edit: func(c *probe.Config) { c.Count = 8 }, want: "environment", failed: "throttle"},

		{name: "no nvidia-smi", smi: []string{"no-such-nvidia-smi"}, want: "unknown"},
		{name: "no kernel log", capture: h100, phase: "idle", files: files{"dev/kmsg": "-"}, want: "unknown"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			all := files{"sys/module/nvidia/version": "590.48.01\n", "dev/kmsg": ""}
			for name, text := range tt.files {
				all[name] = text
			}
			for name, text := range all {
				path := filepath.Join(root, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if text == "-" {
					continue
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			m := &probe.Machine{Root: root, SMI: tt.smi}
			if tt.smi == nil {
				m.SMI = smitest.Command(tt.capture, tt.phase, tt.edits...)
			}
			c := &probe.Config{Driver: "590.48.01", Count: 1, Watch: true}
			if tt.edit != nil {
				tt.edit(c)
			}
			var rs []fleet.CheckResult
			said := map[string]error{}
			for _, name := range probe.Names(c) {
				_, err := m.Check(t.Context(), c, name)
				r := fleet.CheckResult{Name: name, Class: fleet.FaultClass(classes[name]), Required: true, Status: fleet.CheckPassed}
				switch {
				case errors.Is(err, probe.ErrUnknown):
					r.Status = fleet.CheckUnknown
				case err != nil:
					r.Status = fleet.CheckFailed
				}
				said[name] = err
				rs = append(rs, r)
			}
			if got := fleet.Diagnose(rs); got != tt.want {
				t.Errorf("verdict %s, want %s: %v", got, tt.want, said)
			}
			if tt.failed != "" && (said[tt.failed] == nil || errors.Is(said[tt.failed], probe.ErrUnknown)) {
				t.Errorf("%s says %v, want that it fails", tt.failed, said[tt.failed])
			}
		})
	}
}
