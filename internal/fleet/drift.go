package fleet

import "time"

// Drift is where a fleet is not as it should be, or soon will not be.
type Drift struct {
	At       time.Time       `json:"at"`
	OffImage []DriftNode     `json:"offImage"` // nodes that do not run their pool's image
	Drivers  []DriftDriver   `json:"drivers"`  // driver versions that nodes run, the oldest branch first
	Firmware []DriftFirmware `json:"firmware"` // firmware that is out of its bounds, or unlike its peers'
	GPUs     []DriftGPU      `json:"gpus"`     // GPUs that an image is not for
}

// DriftNode is a node off its pool's image.
type DriftNode struct {
	Node  string `json:"node"`
	Pool  string `json:"pool"`
	Runs  string `json:"runs"`  // digest, "" for none
	Wants string `json:"wants"` // digest of the pool's image
	Why   string `json:"why"`
}

// DriftDriver is a driver version that nodes run.
type DriftDriver struct {
	Version string   `json:"version"`
	Nodes   []string `json:"nodes"`
	Pools   []string `json:"pools"`
	State   string   `json:"state"`            // "supported", "ending" (within half a year), "ended", "unknown"
	EOL     string   `json:"eol,omitempty"`    // as it was printed: "2028-06"
	Source  string   `json:"source,omitempty"` // where it was read
}

// DriftFirmware is a piece of firmware of a node that stands out.
type DriftFirmware struct {
	Node      string `json:"node"`
	Model     string `json:"model"` // vendor and product
	Component string `json:"component"`
	Version   string `json:"version"`
	Usual     string `json:"usual,omitempty"` // that most nodes of the model have
	Peers     int    `json:"peers,omitempty"` // how many have the usual one
	Pin       string `json:"pin,omitempty"`   // what the image's check of its pins says
}

// DriftGPU is a kind of GPU in a pool that an image is not for.
type DriftGPU struct {
	Pool    string   `json:"pool"`
	Image   string   `json:"image"` // digest: the pool's, one that a rollout brings, or the newest of that name
	Board   string   `json:"board"` // name in docs/compat.md, or the PCI id
	Nodes   []string `json:"nodes"`
	Rule    string   `json:"rule"`
	Message string   `json:"message"`
	Hint    string   `json:"hint,omitempty"`
	Source  string   `json:"source,omitempty"`
}
