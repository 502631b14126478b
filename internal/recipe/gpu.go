package recipe

// Driver pins one driver family: kernel modules, GSP firmware, libraries and
// daemons, all of one version, exact to its last field.
type Driver struct {
	Family  string `yaml:"family"`  // "nvidia"; "" means the image has no driver
	Flavour string `yaml:"flavour"` // kernel modules: "open" or "proprietary"
	// Branch is the first number of the version, 535. 0 means that of
	// Version; without a Version it asks for the newest of the branch that
	// the archive has in whole.
	Branch  int    `yaml:"branch"`
	Version string `yaml:"version"` // of NVIDIA, without Debian's part: "535.261.03"
	// Packages of the driver beside those that the flavour cannot do
	// without: libraries, tools, daemons. Names only, the pin is the family's.
	Packages []string `yaml:"packages"`
	Modules  []string `yaml:"modules"` // kernel modules the image gets, by NVIDIA's names: "nvidia", "nvidia-uvm"; nil is all
	Accept   []Accept `yaml:"accept"`
}

// Accept is a finding of `imgbuild check` that people decided to live with.
type Accept struct {
	Rule   string `yaml:"rule"`
	Reason string `yaml:"reason"` // for the next reader; never empty
}

// Firmware is what the image carries of it, and what it expects of the
// machine: firmware of boards is never in an image, and no slot can take it
// back.
type Firmware struct {
	Packages []string          `yaml:"packages"` // microcode, network cards: as Recipe.Packages
	GSP      string            `yaml:"gsp"`      // "needed" (default): the images that gpu.boards load; "all"
	Require  []FirmwareRequire `yaml:"require"`
}

// FirmwareRequire bounds a firmware version of the machine, both ends
// included. The versions are compared field by field as numbers and words.
type FirmwareRequire struct {
	Component string `yaml:"component"` // "bios", "vbios", "nic"
	Min       string `yaml:"min"`       // "" means no bound
	Max       string `yaml:"max"`
}

// GPU is the hardware an image is for and how its GPUs are shared.
type GPU struct {
	Boards       []string     `yaml:"boards"`   // every kind that a node may have; names as in docs/compat.md
	Platform     string       `yaml:"platform"` // baseboard or rack: "hgx-h100-8"; "" is none with NVSwitches
	Count        int          `yaml:"count"`    // GPUs per node; 0 means any number
	CUDA         []string     `yaml:"cuda"`     // toolkits that workloads bring: "12.4"
	MIG          MIG          `yaml:"mig"`
	Sharing      Sharing      `yaml:"sharing"`
	DevicePlugin DevicePlugin `yaml:"device_plugin"`
	VGPU         VGPU         `yaml:"vgpu"`
	IMEX         IMEX         `yaml:"imex"`
	Persistence  bool         `yaml:"persistence"`
	CDMM         string       `yaml:"cdmm"` // "on", "off"; "" leaves it to the driver
	// NVReg are options of the nvidia module, UVM those of nvidia-uvm.
	NVReg  map[string]string `yaml:"nvreg"`
	UVM    map[string]string `yaml:"uvm"`
	ECC    string            `yaml:"ecc"` // "on", "off"; "" leaves the board's setting
	Clocks Clocks            `yaml:"clocks"`
}

// MIG is how GPUs are cut into instances.
type MIG struct {
	Layouts []MIGLayout `yaml:"layouts"`
	Select  string      `yaml:"select"` // name of the layout nodes boot with; "" is the only one
	Tool    string      `yaml:"tool"`   // what applies it: "mig-parted" (default) or "nvidia-smi"
}

// MIGLayout is one way to cut the GPUs of a node.
type MIGLayout struct {
	Name string     `yaml:"name"`
	GPUs []MIGEntry `yaml:"gpus"`
}

// MIGEntry is what some GPUs of a node are cut into.
type MIGEntry struct {
	Board    string         `yaml:"board"`    // only GPUs of this kind; "" is any
	Devices  []int          `yaml:"devices"`  // indexes; nil is all
	Profiles map[string]int `yaml:"profiles"` // instances by profile name; empty turns MIG off
}

// Sharing lets several containers have one GPU.
type Sharing struct {
	Mode      string          `yaml:"mode"` // "time-slicing", "mps"; "" means none
	Replicas  int             `yaml:"replicas"`
	Resources []SharedDevices `yaml:"resources"` // when not all devices are shared alike
	Rename    bool            `yaml:"rename"`    // call the resources "….shared"
	// OneEach refuses containers that ask for more than one replica, which
	// would not get them more of the GPU. Default true.
	OneEach bool `yaml:"one_each"`
}

// SharedDevices is a kind of device and the number of containers for each.
type SharedDevices struct {
	Name     string `yaml:"name"` // resource, "nvidia.com/gpu"
	Replicas int    `yaml:"replicas"`
}

// DevicePlugin configures NVIDIA's device plugin for Kubernetes.
type DevicePlugin struct {
	Strategy     string `yaml:"strategy"`      // MIG strategy "none", "single", "mixed"; "" means no device plugin
	DeviceList   string `yaml:"device_list"`   // "envvar" (default), "volume-mounts", "cdi-annotations", "cdi-cri"
	DeviceID     string `yaml:"device_id"`     // "uuid" (default), "index"
	TolerateFail bool   `yaml:"tolerate_fail"` // start without GPUs, which hides broken nodes
}

// VGPU says which end of NVIDIA vGPU the image is, and what is at the other.
type VGPU struct {
	Role  string   `yaml:"role"`  // "host" or "guest"
	Peers []string `yaml:"peers"` // driver versions of the guests, or of the host
}

// IMEX is the export of memory between the nodes of an NVLink domain.
type IMEX struct {
	Channels int  `yaml:"channels"` // equal on every node of the domain; 0 leaves the driver's
	Channel0 bool `yaml:"channel0"` // make channel 0 at boot; for domains of one tenant only
	Required bool `yaml:"required"` // containers cannot start without a channel
}

// Clocks are limits set at each boot.
type Clocks struct {
	GPU    string `yaml:"gpu"`    // "1410" or "210-1410", MHz
	Memory string `yaml:"memory"` // likewise
	Power  int    `yaml:"power"`  // watts for each GPU; 0 leaves it
}

// Egress is what nodes may reach.
type Egress struct {
	Policy string       `yaml:"policy"` // "deny": only what Allow names; "" means no rules
	Allow  []EgressRule `yaml:"allow"`
}

// EgressRule is a named exception.
type EgressRule struct {
	Name     string   `yaml:"name"`
	To       []string `yaml:"to"`       // addresses or prefixes
	Protocol string   `yaml:"protocol"` // "tcp" (default), "udp", "icmp"
	Ports    []int    `yaml:"ports"`    // none for icmp
}

// HasGPU tells whether the recipe says anything of GPUs.
func (r *Recipe) HasGPU() bool {
	g := r.GPU
	return len(g.Boards) > 0 || g.Platform != "" || g.Count > 0 || len(g.CUDA) > 0 || len(g.MIG.Layouts) > 0 ||
		g.Sharing.Mode != "" || g.DevicePlugin.Strategy != "" || g.VGPU.Role != "" || g.Persistence || g.CDMM != "" ||
		len(g.NVReg) > 0 || len(g.UVM) > 0 || g.ECC != "" || g.Clocks != (Clocks{}) || g.IMEX != (IMEX{})
}

// Layout returns the MIG layout that nodes boot with.
func (m MIG) Layout() (MIGLayout, bool) {
	for _, l := range m.Layouts {
		if l.Name == m.Select || m.Select == "" && len(m.Layouts) == 1 {
			return l, true
		}
	}
	return MIGLayout{}, false
}
