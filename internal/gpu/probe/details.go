package probe

import (
	"regexp"
	"strings"
)

// detail is what nvidia-smi -q says of one GPU and its CSV does not, or under
// names that change. "" is not known.
type detail struct {
	isIdle   bool
	reasons  map[string]bool // why the clocks are as they are: "HW Thermal Slowdown"
	smClock  string          // MHz
	margin   string          // degrees that are left: it counts down
	recovery string          // what the driver asks for: "None", "GPU Reset Required"
	remapped string          // rows of memory, uncorrectable
	isCut    bool            // MIG mode is on

	marginFloor  string // margin below which the GPU slows itself down, "-2"
	remapPending string // "Yes", "No"
	remapFailed  string // "Yes", "No"
	migPending   string // "Enabled", "Disabled"

	instances []instance
	processes []process
}

// instance is a MIG device.
type instance struct{ index, gi, ci string }

// process has a context on a GPU; gi and ci are "" where it is not cut.
type process struct{ pid, gi, ci string }

var gpuHead = regexp.MustCompile(`^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*$`)

// parseDetails reads the output of nvidia-smi -q, by address on the bus as
// sysfs writes it. Lines are "key : value" or a head, and what is under a head
// is indented further.
func parseDetails(out string) map[string]detail {
	all := map[string]detail{}
	var (
		address string
		d       detail
		heads   []string // by depth of four columns
	)
	done := func() {
		if address != "" {
			all[address] = d
		}
	}
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, " \r\n")
		if f := gpuHead.FindStringSubmatch(line); f != nil {
			done()
			address, d, heads = busAddress(f[1]), detail{}, nil
			continue
		}
		text := strings.TrimLeft(line, " ")
		depth := (len(line) - len(text)) / 4
		if address == "" || text == "" || depth == 0 {
			continue
		}
		key, value, isPair := strings.Cut(text, " : ")
		key = strings.TrimSpace(key)
		heads = append(heads[:min(len(heads), depth-1)], key)
		if !isPair {
			d.head(heads)
			continue
		}
		d.take(heads[:len(heads)-1], key, known(value))
	}
	done()
	return all
}

// head takes in a line that begins a section.
func (d *detail) head(path []string) {
	if len(path) == 1 && path[0] == "MIG Device" {
		d.instances = append(d.instances, instance{})
	}
}

// take takes in a value under heads.
func (d *detail) take(under []string, key, v string) {
	if len(under) == 0 {
		if key == "GPU Recovery Action" {
			d.recovery = v
		}
		return
	}
	switch number, _, _ := strings.Cut(v, " "); under[0] {
	case "Clocks Event Reasons", "Clocks Throttle Reasons": // the first since driver 535
		if d.reasons == nil {
			d.reasons = map[string]bool{}
		}
		if v != "" {
			d.reasons[key] = v == "Active"
		}
		d.isIdle = d.reasons["Idle"]
	case "Clocks":
		if key == "SM" {
			d.smClock = number
		}
	case "Temperature":
		switch key {
		case "GPU T.Limit Temp":
			d.margin = number
		case "GPU Slowdown T.Limit Temp":
			d.marginFloor = number
		}
	case "Remapped Rows":
		switch key {
		case "Uncorrectable Error":
			d.remapped = number
		case "Pending":
			d.remapPending = v
		case "Remapping Failure Occurred":
			d.remapFailed = v
		}
	case "MIG Mode":
		if key == "Current" {
			d.isCut = v == "Enabled"
		}
	case "MIG Device":
		d.takeInstance(key, v)
	case "Processes":
		d.takeProcess(key, v)
	}
}

func (d *detail) takeInstance(key, v string) {
	if len(d.instances) == 0 {
		return
	}
	switch i := &d.instances[len(d.instances)-1]; key {
	case "Index":
		i.index = v
	case "GPU Instance ID":
		i.gi = v
	case "Compute Instance ID":
		i.ci = v
	}
}

// takeProcess: the ids of the instance come before that of the process.
func (d *detail) takeProcess(key, v string) {
	switch {
	case strings.EqualFold(key, "GPU instance ID"):
		d.processes = append(d.processes, process{gi: v})
	case len(d.processes) == 0 || d.processes[len(d.processes)-1].pid != "" && key == "Process ID":
		if key == "Process ID" { // drivers before MIG name no instance
			d.processes = append(d.processes, process{pid: v})
		}
	case strings.EqualFold(key, "Compute instance ID"):
		d.processes[len(d.processes)-1].ci = v
	case key == "Process ID":
		d.processes[len(d.processes)-1].pid = v
	}
}
