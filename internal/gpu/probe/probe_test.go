package probe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// lab is a machine of files, with a program in the place of nvidia-smi that
// knows some answers.
type lab struct {
	t   *testing.T
	log string // every call of nvidia-smi, one line each
	Machine
}

// newLab makes a machine. Each answer is the output for the arguments that
// contain its key; "!" before the output makes the call fail.
func newLab(t *testing.T, files, answers map[string]string) *lab {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	l := &lab{t: t, log: filepath.Join(root, "log")}
	script := "#!/bin/sh\necho \"$*\" >>" + l.log + "\n"
	for args, out := range answers {
		status := "0"
		if strings.HasPrefix(out, "!") {
			out, status = out[1:], "9"
		}
		name := filepath.Join(root, fmt.Sprintf("answer-%x", args))
		if err := os.WriteFile(name, []byte(out), 0o644); err != nil {
			t.Fatal(err)
		}
		script += "case \"$*\" in *'" + args + "'*) cat " + name + "; exit " + status + ";; esac\n"
	}
	script += "exit 0\n"
	smi := filepath.Join(root, "nvidia-smi")
	if err := os.WriteFile(smi, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	l.Root, l.SMI = root, []string{"/bin/sh", smi}
	return l
}

// calls returns the changes that nvidia-smi was asked for.
func (l *lab) calls() []string {
	b, err := os.ReadFile(l.log)
	if err != nil {
		l.t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "--query") && line != "-L" {
			out = append(out, line)
		}
	}
	return out
}

// gpuOnBus are the files of a GPU at a PCI address.
func gpuOnBus(files map[string]string, address, device string) {
	dir := "sys/bus/pci/devices/" + address + "/"
	files[dir+"vendor"], files[dir+"class"], files[dir+"device"] = "0x10de\n", "0x030200\n", "0x"+device+"\n"
}

// The list of an H200 whose 3g instance is cut into two compute instances, as
// driver 590.48.01 prints it.
const mixedList = `GPU 0: NVIDIA H200 (UUID: GPU-00000000-0000-0000-0000-000000000000)
  MIG 1c.3g.71gb  Device  0: (UUID: MIG-00000000-0000-0000-0000-000000000000)
  MIG 2c.3g.71gb  Device  1: (UUID: MIG-00000001-0000-0000-0000-000000000001)
  MIG 2g.35gb     Device  2: (UUID: MIG-00000002-0000-0000-0000-000000000002)
  MIG 1g.18gb     Device  3: (UUID: MIG-00000003-0000-0000-0000-000000000003)
  MIG 1g.18gb     Device  4: (UUID: MIG-00000004-0000-0000-0000-000000000004)
`

const evenList = `GPU 0: NVIDIA H200 (UUID: GPU-00000000-0000-0000-0000-000000000000)
  MIG 3g.71gb     Device  0: (UUID: MIG-00000000-0000-0000-0000-000000000000)
  MIG 1g.18gb     Device  1: (UUID: MIG-00000003-0000-0000-0000-000000000003)
  MIG 1g.18gb     Device  2: (UUID: MIG-00000004-0000-0000-0000-000000000004)
GPU 1: NVIDIA H200 (UUID: GPU-00000001-0000-0000-0000-000000000000)
`

func cutAs(entries ...Entry) *Config {
	return &Config{MIG: &MIG{Tool: "nvidia-smi", Layout: "x", Entries: entries}}
}

func TestCheck(t *testing.T) {
	two := map[string]string{}
	gpuOnBus(two, "0000:0b:00.0", "2330")
	gpuOnBus(two, "0000:b3:00.0", "2330")
	two["sys/bus/pci/devices/0000:01:00.0/vendor"], two["sys/bus/pci/devices/0000:01:00.0/class"] = "0x15b3\n", "0x020700\n"
	module := map[string]string{"sys/module/nvidia/version": "535.261.03\n"}
	params := map[string]string{"proc/driver/nvidia/params": "ResmanDebugLevel: 4294967295\nCoherentGPUMemoryMode: \"driver\"\nEnableStreamMemOPs: 0\n"}
	tests := []struct {
		name, check    string
		config         *Config
		files, answers map[string]string
		want           string // part of the error; "" passes, "?…" cannot tell
	}{
		{"driver as pinned", "driver", &Config{Driver: "535.261.03"}, module, map[string]string{"driver_version": "535.261.03\n535.261.03\n"}, ""},
		{"module of another version in the last field", "driver", &Config{Driver: "535.261.04"}, module, nil, "kernel module nvidia: expected 535.261.04, seen 535.261.03"},
		{"no module", "driver", &Config{Driver: "535.261.03"}, nil, nil, "seen none loaded"},
		{"libraries replaced under the module", "driver", &Config{Driver: "535.261.03"}, module,
			map[string]string{"driver_version": "!Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.309\n"}, "Driver/library version mismatch"},
		{"GSP firmware", "gsp", &Config{Driver: "535.261.03", GSP: true}, map[string]string{"proc/driver/nvidia/gpus/0000:0b:00.0/information": "Model: \t\t NVIDIA H100\nGPU Firmware: \t 535.261.03\n"}, nil, ""},
		{"without GSP", "gsp", &Config{Driver: "535.261.03", GSP: true}, map[string]string{"proc/driver/nvidia/gpus/0000:0b:00.0/information": "GPU Firmware: \t N/A\n"}, nil, "firmware of GPU 0000:0b:00.0: expected 535.261.03, seen none"},
		{"no GPU in /proc", "gsp", &Config{Driver: "535.261.03", GSP: true}, nil, nil, "?"},

		{"all GPUs", "gpus", &Config{Count: 2}, two, map[string]string{"pci.bus_id": "00000000:0B:00.0\n00000000:B3:00.0\n"}, ""},
		{"GPU off the bus of the driver", "gpus", &Config{Count: 2}, two, map[string]string{"pci.bus_id": "00000000:0B:00.0\n"}, "the driver has lost GPU 0000:b3:00.0: on the bus 2, in nvidia-smi 1"},
		{"GPU off the bus, one line in place of a table", "gpus", &Config{Count: 2}, two,
			map[string]string{"pci.bus_id": "!Unable to determine the device handle for GPU0000:B3:00.0: Unknown Error\n"}, "expected 2 GPUs, on the bus 2: nvidia-smi: exit status 9: Unable to determine the device handle for GPU0000:B3:00.0"},
		{"seven of eight", "gpus", &Config{Count: 8}, two, map[string]string{"pci.bus_id": "00000000:0B:00.0\n00000000:B3:00.0\n"}, "expected 8 GPUs, seen 2"},
		{"board the image is not for", "gpus", &Config{Boards: []Board{{"b200", []string{"2901"}}}}, two, nil, "GPU 0000:0b:00.0 is a board of PCI id 2330"},

		{"option read back", "params", &Config{Params: map[string]string{"CoherentGPUMemoryMode": "driver", "NotShown": "1"}}, params, nil, ""},
		{"option not in force", "params", &Config{Params: map[string]string{"EnableStreamMemOPs": "1"}}, params, nil, "option EnableStreamMemOPs of the nvidia module: expected 1, seen 0"},
		{"CDMM unknown to the driver", "params", &Config{Params: map[string]string{"CoherentGPUMemoryMode": "driver"}}, map[string]string{"proc/driver/nvidia/params": "A: 1\n"}, nil, "does not know it"},

		{"MIG as asked", "mig", cutAs(Entry{Devices: []int{0}, Profiles: map[string]int{"3g.71gb": 1, "1g.18gb": 2}}, Entry{Devices: []int{1}}), nil,
			map[string]string{"mig.mode.pending": "0x233510DE, Enabled, Enabled\n0x233510DE, Disabled, Disabled\n", "-L": evenList}, ""},
		{"MIG by board", "mig", cutAs(Entry{PCI: []string{"2330"}}, Entry{PCI: []string{"2335"}, Profiles: map[string]int{"7g.141gb": 1}}), nil,
			map[string]string{"mig.mode.pending": "0x233510DE, Enabled, Enabled\n0x233510DE, Disabled, Disabled\n", "-L": evenList}, "MIG layout x: GPU 0: expected 1 × 7g.141gb, seen 1 × 3g.71gb, 2 × 1g.18gb"},
		{"compute instances that nobody asked for", "mig", cutAs(Entry{Profiles: map[string]int{"3g.71gb": 1, "2g.35gb": 1, "1g.18gb": 2}}), nil,
			map[string]string{"mig.mode.pending": "0x233510DE, Enabled, Enabled\n", "-L": mixedList}, "seen 1 × 2c.3g.71gb, 1 × 2g.35gb, 1 × 1c.3g.71gb, 2 × 1g.18gb"},
		{"MIG on without instances", "mig", cutAs(Entry{Profiles: map[string]int{"1g.18gb": 7}}), nil,
			map[string]string{"mig.mode.pending": "0x233510DE, Enabled, Enabled\n", "-L": "GPU 0: NVIDIA H200 (UUID: GPU-0)\n"}, "expected 7 × 1g.18gb, seen no instances"},
		{"MIG lost at a reboot", "mig", cutAs(Entry{Profiles: map[string]int{"1g.18gb": 7}}), nil,
			map[string]string{"mig.mode.pending": "0x233510DE, Disabled, Disabled\n", "-L": "GPU 0: NVIDIA H200 (UUID: GPU-0)\n"}, `expected MIG on, seen "Disabled"`},
		{"MIG left by an earlier image", "mig", cutAs(Entry{}), nil,
			map[string]string{"mig.mode.pending": "0x20B010DE, Enabled, Enabled\n", "-L": "GPU 0: NVIDIA A100 (UUID: GPU-0)\n"}, "expected MIG off, seen on"},
		{"board without MIG", "mig", cutAs(Entry{}), nil, map[string]string{"mig.mode.pending": "0x1EB810DE, [N/A], [N/A]\n", "-L": "GPU 0: Tesla T4 (UUID: GPU-0)\n"}, ""},
		{"board the layout does not know", "mig", cutAs(Entry{PCI: []string{"2330"}}), nil,
			map[string]string{"mig.mode.pending": "0x1EB810DE, [N/A], [N/A]\n", "-L": "GPU 0: Tesla T4 (UUID: GPU-0)\n"}, "nothing for a board of PCI id 1EB8"},

		{"fabric", "fabric", &Config{Fabric: true}, nil, map[string]string{"fabric.state": "Completed\nCompleted\n"}, ""},
		{"fabric not supported by a driver", "fabric", &Config{Fabric: true}, nil, map[string]string{"fabric.state": "Completed\n[N/A]\n"}, "?fabric.state is not known of GPU 1"},
		{"persistence", "persistence", &Config{Persistence: true}, nil, map[string]string{"persistence_mode": "Enabled\nDisabled\n"}, "persistence_mode: expected Enabled, seen GPU 1 Disabled"},
		{"ECC", "ecc", &Config{ECC: "on"}, nil, map[string]string{"ecc.mode.current": "Enabled\n"}, ""},
		{"ECC off", "ecc", &Config{ECC: "on"}, nil, map[string]string{"ecc.mode.current": "Disabled\n"}, "expected Enabled, seen GPU 0 Disabled"},
		{"ECC that a board does not have", "ecc", &Config{ECC: "on"}, nil, map[string]string{"ecc.mode.current": "[Not Supported]\n"}, "?"},
		{"power limit", "power", &Config{Clocks: Clocks{Power: 600}}, nil, map[string]string{"power.limit": "600.00\n600.00\n"}, ""},
		{"power limit not in force", "power", &Config{Clocks: Clocks{Power: 600}}, nil, map[string]string{"power.limit": "600.00\n700.00\n"}, "expected 600 W, seen GPU 1 700.00"},
		{"prose in place of fields", "power", &Config{Clocks: Clocks{Power: 600}}, nil, map[string]string{"power.limit": "Requested functionality, it has been deprecated\n"}, "?nvidia-smi says"},

		{"BIOS", "firmware", &Config{Firmware: []Firmware{{"bios", "2.10", ""}}}, map[string]string{"sys/class/dmi/id/bios_version": "2.9\n"}, nil, "firmware of bios: expected 2.10 or later, seen 2.9"},
		{"VBIOS", "firmware", &Config{Firmware: []Firmware{{"vbios", "96.00.74.00.01", "96.00.A5.00.FF"}}}, nil, map[string]string{"vbios_version": "96.00.9F.00.04\n96.00.A5.00.01\n"}, ""},
		{"VBIOS too new", "firmware", &Config{Firmware: []Firmware{{"vbios", "", "96.00.74.00.01"}}}, nil, map[string]string{"vbios_version": "96.00.9F.00.04\n"}, "expected 96.00.74.00.01 or earlier, seen 96.00.9F.00.04"},
		{"NIC", "firmware", &Config{Firmware: []Firmware{{"nic", "28.45.1020", ""}}}, map[string]string{"sys/class/infiniband/mlx5_0/fw_ver": "28.44.1036\n"}, nil, "firmware of mlx5_0: expected 28.45.1020 or later, seen 28.44.1036"},
		{"no NIC", "firmware", &Config{Firmware: []Firmware{{"nic", "28.45.1020", ""}}}, nil, nil, "?"},
		{"unknown check", "heat", &Config{}, nil, nil, "?there is no check \"heat\""},
		{"nothing asked", "mig", &Config{}, nil, nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.check+"/"+tt.name, func(t *testing.T) {
			l := newLab(t, tt.files, tt.answers)
			seen, err := l.Check(t.Context(), tt.config, tt.check)
			want, unknown := strings.CutPrefix(tt.want, "?")
			switch {
			case tt.want == "" && (err != nil || seen == ""):
				t.Errorf("Check = %q, %v; want it to pass and to say what it saw", seen, err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), want)):
				t.Errorf("Check = %q, %v; want the error %q", seen, err, want)
			case tt.want != "" && errors.Is(err, ErrUnknown) != unknown:
				t.Errorf("Check = %v; want that it cannot tell: %v", err, unknown)
			}
		})
	}
}

func TestCheckWithoutSMI(t *testing.T) {
	m := Machine{SMI: []string{"no-such-nvidia-smi"}}
	if _, err := m.Check(t.Context(), &Config{ECC: "on"}, "ecc"); !errors.Is(err, ErrUnknown) {
		t.Errorf("Check = %v, want %v", err, ErrUnknown)
	}
}

func TestApply(t *testing.T) {
	off := "GPU 0: NVIDIA H200 (UUID: GPU-0)\n"
	tests := []struct {
		name    string
		config  *Config
		answers map[string]string
		want    []string
	}{
		{"nothing asked", &Config{}, nil, nil},
		{"everything is right", &Config{Persistence: true, ECC: "on", MIG: cutAs(Entry{Profiles: map[string]int{"1g.18gb": 2, "3g.71gb": 1}}).MIG},
			map[string]string{"persistence_mode": "Enabled\n", "ecc.mode": "Enabled\n", "mig.mode.pending": "0x233510DE, Enabled, Enabled\n", "-L": strings.SplitAfter(evenList, "GPU 1")[0][:strings.Index(evenList, "GPU 1")]}, nil},
		{"modes and limits", &Config{Persistence: true, ECC: "on", Clocks: Clocks{GPU: "210-1410", Memory: "2619", Power: 600}},
			map[string]string{"persistence_mode": "Disabled\n", "ecc.mode": "Disabled\n"},
			[]string{"-pm 1", "-e 1", "--gpu-reset", "-lgc 210,1410", "-lmc 2619", "-pl 600"}},
		{"MIG from nothing, the biggest first", cutAs(Entry{Profiles: map[string]int{"1g.18gb": 2, "2g.35gb": 1, "3g.71gb": 1}}),
			map[string]string{"pci.device_id": "0x233510DE, Disabled, Disabled\n", "=mig.mode.current": "Enabled\n", "-L": off},
			[]string{"-i 0 -mig 1", "mig -i 0 -cgi 3g.71gb,2g.35gb,1g.18gb,1g.18gb -C"}},
		{"MIG where only a reset switches", cutAs(Entry{}),
			map[string]string{"pci.device_id": "0x20B010DE, Enabled, Enabled\n", "=mig.mode.current": "Enabled\n", "-L": off},
			[]string{"-i 0 -mig 0", "-i 0 --gpu-reset"}},
		{"MIG from another layout", cutAs(Entry{Profiles: map[string]int{"1g.18gb": 7}}),
			map[string]string{"pci.device_id": "0x233510DE, Enabled, Enabled\n", "-L": mixedList},
			[]string{"mig -i 0 -dci", "mig -i 0 -dgi", "mig -i 0 -cgi 1g.18gb,1g.18gb,1g.18gb,1g.18gb,1g.18gb,1g.18gb,1g.18gb -C"}},
		{"MIG is mig-parted's", &Config{MIG: &MIG{Tool: "mig-parted", Entries: []Entry{{Profiles: map[string]int{"1g.18gb": 7}}}}}, nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, map[string]string{"log": ""}, tt.answers)
			if err := l.Apply(t.Context(), tt.config, nil); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, l.calls()); d != "" {
				t.Errorf("calls of nvidia-smi (-want +got):\n%s", d)
			}
		})
	}
}

// One step that fails must not keep the others from being done.
func TestApplyGoesOn(t *testing.T) {
	l := newLab(t, nil, map[string]string{"-lgc": "!no permission\n"})
	err := l.Apply(t.Context(), &Config{Clocks: Clocks{GPU: "1410", Power: 600}}, nil)
	if err == nil || !strings.Contains(err.Error(), "no permission") {
		t.Errorf("Apply = %v, want the failed step", err)
	}
	if d := cmp.Diff([]string{"-lgc 1410", "-pl 600"}, l.calls()); d != "" {
		t.Errorf("calls of nvidia-smi (-want +got):\n%s", d)
	}
}

func TestRead(t *testing.T) {
	root := t.TempDir()
	if _, err := Read(root); !errors.Is(err, ErrUnknown) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Read of nothing = %v", err)
	}
	if err := os.MkdirAll(filepath.Join(root, "etc/turnout"), 0o755); err != nil {
		t.Fatal(err)
	}
	for text, ok := range map[string]bool{`{"count": 8}`: true, `{"count": "8"}`: false} {
		if err := os.WriteFile(filepath.Join(root, ConfigPath), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		c, err := Read(root)
		if ok && (err != nil || c.Count != 8) || !ok && !errors.Is(err, ErrUnknown) {
			t.Errorf("Read of %s = %+v, %v", text, c, err)
		}
	}
}

func TestKnown(t *testing.T) {
	for v, want := range map[string]string{
		"[N/A]": "", "N/A": "", "[Not Supported]": "", "[Unknown Error]": "", "[Requested functionality has been deprecated]": "",
		" 345 ": "345", "Enabled": "Enabled", "[]": "[]", "0": "0",
	} {
		if got := known(v); got != want {
			t.Errorf("known(%q) = %q, want %q", v, got, want)
		}
	}
}

func FuzzParseList(f *testing.F) {
	f.Add(mixedList)
	f.Add("GPU 99999999999999999999: x (UUID: y)\n  MIG 1g.5gb Device 0: (UUID: z)\n")
	f.Fuzz(func(t *testing.T, out string) {
		if gpus, err := parseList(out); (err == nil) != (len(gpus) > 0) {
			t.Errorf("parseList(%q) = %v, %v", out, gpus, err)
		}
	})
}
