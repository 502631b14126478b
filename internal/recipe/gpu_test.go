package recipe

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const gpuNode = minimal + `driver:
  family: nvidia
  flavour: open
  version: 535.261.03
  packages: [nvidia-smi]
gpu:
  boards: [h100-sxm-80gb, a100-sxm-80gb]
  count: 8
  mig:
    layouts:
      - name: serving
        gpus:
          - {board: h100-sxm-80gb, devices: [0, 1], profiles: {3g.40gb: 1, 1g.10gb: 4}}
          - {devices: [2]}
  device_plugin: {strategy: mixed}
  sharing: {mode: time-slicing, resources: [{name: nvidia.com/mig-1g.10gb, replicas: 4}]}
  nvreg: {NVreg_RestrictProfilingToAdminUsers: "0"}
egress:
  policy: deny
  allow:
    - {name: server, to: ["10.1.2.3", "fd00::/8"], ports: [8443]}
`

func TestGPUSections(t *testing.T) {
	r, err := load(t, gpuNode)
	if err != nil {
		t.Fatal(err)
	}
	want := GPU{
		Boards: []string{"h100-sxm-80gb", "a100-sxm-80gb"}, Count: 8,
		MIG: MIG{Tool: "mig-parted", Layouts: []MIGLayout{{Name: "serving", GPUs: []MIGEntry{
			{Board: "h100-sxm-80gb", Devices: []int{0, 1}, Profiles: map[string]int{"3g.40gb": 1, "1g.10gb": 4}},
			{Devices: []int{2}},
		}}}},
		DevicePlugin: DevicePlugin{Strategy: "mixed", DeviceList: "envvar", DeviceID: "uuid"},
		Sharing:      Sharing{Mode: "time-slicing", OneEach: true, Resources: []SharedDevices{{"nvidia.com/mig-1g.10gb", 4}}},
		NVReg:        map[string]string{"NVreg_RestrictProfilingToAdminUsers": "0"},
	}
	if d := cmp.Diff(want, r.GPU); d != "" {
		t.Errorf("gpu (-want +got):\n%s", d)
	}
	if r.Firmware.GSP != "needed" || r.Egress.Allow[0].Protocol != "tcp" || r.Driver.BranchNumber() != 535 {
		t.Errorf("defaults are gsp %q, protocol %q, branch %d", r.Firmware.GSP, r.Egress.Allow[0].Protocol, r.Driver.BranchNumber())
	}
	if l, ok := r.GPU.MIG.Layout(); !ok || l.Name != "serving" {
		t.Errorf("Layout = %v, %v; want the only one", l, ok)
	}
}

// The new sections must leave recipes that have none of them, and the locks
// that answer those, as they were.
func TestDigestsWithoutGPU(t *testing.T) {
	plain, err := load(t, minimal)
	if err != nil {
		t.Fatal(err)
	}
	const request = "sha256:f16782ea61635fe6e3dce7ae847f1c167a43e8f019835d936e44b1368c81f7ba"
	if plain.Request != request {
		t.Errorf("Request = %s, want %s: every lock there is would be stale", plain.Request, request)
	}
	base, err := load(t, gpuNode)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		old, new string
		moves    bool
	}{
		"driver version": {"535.261.03", "535.309.01", true},
		"driver package": {"[nvidia-smi]", "[nvidia-smi, libcuda1]", true},
		"board":          {"a100-sxm-80gb]", "a100-pcie-80gb]", false},
		"layout":         {"1g.10gb: 4", "1g.10gb: 3", false},
		"egress":         {"8443", "443", false},
	} {
		r, err := load(t, strings.Replace(gpuNode, tt.old, tt.new, 1))
		if err != nil {
			t.Fatal(err)
		}
		if moved := r.Request != base.Request; moved != tt.moves {
			t.Errorf("%s changed: the request moved: %v, want %v", name, moved, tt.moves)
		}
		if r.Digest == base.Digest {
			t.Errorf("%s changed: the digest did not", name)
		}
	}
}

func TestGPUErrors(t *testing.T) {
	const driver = "driver: {family: nvidia, flavour: open, version: 535.261.03"
	const mig = "gpu:\n  boards: [a]\n  count: 2\n  mig:\n    layouts:\n      - "
	tests := []struct{ name, text, want string }{
		{"other driver", "driver: {family: amdgpu, flavour: open, version: 535.261.03}\n", `:12:18: driver.family "amdgpu" is not supported, only nvidia`},
		{"no flavour", "driver: {family: nvidia, version: 535.261.03}\n", `:12:9: driver.flavour is missing`},
		{"flavour", "driver: {family: nvidia, flavour: free, version: 535.261.03}\n", `:12:35: driver.flavour "free" is not open or proprietary`},
		{"no version", "driver: {family: nvidia, flavour: open}\n", `:12:9: driver names neither a version nor a branch`},
		{"version as number", "driver: {family: nvidia, flavour: open, version: 565.77}\n", `:12:50: driver.version: want text, got the number 565.77 (put quotes around it: "565.77")`},
		{"Debian's version", "driver: {family: nvidia, flavour: open, version: 535.261.03-1}\n", `:12:50: driver.version: "535.261.03-1" is not a version of the driver`},
		{"other branch", driver + ", branch: 550}\n", `:12:70: driver.branch is 550, but driver.version 535.261.03 is of branch 535`},
		{"pinned package", driver + ", packages: [nvidia-smi=535.261.03-1]}\n", `:12:73: driver package nvidia-smi has a pin of its own`},
		{"package twice", driver + ", packages: [udev]}\npackages: [udev]\n", `:12:73: package udev is listed twice (name it once)`},
		{"accept without reason", driver + ", accept: [{rule: branch-eol}]}\n", `:12:71: driver.accept[0].reason is missing`},
		{"firmware updater", "firmware: {packages: [fwupd]}\n", `:12:23: package fwupd changes a running system`},
		{"unknown component", "firmware: {require: [{component: bmc, min: \"1\"}]}\n", `:12:22: firmware.require[0].component "bmc" is not bios, vbios, nic`},
		{"no bound", "firmware: {require: [{component: bios}]}\n", `:12:22: firmware.require[0] asks for no version`},
		{"CUDA as number", "gpu: {cuda: [12.4]}\n", `:12:14: gpu.cuda[0]: want text, got the number 12.4`},
		{"board twice", "gpu: {boards: [a, a]}\n", `:12:19: gpu.boards names a twice`},
		{"switch", "gpu: {cdmm: yes}\n", `:12:13: gpu.cdmm: `},
		{"option", "gpu: {nvreg: {EnableMSI: \"1\"}}\n", `:12:15: gpu.nvreg.EnableMSI: "EnableMSI" is not an option of the nvidia module`},
		{"CDMM twice", "gpu: {cdmm: on, nvreg: {NVreg_CoherentGPUMemoryMode: numa}}\n", `:12:25: gpu.cdmm sets NVreg_CoherentGPUMemoryMode already`},
		{"no layout", "gpu: {mig: {tool: nvidia-smi}}\n", `:12:12: gpu.mig has no layouts`},
		{"no profile", mig + "{name: x, gpus: [{profiles: {10gb: 1}}]}\n", `:17:38: gpu.mig.layouts[0].gpus[0].profiles.10gb: "10gb" is not a MIG profile`},
		{"no instances", mig + "{name: x, gpus: [{profiles: {1g.10gb: 0}}]}\n", `:17:38: gpu.mig.layouts[0].gpus[0].profiles.1g.10gb: 0 instances`},
		{"count as text", mig + "{name: x, gpus: [{profiles: {1g.10gb: \"7\"}}]}\n", `:17:47: gpu.mig.layouts[0].gpus[0].profiles.1g.10gb: want a whole number, got the text "7"`},
		{"ninth GPU", mig + "{name: x, gpus: [{devices: [0, 2], profiles: {1g.10gb: 7}}]}\n", `:17:40: gpu.mig.layouts[0].gpus[0].devices[1]: no GPU has the index 2`},
		{"other board", mig + "{name: x, gpus: [{board: b}]}\n", `:17:34: gpu.mig.layouts[0].gpus[0].board: gpu.boards does not name "b" (gpu.boards has a)`},
		{"two layouts", mig + "{name: x, gpus: [{}]}\n      - {name: y, gpus: [{}]}\n", `:16:5: gpu.mig has several layouts and no select (select: one of x, y)`},
		{"no such layout", mig + "{name: x, gpus: [{}]}\n    select: z\n", `:18:13: gpu.mig.select: no layout is called "z" (the layouts are x)`},
		{"sharing without plugin", "gpu: {sharing: {mode: mps, replicas: 2}}\n", `:12:16: gpu.sharing is done by the device plugin`},
		{"sharing by one", "gpu: {device_plugin: {strategy: none}, sharing: {mode: mps, replicas: 1}}\n", `:12:71: gpu.sharing.replicas 1 is not from 2 to 256`},
		{"strategy", "gpu: {device_plugin: {strategy: both}}\n", `:12:33: gpu.device_plugin.strategy "both" is not none, single or mixed`},
		{"vgpu without peers", "gpu: {vgpu: {role: guest}}\n", `:12:13: gpu.vgpu.peers is missing`},
		{"clocks", "gpu: {clocks: {gpu: 1410-}}\n", `:12:21: gpu.clocks.gpu: "1410-" is not MHz`},
		{"policy", "egress: {policy: allow}\n", `:12:18: egress.policy "allow" is not deny`},
		{"no server", "egress: {policy: deny}\n", `:12:9: egress.policy is deny and no exception is named "server"`},
		{"name as address", "egress: {policy: deny, allow: [{name: server, to: [example.com], ports: [443]}]}\n", `:12:52: egress.allow[0].to: "example.com" is not an address`},
		{"no ports", "egress: {policy: deny, allow: [{name: server, to: [\"10.0.0.1\"]}]}\n", `:12:32: exception server names no ports`},
		{"port", "egress: {policy: deny, allow: [{name: server, to: [\"10.0.0.1\"], ports: [0]}]}\n", `:12:73: exception server: 0 is not a port`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := load(t, minimal+tt.text)
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("Load = %v, want a *Error that says %s", err, tt.want)
			}
			_, got, _ := strings.Cut(err.Error(), "r.yaml")
			if !strings.HasPrefix(got, tt.want) {
				t.Errorf("Load says\n  %s\nwant\n  %s", got, tt.want)
			}
		})
	}
}
