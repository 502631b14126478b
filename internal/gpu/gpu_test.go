package gpu

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/compat"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/recipe"
)

var update = flag.Bool("update", false, "write the golden files anew")

const base = `name: node
version: "1"
base:
  distribution: debian
  release: bookworm
  sources: [{uri: "http://deb.debian.org/debian", suites: [bookworm], components: [main, contrib, non-free]}]
kernel: {package: linux-image-6.1.0-50-amd64}
`

// load returns a recipe: base and text.
func load(t *testing.T, text string) *recipe.Recipe {
	t.Helper()
	path := filepath.Join(t.TempDir(), "r.yaml")
	text = base + text
	if strings.Contains(text, "arm64") {
		text = strings.ReplaceAll(text, "-amd64", "-arm64")
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := recipe.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func table(t *testing.T, board string) compat.MIGTable {
	t.Helper()
	tables := compat.Default()
	b, ok := tables.Board(board)
	if !ok {
		t.Fatalf("no board %s", board)
	}
	m, ok := tables.MIGTable(b)
	if !ok {
		t.Fatalf("no MIG table for board %s", board)
	}
	return m
}

func TestFit(t *testing.T) {
	tests := []struct {
		board    string
		profiles map[string]int
		want     string // "" fits, else a part of the reason
	}{
		{"a100-sxm-40gb", map[string]int{"1g.5gb": 7}, ""},
		{"a100-sxm-40gb", map[string]int{"1g.5gb": 8}, "it holds 7 × 1g.5gb at most, not 8"},
		{"a100-sxm-40gb", map[string]int{"3g.20gb": 2}, ""},
		// Two 3g take all the memory; one compute slice is left and is of no use.
		{"a100-sxm-40gb", map[string]int{"3g.20gb": 2, "1g.5gb": 1}, "there is no place"},
		{"a100-sxm-40gb", map[string]int{"4g.20gb": 1, "3g.20gb": 1}, ""},
		{"a100-sxm-40gb", map[string]int{"4g.20gb": 1, "3g.20gb": 1, "1g.5gb": 1}, "8 compute slices, it has 7"},
		// What NVIDIA calls all-balanced: fits only with 3g in the upper half.
		{"a100-sxm-40gb", map[string]int{"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}, ""},
		{"a100-sxm-40gb", map[string]int{"1g.5gb": 4, "3g.20gb": 1}, ""},
		{"a100-sxm-40gb", map[string]int{"1g.10gb": 4}, ""},
		{"a100-sxm-40gb", map[string]int{"1g.10gb": 4, "1g.5gb": 1}, "there is no place"},
		// Slice 7 of the memory can begin nothing of one compute slice.
		{"a100-sxm-40gb", map[string]int{"1g.10gb": 3, "1g.5gb": 1}, ""},
		{"a100-sxm-40gb", map[string]int{"1g.10gb": 3, "1g.5gb": 2}, ""},
		{"a100-sxm-40gb", map[string]int{"2g.10gb": 3, "1g.5gb": 1}, ""},
		{"a100-sxm-40gb", map[string]int{"2g.10gb": 3, "1g.10gb": 1}, ""},
		{"a100-sxm-40gb", map[string]int{"2g.10gb": 3, "1g.5gb": 2}, "8 compute slices"},
		{"a100-sxm-40gb", map[string]int{"7g.40gb": 1}, ""},
		{"a100-sxm-40gb", map[string]int{"7g.40gb": 1, "1g.5gb": 1}, "8 compute slices"},
		{"a100-sxm-40gb", map[string]int{"1g.5gb+me": 1, "1g.5gb": 6}, ""},
		{"a100-sxm-40gb", map[string]int{"1g.5gb+me": 2}, "at most"},
		// A profile's name says the memory of its board.
		{"a100-sxm-80gb", map[string]int{"1g.5gb": 1}, "it has no profile 1g.5gb"},
		{"a100-sxm-80gb", map[string]int{"1g.10gb": 7}, ""},
		{"a100-sxm-40gb", map[string]int{"1g.10gb": 7}, "it holds 4 × 1g.10gb at most"},
		{"h100-sxm-80gb", map[string]int{"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 2}, ""},
		{"h100-sxm-80gb", map[string]int{"3g.40gb": 1, "1g.20gb": 2, "1g.10gb": 1}, "there is no place"},
		{"a30", map[string]int{"1g.6gb": 4}, ""},
		{"a30", map[string]int{"2g.12gb": 1, "1g.6gb": 2}, ""},
		{"a30", map[string]int{"2g.12gb": 2, "1g.6gb": 1}, "5 compute slices, it has 4"},
		{"a30", map[string]int{"2g.12gb+me": 1, "1g.6gb+me": 1}, "media engines"},
		// No placements were read for this board; its slices are counted.
		{"rtx-pro-6000", map[string]int{"2g.48gb": 1, "1g.24gb": 2}, ""},
		{"rtx-pro-6000", map[string]int{"2g.48gb": 2, "1g.24gb": 1}, "compute slices"},
	}
	for _, tt := range tests {
		got := Fit(table(t, tt.board), tt.profiles)
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("Fit(%s, %v) = %q; want %q", tt.board, tt.profiles, got, tt.want)
		}
	}
}

// Every profile must fit its board alone, as often as the table says.
func TestFitOfEveryProfile(t *testing.T) {
	for _, m := range compat.Default().MIG {
		for _, p := range m.Profiles {
			if why := Fit(m, map[string]int{p.Name: p.Max}); why != "" {
				t.Errorf("%s: %d × %s: %s", m.ID, p.Max, p.Name, why)
			}
			if Fit(m, map[string]int{p.Name: p.Max + 1}) == "" {
				t.Errorf("%s: %d × %s fit, one more than the table says", m.ID, p.Max+1, p.Name)
			}
		}
	}
}

const driver = "driver: {family: nvidia, flavour: open, version: 580.95.05, packages: [nvidia-smi]}\n"

func TestLint(t *testing.T) {
	mig := func(board, gpus, more string) string {
		return driver + "gpu:\n  boards: [" + board + "]\n  count: 2\n  mig:\n    tool: nvidia-smi\n    layouts: [{name: x, gpus: " + gpus + "}]\n" + more
	}
	tests := []struct {
		name, rule string
		severity   compat.Severity // "" wants none
		text, yaml string
	}{
		{"fits", "mig-fit", "", "", mig("h100-sxm-80gb", "[{profiles: {1g.10gb: 7}}]", "")},
		{"fits by inferred placements", "mig-fit", compat.Info, "inferred", mig("h200-sxm", "[{profiles: {1g.18gb: 7}}]", "")},
		{"wrong profile", "mig-fit", compat.Error, "no profile 1g.5gb", mig("h100-sxm-80gb", "[{profiles: {1g.5gb: 7}}]", "")},
		{"second board does not take it", "mig-fit", compat.Error, "does not fit h200-sxm", mig("h100-sxm-80gb, h200-sxm", "[{profiles: {1g.10gb: 7}}]", "")},
		{"each board its own", "mig-fit", "", "", mig("h100-sxm-80gb, a100-sxm-40gb", "[{board: h100-sxm-80gb, profiles: {1g.10gb: 7}}, {board: a100-sxm-40gb, profiles: {1g.5gb: 7}}]", "")},
		{"board without MIG", "mig-board", compat.Error, "l40s (NVIDIA L40S) cannot be cut", mig("l40s", "[{profiles: {1g.10gb: 7}}]", "")},
		{"no boards", "mig-board", compat.Error, "gpu.boards does not say which", driver + "gpu: {mig: {tool: nvidia-smi, layouts: [{name: x, gpus: [{profiles: {1g.10gb: 1}}]}]}}\n"},
		{"GPU twice", "mig-cover", compat.Error, "two entries are about GPU 1", mig("h100-sxm-80gb", "[{devices: [0, 1], profiles: {1g.10gb: 7}}, {devices: [1]}]", "")},
		{"all and one", "mig-cover", compat.Error, "two entries are about all GPUs", mig("h100-sxm-80gb", "[{profiles: {1g.10gb: 7}}, {devices: [1]}]", "")},
		{"indexes without a count", "mig-cover", compat.Error, "set gpu.count", driver + "gpu: {boards: [a30], mig: {tool: nvidia-smi, layouts: [{name: x, gpus: [{devices: [0], profiles: {1g.6gb: 4}}]}]}}\n"},
		{"driver before MIG", "mig-driver", compat.Error, "needs driver 550.90.07", strings.Replace(mig("h200-sxm", "[{profiles: {1g.18gb: 7}}]", ""), "580.95.05", "550.54.15", 1)},
		{"driver before the profile", "mig-driver", compat.Error, "came with R525", strings.Replace(mig("a100-sxm-40gb", "[{profiles: {1g.10gb: 4}}]", ""), "580.95.05", "515.48.07", 1)},
		{"no mig-parted", "mig-tool", compat.Error, "nvidia-mig-manager", strings.Replace(mig("a30", "[{profiles: {1g.6gb: 4}}]", ""), "tool: nvidia-smi", "tool: mig-parted", 1)},
		{"nvidia-smi as the tool", "mig-tool", "", "", mig("a30", "[{profiles: {1g.6gb: 4}}]", "")},
		{"A100 that nothing turns off", "mig-mode", compat.Warning, "keeps MIG mode", "driver: {family: nvidia, flavour: open, version: 580.95.05}\ngpu: {boards: [a100-sxm-80gb]}\n"},
		{"A100 that is turned off", "mig-mode", "", "", driver + "gpu: {boards: [a100-sxm-80gb]}\n"},
		{"H100, which forgets", "mig-mode", "", "", "driver: {family: nvidia, flavour: open, version: 580.95.05}\ngpu: {boards: [h100-pcie-80gb]}\n"},
		{"none with a layout", "plugin-strategy", compat.Error, "whole GPUs only", mig("a30", "[{profiles: {1g.6gb: 4}}]", "  device_plugin: {strategy: none}\n")},
		{"single with one kind", "plugin-strategy", "", "", mig("a30", "[{profiles: {1g.6gb: 4}}]", "  device_plugin: {strategy: single}\n")},
		{"single with two kinds", "plugin-strategy", compat.Error, "would panic", mig("a30", "[{profiles: {1g.6gb: 2, 2g.12gb: 1}}]", "  device_plugin: {strategy: single}\n")},
		{"single with one GPU whole", "plugin-strategy", compat.Error, "cut alike", mig("a30", "[{devices: [0], profiles: {1g.6gb: 4}}]", "  device_plugin: {strategy: single}\n")},
		{"mixed with anything", "plugin-strategy", "", "", mig("a30", "[{devices: [0], profiles: {1g.6gb: 2, 2g.12gb: 1}}]", "  device_plugin: {strategy: mixed}\n")},
		{"mixed with nothing", "plugin-strategy", compat.Info, "works like none", driver + "gpu: {boards: [l4], device_plugin: {strategy: mixed}}\n"},
		{"MPS on MIG", "sharing", compat.Error, "MPS does not work", mig("a30", "[{profiles: {1g.6gb: 4}}]", "  device_plugin: {strategy: mixed}\n  sharing: {mode: mps, replicas: 2}\n")},
		{"MPS", "sharing", "", "", driver + "gpu: {boards: [l4], device_plugin: {strategy: none}, sharing: {mode: mps, replicas: 2}}\n"},
		{"sharing what is not there", "sharing", compat.Error, "no device of the node is a nvidia.com/mig-1g.10gb", mig("a30", "[{profiles: {1g.6gb: 4}}]", "  device_plugin: {strategy: mixed}\n  sharing: {mode: time-slicing, resources: [{name: nvidia.com/mig-1g.10gb, replicas: 2}]}\n")},
		{"time-slicing isolates nothing", "sharing", compat.Info, "isolates neither", driver + "gpu: {boards: [l4], device_plugin: {strategy: none}, sharing: {mode: time-slicing, replicas: 4}}\n"},
		{"no driver", "gpu-driver", compat.Error, "gpu.ecc needs a driver", "gpu: {boards: [l4], ecc: on}\n"},
		{"no nvidia-smi", "gpu-driver", compat.Error, "gpu.count is set and checked with nvidia-smi", "driver: {family: nvidia, flavour: open, version: 580.95.05}\ngpu: {boards: [l4], count: 2}\n"},
	}
	covered := map[string]bool{}
	for _, tt := range tests {
		covered[tt.rule] = true
		t.Run(tt.name, func(t *testing.T) {
			var of []compat.Finding
			for _, f := range Lint(compat.Default(), load(t, tt.yaml)) {
				if f.Rule == tt.rule {
					of = append(of, f)
				}
			}
			if tt.severity == "" && len(of) == 0 {
				return
			}
			if !slices.ContainsFunc(of, func(f compat.Finding) bool { return f.Severity == tt.severity && strings.Contains(f.Message, tt.text) }) {
				t.Errorf("Lint finds %+v, want %q that says %q", of, tt.severity, tt.text)
			}
		})
	}
	for _, name := range []string{"mig-board", "mig-fit", "mig-cover", "mig-driver", "mig-tool", "mig-mode", "plugin-strategy", "sharing", "gpu-driver"} {
		if _, known := compat.Rule(name); !known || !covered[name] {
			t.Errorf("rule %s: registered %v, tested %v", name, known, covered[name])
		}
	}
}

const inference = `packages: [nvidia-mig-manager]
driver: {family: nvidia, flavour: open, version: 580.95.05, packages: [nvidia-smi, nvidia-fabricmanager-580]}
firmware:
  require: [{component: vbios, min: 96.00.74.00.01}]
gpu:
  boards: [h100-sxm-80gb, h200-sxm]
  platform: hgx-h100-8
  count: 8
  mig:
    layouts:
      - name: serving
        gpus:
          - {board: h100-sxm-80gb, devices: [0, 1], profiles: {3g.40gb: 1, 1g.10gb: 4}}
          - {board: h200-sxm, profiles: {7g.141gb: 1}}
      - {name: whole, gpus: [{}]}
    select: serving
  device_plugin: {strategy: mixed}
  sharing: {mode: time-slicing, replicas: 4, rename: true}
  persistence: true
  cdmm: on
  nvreg: {NVreg_RestrictProfilingToAdminUsers: "0"}
  uvm: {uvm_disable_hmm: "1"}
  ecc: on
  clocks: {gpu: 210-1410, power: 600}
`

func TestFiles(t *testing.T) {
	recipes := map[string]string{
		"inference": inference,
		"plain":     driver + "gpu: {boards: [a100-sxm-80gb]}\n",
		"nvl72":     strings.Replace(driver, "nvidia-smi]", "nvidia-smi, nvidia-imex-580]", 1) + "architecture: arm64\ngpu: {boards: [gb200], platform: gb200-nvl72, imex: {channels: 4096, channel0: true, required: true}, device_plugin: {strategy: none}, sharing: {mode: mps, replicas: 8}}\n",
	}
	for name, text := range recipes {
		t.Run(name, func(t *testing.T) {
			r := load(t, text)
			golden(t, name, describe(t, r))
		})
	}
}

// describe renders everything that comes of a recipe into one text.
func describe(t *testing.T, r *recipe.Recipe) string {
	t.Helper()
	tables := compat.Default()
	files, err := Files(tables, r)
	if err != nil {
		t.Fatal(err)
	}
	units, err := Units(tables, r)
	if err != nil {
		t.Fatal(err)
	}
	checks, err := Checks(tables, r)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range files {
		b.WriteString("== " + f.Path + " " + f.Mode + " " + f.Owner + "\n" + f.Content)
	}
	b.WriteString("== units " + strings.Join(units, " ") + "\n")
	for _, c := range checks {
		b.WriteString("== check " + c.Name + " " + c.Class + ": " + strings.Join(c.Exec, " ") + "\n")
	}
	return b.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got), -update writes it anew:\n%s", path, d)
	}
}

func TestFilesWithoutGPU(t *testing.T) {
	tables, r := compat.Default(), load(t, "")
	files, err := Files(tables, r)
	units, err2 := Units(tables, r)
	checks, err3 := Checks(tables, r)
	if len(files)+len(units)+len(checks) > 0 || err != nil || err2 != nil || err3 != nil {
		t.Errorf("a recipe without GPUs gives %v, %v, %v", files, units, checks)
	}
}

// The agent that runs a check is asked for its name; all must be known to it
// and valid as a recipe's checks are.
func TestChecksAreValid(t *testing.T) {
	checks, err := Checks(compat.Default(), load(t, inference))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, c := range checks {
		if seen[c.Name] || len(c.Exec) == 0 || c.Timeout <= manifest.Duration(0) || !slices.Contains([]string{"software", "hardware", "environment"}, c.Class) {
			t.Errorf("check %+v", c)
		}
		seen[c.Name] = true
	}
	for _, want := range []string{"gpu-driver", "gpu-mig", "gpu-mig-parted", "gpu-fabric", "gpu-firmware"} {
		if !seen[want] {
			t.Errorf("no check %s among %v", want, seen)
		}
	}
}

func TestQuota(t *testing.T) {
	tables := compat.Default()
	cut := driver + "gpu:\n  boards: [h100-sxm-80gb]\n  count: 8\n  mig: {tool: nvidia-smi, layouts: [{name: x, gpus: [{devices: [0, 1], profiles: {3g.40gb: 1, 1g.10gb+me: 1}}]}]}\n  device_plugin: {strategy: mixed}\n"
	got, err := Quota(tables, load(t, cut), QuotaOptions{Namespace: "team-a", Nodes: 4, Percent: 50})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "quota", got)

	shared := driver + "gpu: {boards: [l4], count: 2, device_plugin: {strategy: none}, sharing: {mode: time-slicing, replicas: 10, rename: true}}\n"
	if got, err = Quota(tables, load(t, shared), QuotaOptions{Nodes: 3}); err != nil || !strings.Contains(got, `requests.nvidia.com/gpu.shared: "60"`) || !strings.Contains(got, `requests.nvidia.com/gpu: "0"`) {
		t.Errorf("Quota of shared GPUs = %v\n%s", err, got)
	}
	for name, tt := range map[string]struct {
		yaml string
		o    QuotaOptions
	}{
		"no device plugin": {driver + "gpu: {boards: [l4], count: 2}\n", QuotaOptions{Nodes: 1}},
		"no count":         {driver + "gpu: {boards: [l4], device_plugin: {strategy: none}}\n", QuotaOptions{Nodes: 1}},
		"no nodes":         {cut, QuotaOptions{}},
		"percentage":       {cut, QuotaOptions{Nodes: 1, Percent: 101}},
	} {
		if got, err := Quota(tables, load(t, tt.yaml), tt.o); !errors.Is(err, ErrQuota) {
			t.Errorf("%s: Quota = %q, %v; want %v", name, got, err, ErrQuota)
		}
	}
}

// docs/compat.md explains the rules of this package, too.
func TestDocumentation(t *testing.T) {
	b, err := os.ReadFile("../../docs/compat.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range compat.Rules() {
		if !strings.Contains(string(b), "| `"+r.Name+"` |") {
			t.Errorf("docs/compat.md does not explain %s", r.Name)
		}
	}
}
