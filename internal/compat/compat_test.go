package compat

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// today is the day the tests are judged on.
var today = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

// node is an input in which nothing is wrong; tests change one thing.
func node(change func(*Input)) Input {
	in := Input{
		Now: today, Architecture: "amd64", Kernel: Kernel{"6.1.0-50-amd64", "6.1.176"},
		Driver: Driver{"open", 580, "580.142"}, Boards: []string{"l40s"}, Count: 4, CUDA: []string{"13.0"},
	}
	if change != nil {
		change(&in)
	}
	return in
}

func parts(version string, names ...string) []Component {
	var cs []Component
	for _, n := range names {
		cs = append(cs, Component{Package: n, Version: version, Full: version + "-1", Build: strings.HasSuffix(n, "-dkms")})
	}
	return cs
}

var whole = []string{"nvidia-open-kernel-dkms", "nvidia-open-kernel-support", "firmware-nvidia-gsp", "nvidia-smi", "libcuda1", "nvidia-alternative"}

func TestCheckClean(t *testing.T) {
	in := node(func(in *Input) { in.Locked, in.Components = true, parts("580.142", whole...) })
	if fs := Check(Default(), in); len(fs) > 0 {
		t.Errorf("Check finds %+v, want nothing", fs)
	}
	if fs := Check(Default(), Input{Now: today, Architecture: "amd64", Kernel: Kernel{Release: "6.1.0-50-amd64"}}); len(fs) > 0 {
		t.Errorf("Check of an image without GPUs finds %+v, want nothing", fs)
	}
}

func TestRules(t *testing.T) {
	tests := []struct {
		name, rule string
		severity   Severity // "" means that the rule finds nothing
		text       string   // in message or hint
		change     func(*Input)
	}{
		{"unknown board", "board-known", Error, `"h100" is in no table`, func(in *Input) { in.Boards = []string{"h100"} }},
		{"unknown platform", "board-known", Error, "the platforms are hgx-a100-8", func(in *Input) { in.Platform = "dgx" }},
		{"board of another platform", "board-known", Error, "platform hgx-h100-8 has no l40s", func(in *Input) { in.Platform = "hgx-h100-8" }},
		{"half a platform", "board-known", Error, "has 8 GPUs per node, gpu.count is 4", func(in *Input) { in.Platform, in.Boards = "hgx-h100-8", []string{"h100-sxm-80gb"} }},
		{"Grace on amd64", "arch-machine", Error, "set architecture: arm64", func(in *Input) { in.Boards = []string{"gb200"} }},
		{"Grace on arm64", "arch-machine", "", "", func(in *Input) { in.Boards, in.Architecture = []string{"gb200"}, "arm64" }},

		{"V100 on R580", "arch-branch", "", "", func(in *Input) { in.Boards, in.Driver = []string{"v100-sxm"}, Driver{"proprietary", 580, "580.142"} }},
		{"V100 on R590", "arch-branch", Error, "R580 is the last branch for Volta", func(in *Input) { in.Boards, in.Driver = []string{"v100-sxm"}, Driver{"proprietary", 590, "590.44.01"} }},
		{"P100 on R595", "arch-branch", Error, "R580 is the last branch for Pascal", func(in *Input) { in.Boards, in.Driver = []string{"p100-pcie"}, Driver{"proprietary", 595, ""} }},
		{"M60 on R620", "arch-branch", Error, "R580 is the last branch for Maxwell", func(in *Input) { in.Boards, in.Driver = []string{"m60"}, Driver{"proprietary", 620, ""} }},
		{"K80 on R535", "arch-branch", Error, "R470 is the last branch for Kepler", func(in *Input) { in.Boards, in.Driver = []string{"k80"}, Driver{"proprietary", 535, ""} }},
		{"T4 on R620", "arch-branch", "", "", func(in *Input) { in.Boards, in.Driver = []string{"t4"}, Driver{"open", 620, ""} }},

		{"open modules for V100", "arch-flavour", Error, "set driver.flavour: proprietary", func(in *Input) { in.Boards = []string{"v100-pcie"} }},
		{"open modules before there were any", "arch-flavour", Error, "R470 has no open kernel modules", func(in *Input) { in.Boards, in.Driver = []string{"t4"}, Driver{"open", 470, "470.256.02"} }},
		{"proprietary modules for B200", "arch-flavour", Error, "set driver.flavour: open", func(in *Input) { in.Boards, in.Driver.Flavour = []string{"b200"}, "proprietary" }},
		{"proprietary modules for GH200", "arch-flavour", Error, "Grace Hopper needs the open ones", func(in *Input) { in.Boards, in.Driver.Flavour = []string{"gh200-96gb"}, "proprietary" }},
		{"proprietary modules for H100", "arch-flavour", "", "", func(in *Input) { in.Boards, in.Driver.Flavour = []string{"h100-pcie-80gb"}, "proprietary" }},
		{"V100 beside B200", "mixed-boards", Error, "no driver serves a node with b200 and v100-sxm", func(in *Input) { in.Boards = []string{"v100-sxm", "b200"} }},
		{"V100 beside L4", "mixed-boards", "", "", func(in *Input) { in.Boards = []string{"v100-pcie", "l4"} }},
		{"K80 beside H100", "mixed-boards", Error, "R470 is the last branch for k80, another needs R520", func(in *Input) { in.Boards = []string{"k80", "h100-pcie-80gb"} }},

		{"H200 on 550.54.15", "board-minimum", Error, "take 550.90.07 or later", func(in *Input) { in.Boards, in.Driver = []string{"h200-sxm"}, Driver{"open", 550, "550.54.15"} }},
		{"H200 on 550.90.07", "board-minimum", "", "", func(in *Input) { in.Boards, in.Driver = []string{"h200-sxm"}, Driver{"open", 550, "550.90.07"} }},
		{"H200 on some R550", "board-minimum", "", "", func(in *Input) { in.Boards, in.Driver = []string{"h200-sxm"}, Driver{"open", 550, ""} }},
		{"H200 on some R535", "board-minimum", Error, "take 550.90.07", func(in *Input) { in.Boards, in.Driver = []string{"h200-sxm"}, Driver{"open", 535, ""} }},
		{"B200 on the first R570", "board-minimum", Error, "take 570.133.20", func(in *Input) { in.Boards, in.Driver = []string{"b200"}, Driver{"open", 570, "570.86.15"} }},

		{"branch of the future", "branch-known", Warning, "R640 is in no table", func(in *Input) { in.Driver = Driver{"open", 640, "640.10.01"} }},
		{"branch without a date", "branch-known", Warning, "the end of life of R615 is not known", func(in *Input) { in.Driver = Driver{"open", 615, ""} }},
		{"R535 in December 2026", "branch-eol", Error, "2026-06, says edition 615; it is over", func(in *Input) { in.Driver = Driver{"open", 535, "535.261.03"} }},
		{"R535 on its last day", "branch-eol", Warning, "in 0 days", func(in *Input) {
			in.Driver, in.Now = Driver{"open", 535, "535.261.03"}, time.Date(2026, 6, 30, 12, 0, 0, 0, time.UTC)
		}},
		{"R595 with 91 days left", "branch-eol", "", "", func(in *Input) {
			in.Driver, in.Now = Driver{"open", 595, "595.45.04"}, time.Date(2026, 12, 31, 0, 0, 0, 0, time.UTC)
		}},
		{"R595 with 90 days left", "branch-eol", Warning, "in 90 days", func(in *Input) {
			in.Driver, in.Now = Driver{"open", 595, "595.45.04"}, time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
		}},
		{"R580 near the date of an older edition", "branch-eol", Warning, "edition 580 said 2028-08", func(in *Input) { in.Now = time.Date(2028, 6, 1, 0, 0, 0, 0, time.UTC) }},
		{"R550, whose date nobody printed", "branch-eol", Error, "move to R580 (LTSB, until 2028-06)", func(in *Input) { in.Driver = Driver{"open", 550, "550.163.01"} }},
		{"R530, which nobody lists", "branch-eol", Warning, "taken for ended", func(in *Input) { in.Driver = Driver{"open", 530, "530.41.03"} }},
		{"successor for V100", "branch-eol", Error, "move to R580 (LTSB, until 2028-06);", func(in *Input) { in.Boards, in.Driver = []string{"v100-sxm"}, Driver{"proprietary", 535, ""} }},
		{"new feature branch", "branch-type", Warning, "R610 is a new feature branch", func(in *Input) { in.Driver = Driver{"open", 610, "610.43.02"} }},

		{"GSP time-outs of R525", "known-bad", Error, "XID 119", func(in *Input) { in.Driver = Driver{"open", 525, "525.85.12"} }},
		{"R525 without them", "known-bad", "", "", func(in *Input) { in.Driver = Driver{"open", 525, "525.105.17"} }},
		{"R575 on GB200", "known-bad", Error, "panics on GB200", func(in *Input) { in.Boards, in.Driver = []string{"gb200"}, Driver{"open", 575, "575.57.08"} }},
		{"R575 elsewhere", "known-bad", "", "", func(in *Input) { in.Driver = Driver{"open", 575, "575.57.08"} }},
		{"580.159.03 with Linux 7.1", "known-bad", Warning, "of_gpio", func(in *Input) {
			in.Driver, in.Kernel = Driver{"open", 580, "580.159.03"}, Kernel{"7.1.0-1-amd64", "7.1.2"}
		}},
		{"580.173.02 with Linux 7.1", "known-bad", "", "", func(in *Input) {
			in.Driver, in.Kernel = Driver{"open", 580, "580.173.02"}, Kernel{"7.1.0-1-amd64", "7.1.2"}
		}},
		{"535.261.03 with the kernel by version", "known-bad", Warning, "pci_resize_resource", func(in *Input) {
			in.Driver, in.Kernel = Driver{"open", 535, "535.261.03"}, Kernel{"6.1.0-58-cloud-amd64", "6.1.192"}
		}},
		{"535.261.03 with the kernel by name", "known-bad", Warning, "linux-image-6.1.0-50-amd64 (6.1.176) compiles", func(in *Input) {
			in.Driver, in.Kernel = Driver{"open", 535, "535.261.03"}, Kernel{"6.1.0-57-amd64", ""}
		}},
		{"535.261.03 with the kernel that works", "known-bad", "", "", func(in *Input) { in.Driver = Driver{"open", 535, "535.261.03"} }},
		{"open R580 on CentOS 7", "kernel-floor", Error, "Linux 4.15 or later", func(in *Input) { in.Kernel = Kernel{"3.10.0-1160", "3.10.0"} }},
		{"open R535 on CentOS 7", "kernel-floor", "", "", func(in *Input) { in.Driver, in.Kernel = Driver{"open", 535, ""}, Kernel{"3.10.0-1160", "3.10.0"} }},

		{"CUDA 13 on R550", "cuda-floor", Error, "CUDA 13.0 needs R580 at least", func(in *Input) { in.Driver = Driver{"open", 550, "550.163.01"} }},
		{"CUDA 13 on R550 by its package", "cuda-floor", Info, "cuda-compat", func(in *Input) {
			in.Driver, in.Components = Driver{"open", 550, "550.163.01"}, parts("", "cuda-compat-13-0")
		}},
		{"CUDA 12.4 on R535", "cuda-floor", Warning, "came with driver 550.54.14", func(in *Input) { in.CUDA, in.Driver = []string{"12.4"}, Driver{"open", 535, "535.261.03"} }},
		{"CUDA 12.2 on R535", "cuda-floor", "", "", func(in *Input) { in.CUDA, in.Driver = []string{"12.2"}, Driver{"open", 535, "535.261.03"} }},
		{"CUDA 12.7", "cuda-floor", Warning, "CUDA 12.7 is in no table", func(in *Input) { in.CUDA = []string{"12.7"} }},
		{"CUDA 11.8 on R450 too old for 11.x", "cuda-floor", Error, "CUDA 11.8 needs", func(in *Input) { in.CUDA, in.Driver = []string{"11.8"}, Driver{"proprietary", 450, "450.51.06"} }},
		{"CUDA 13 for V100", "cuda-arch", Error, "CUDA 12 is the last for Volta", func(in *Input) { in.Boards = []string{"v100-sxm"} }},
		{"CUDA 12.9 for V100", "cuda-arch", "", "", func(in *Input) { in.Boards, in.CUDA = []string{"v100-sxm"}, []string{"12.9"} }},
		{"CUDA 12.4 for B200", "cuda-arch", Error, "take CUDA 12.8 or later", func(in *Input) { in.Boards, in.CUDA = []string{"b200"}, []string{"12.4"} }},

		{"toolkit", "toolkit-driver", Error, "not for production", func(in *Input) { in.Components = parts("", "cuda-12-4") }},
		{"toolkit without driver", "toolkit-driver", "", "", func(in *Input) { in.Components = parts("", "cuda-toolkit-12-4") }},
		{"metapackage", "toolkit-driver", Error, "whatever version is newest", func(in *Input) { in.Components = parts("", "cuda-drivers-580") }},
		{"last field differs", "family", Error, "libcuda1 is 570.124.04 (570.124.04-1), driver.version says 570.124.06", func(in *Input) {
			in.Driver = Driver{"open", 570, "570.124.06"}
			in.Components = append(parts("570.124.06", "nvidia-open-kernel-dkms", "firmware-nvidia-gsp"), parts("570.124.04", "libcuda1")...)
		}},
		{"GSP firmware of bookworm-security", "family", Error, "4 of 5 parts are 535.261.03", func(in *Input) {
			in.Driver = Driver{"open", 535, "535.309.01"}
			in.Components = append(parts("535.261.03", "nvidia-open-kernel-dkms", "nvidia-open-kernel-support", "nvidia-alternative", "nvidia-smi"), parts("535.309.01", "firmware-nvidia-gsp")...)
		}},
		{"fabric manager of another version", "family", Error, "nvidia-fabricmanager-580 is 580.95.05", func(in *Input) {
			in.Components = append(parts("580.142", whole...), parts("580.95.05", "nvidia-fabricmanager-580")...)
		}},
		{"branch pinned, lock of another", "family", Error, "the recipe pins R580", func(in *Input) { in.Driver.Version, in.Components = "", parts("570.211.01", whole...) }},
		{"modprobe of another branch", "companion", Error, "newer than the driver's branch", func(in *Input) { in.Components = parts("610.57.04", "nvidia-modprobe") }},
		{"modprobe of Debian", "companion", "", "", func(in *Input) { in.Components = parts("535.161.07", "nvidia-modprobe", "nvidia-persistenced") }},
		{"support of the other flavour", "flavour-packages", Error, "set driver.flavour: proprietary", func(in *Input) { in.Components = parts("580.142", "nvidia-kernel-support") }},
		{"lock without modules", "driver-parts", Error, "no kernel modules", func(in *Input) { in.Locked, in.Components = true, parts("580.142", whole[1:]...) }},
		{"lock without GSP firmware", "driver-parts", Error, "no GSP firmware", func(in *Input) { in.Locked, in.Components = true, parts("580.142", whole[:2]...) }},
		{"dkms in the image", "driver-section", Error, "use the section driver", func(in *Input) {
			in.Components = []Component{{Package: "nvidia-open-kernel-dkms", Field: "packages[0]"}}
		}},
		{"nouveau's firmware", "nouveau-firmware", Error, "159 MB", func(in *Input) { in.Components = parts("", "firmware-nvidia-graphics") }},
		{"desktop software", "excluded-package", Warning, "nvidia-settings", func(in *Input) { in.Components = parts("", "nvidia-settings") }},

		{"HGX without fabric manager", "fabric-manager", Error, "error 802", func(in *Input) { in.Platform, in.Boards, in.Count = "hgx-h100-8", []string{"h100-sxm-80gb"}, 8 }},
		{"eight SXM boards", "fabric-manager", Error, "add nvidia-fabricmanager-580", func(in *Input) { in.Boards, in.Count = []string{"h200-sxm"}, 8 }},
		{"four SXM boards", "fabric-manager", "", "", func(in *Input) { in.Boards, in.Count = []string{"a100-sxm-40gb"}, 4 }},
		{"SXM boards, nobody says how many", "fabric-manager", Info, "set gpu.platform", func(in *Input) { in.Boards, in.Count = []string{"a100-sxm-40gb"}, 0 }},
		{"HGX with fabric manager", "fabric-manager", "", "", func(in *Input) {
			in.Boards, in.Count, in.Components = []string{"h200-sxm"}, 8, parts("580.142", "nvidia-fabricmanager-580")
		}},
		{"B200 without nvlsm", "nvlink5", Error, "In Progress", func(in *Input) { in.Boards, in.Count, in.ModulesLoad = []string{"b200"}, 8, []string{"ib-umad"} }},
		{"B200 without ib_umad", "nvlink5", Error, "ib_umad, which the image does not load", func(in *Input) {
			in.Boards, in.Count, in.Components = []string{"b200"}, 8, parts("2025.06.5", "nvlink5-580")
		}},
		{"NVL72 without IMEX", "imex", Error, "the image has no IMEX", func(in *Input) { in.Platform, in.Boards = "gb200-nvl72", []string{"gb200"} }},
		{"NVL72", "imex", Info, "they move together", func(in *Input) {
			in.Platform, in.Boards, in.Components = "gb200-nvl72", []string{"gb200"}, parts("580.142", "nvidia-imex-580")
		}},

		{"GB200 on Kubernetes", "cdmm", Warning, "set gpu.cdmm: on", func(in *Input) { in.Boards, in.Kubernetes = []string{"gb200"}, true }},
		{"GB200 without a word", "cdmm", Info, "left to the driver's default", func(in *Input) { in.Boards = []string{"gb200"} }},
		{"GB200 with CDMM", "cdmm", "", "", func(in *Input) { in.Boards, in.Kubernetes, in.CDMM = []string{"gb200"}, true, "on" }},
		{"CDMM by option", "cdmm", "", "", func(in *Input) {
			in.Boards, in.Kubernetes, in.NVReg = []string{"gb200"}, true, map[string]string{"NVreg_CoherentGPUMemoryMode": "driver"}
		}},
		{"CDMM before R580", "cdmm", Error, "R570 does not know", func(in *Input) {
			in.Boards, in.CDMM, in.Driver = []string{"gb200"}, "on", Driver{"open", 570, "570.211.01"}
		}},
		{"CDMM on PCIe", "cdmm", Info, "has no effect", func(in *Input) { in.CDMM = "on" }},
		{"driver in the initrd", "initrd-options", Error, "nvidia_uvm", func(in *Input) { in.CDMM, in.InitrdModules = "on", []string{"ext4", "nvidia_uvm"} }},

		{"vGPU of one branch", "vgpu", "", "", func(in *Input) { in.VGPU = VGPU{"guest", []string{"580.142"}} }},
		{"vGPU guest newer than host", "vgpu", Error, "the guest is newer", func(in *Input) { in.VGPU = VGPU{"guest", []string{"570.211.01"}} }},
		{"vGPU guest newer in the branch", "vgpu", Error, "the guest is newer", func(in *Input) { in.VGPU = VGPU{"host", []string{"580.142", "580.173.02"}} }},
		{"vGPU guest of the branch before", "vgpu", "", "", func(in *Input) { in.VGPU = VGPU{"host", []string{"570.211.01"}} }},
		{"vGPU guest of the LTSB before", "vgpu", "", "", func(in *Input) { in.VGPU = VGPU{"host", []string{"535.261.03"}} }},
		{"vGPU guest too old", "vgpu", Error, "neither the one before", func(in *Input) { in.VGPU = VGPU{"host", []string{"550.90.07"}} }},
		{"open vGPU on Ampere", "vgpu", Warning, "recommended from Ada on", func(in *Input) { in.Boards, in.VGPU = []string{"a40"}, VGPU{"host", []string{"580.142"}} }},
	}
	tables := Default()
	covered := map[string]bool{}
	for _, tt := range tests {
		covered[tt.rule] = true
		t.Run(tt.rule+"/"+tt.name, func(t *testing.T) {
			var of []Finding
			for _, f := range Check(tables, node(tt.change)) {
				if f.Rule == tt.rule {
					of = append(of, f)
				}
			}
			if tt.severity == "" {
				if len(of) > 0 {
					t.Errorf("found %+v, want nothing", of)
				}
				return
			}
			if !slices.ContainsFunc(of, func(f Finding) bool {
				return f.Severity == tt.severity && strings.Contains(f.Message+"\n"+f.Hint, tt.text)
			}) {
				t.Errorf("found %+v,\nwant one of severity %s that says %q", of, tt.severity, tt.text)
			}
		})
	}
	for _, r := range rules {
		if !covered[r.name] {
			t.Errorf("no test for rule %s", r.name)
		}
	}
}

func TestApplyAccepts(t *testing.T) {
	fs := []Finding{{Rule: "branch-eol", Severity: Error}, {Rule: "family", Severity: Error}}
	got := ApplyAccepts(fs, []Accept{{"branch-eol", "Debian maintains it"}})
	if !Failed(got) || got[1].Rule != "branch-eol" || got[1].Severity != Warning || got[1].Accepted != "Debian maintains it" {
		t.Errorf("accepting a rule of policy gives %+v", got)
	}
	if fs[0].Severity != Error {
		t.Error("ApplyAccepts changed its argument")
	}
	for name, a := range map[string]Accept{"not of policy": {"family", "x"}, "unknown": {"famly", "x"}} {
		got := ApplyAccepts(fs, []Accept{a})
		if !slices.ContainsFunc(got, func(f Finding) bool { return f.Rule == "accept" && f.Severity == Error }) {
			t.Errorf("accepting a rule that is %s gives %+v, want an error", name, got)
		}
	}
	got = ApplyAccepts(nil, []Accept{{"branch-eol", "x"}})
	if len(got) != 1 || got[0].Severity != Info {
		t.Errorf("accepting a rule that finds nothing gives %+v, want a note", got)
	}
}

// Every row must say where it was read, with a source that its file explains.
func TestSources(t *testing.T) {
	tables := Default()
	check := func(what, source string) {
		t.Helper()
		if len(source) < 15 {
			t.Errorf("%s: source %q", what, source)
		}
	}
	for _, r := range tables.Architectures {
		check(r.ID, r.Source)
	}
	for _, r := range tables.Boards {
		check(r.ID, r.Source)
		if _, ok := tables.Arch(r.Arch); !ok {
			t.Errorf("board %s is of architecture %q, which is in no table", r.ID, r.Arch)
		}
	}
	for _, r := range tables.Platforms {
		check(r.ID, r.Source)
		for _, b := range r.Boards {
			if _, ok := tables.Board(b); !ok {
				t.Errorf("platform %s has board %q, which is in no table", r.ID, b)
			}
		}
	}
	for _, r := range tables.Branches {
		check("branch", r.Source)
	}
	for _, r := range tables.Toolkits {
		check(r.CUDA, r.Source)
	}
	for _, r := range tables.KnownBad {
		check(r.ID, r.Source)
	}
	for _, r := range tables.Packages {
		check(r.Match, r.Source)
	}
	for _, r := range tables.MIG {
		check(r.ID, r.Source)
		for _, p := range r.Profiles {
			check(r.ID+" "+p.Name, p.Source)
		}
	}
}

// A file of newer rows replaces rows and adds others.
func TestLay(t *testing.T) {
	tables := Default()
	n := len(tables.Branches)
	err := tables.Lay("new.yaml", []byte(`version: 1
edition: "640"
sources: {D: "docs.nvidia.com, edition 640"}
branches:
  - {branch: 535, type: LTSB, eol: [{edition: "640", date: 2027-06-15, source: D}], source: D}
  - {branch: 640, type: PB, eol: [{edition: "640", date: 2028-01, source: D}], source: D}
`))
	if err != nil {
		t.Fatal(err)
	}
	if len(tables.Branches) != n+1 || tables.Edition != "640" {
		t.Errorf("%d branches of edition %s, want %d of 640", len(tables.Branches), tables.Edition, n+1)
	}
	for _, f := range Check(tables, node(func(in *Input) { in.Driver = Driver{"open", 535, "535.261.03"} })) {
		if f.Rule == "branch-eol" {
			t.Errorf("R535 until 2027-06-15 still gives %+v", f)
		}
	}
	if len(Default().Branches) != n {
		t.Error("rows laid over one set of tables are in others")
	}
	for name, text := range map[string]string{
		"unknown key":   "version: 1\nbrnches: []\n",
		"no version":    "branches: []\n",
		"bad date":      "version: 1\nbranches: [{branch: 1, eol: [{date: soon}]}]\n",
		"bad pattern":   "version: 1\npackages: [{match: \"(\"}]\n",
		"bad version":   "version: 1\nboards: [{board: x, min_driver: 5x}]\n",
		"bad severity":  "version: 1\nrows: [{id: x, branch: 1, severity: bad}]\n",
		"bad placement": "version: 1\ntables: [{table: x, compute: 7, memory: 8, profiles: [{name: a, compute: 1, memory: 1, max: 1, starts: [8], size: 1}]}]\n",
	} {
		if err := Default().Lay("x.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), "compatibility data x.yaml: ") {
			t.Errorf("%s: Lay = %v, want an error that names the file", name, err)
		}
	}
}

func TestVersions(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"535.261.03", "535.309.01", -1}, {"570.26", "570.124.06", -1}, {"565.77", "565.57.01", 1},
		{"550.90.07", "550.90.7", 0}, {"580", "580.0", 0},
	} {
		a, _ := ParseVersion(tt.a)
		b, _ := ParseVersion(tt.b)
		if got := a.Compare(b); got != tt.want {
			t.Errorf("%s against %s = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
	for _, s := range []string{"", "535.", "535.x", "-1", "1.99999999999"} {
		if v, err := ParseVersion(s); err == nil {
			t.Errorf("ParseVersion(%q) = %v, want an error", s, v)
		}
	}
}

// docs/compat.md explains every rule, board and platform by name.
func TestDocumentation(t *testing.T) {
	b, err := os.ReadFile("../../docs/compat.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	var names []string
	for _, r := range Rules() {
		names = append(names, r.Name)
	}
	tables := Default()
	for _, n := range slices.Concat(names, tables.BoardNames(), tables.PlatformNames()) {
		if !strings.Contains(text, "`"+n+"`") {
			t.Errorf("docs/compat.md does not explain %s", n)
		}
	}
}

// Whoever gives tables of his own gets an error or tables that can be used.
func FuzzLay(f *testing.F) {
	f.Add([]byte("version: 1\nbranches: [{branch: 535, eol: [{date: 2026-06}]}]\n"))
	f.Add([]byte("version: 1\nboards: [{board: l40s, arch: x, pci: [z], nvswitch_at: 1}]\nplatforms: [{platform: p, boards: [l40s], needs: [imex]}]\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		tables := Default()
		if tables.Lay("fuzz", b) == nil {
			Check(tables, node(nil)) // must not panic
		}
	})
}
