package gpu

import (
	"time"

	"github.com/turnout-project/turnout/internal/compat"
	"github.com/turnout-project/turnout/internal/gpu/probe"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/recipe"
)

// classes are whose fault a failed check is. What the image brings (driver,
// layout, options) condemns the slot; a GPU that is missing or a firmware
// that is out of bounds would fail in the other slot too.
var classes = map[string]string{
	"driver": "software", "gsp": "software", "params": "software", "mig": "software", "fabric": "software", "persistence": "software",
	"gpus": "hardware", "ecc": "hardware", "power": "environment", "firmware": "environment",
	"xid": "hardware", "xid-driver": "software", "recovery": "hardware", "link": "hardware", "nvlink": "hardware", "remap": "hardware",
	"throttle": "environment", "clocks": "software",
}

// limits of checks that take longer than most.
const (
	smiTimeout    = time.Minute
	fabricTimeout = 5 * time.Minute
)

// Checks returns the health checks that hold a node to the GPU section of r.
// Their names start with "gpu-".
func Checks(t *compat.Tables, r *recipe.Recipe) ([]manifest.Check, error) {
	if !has(r) {
		return nil, nil
	}
	c, err := nodeConfig(t, r)
	if err != nil {
		return nil, err
	}
	var out []manifest.Check
	for _, name := range probe.Names(c) {
		limit := smiTimeout
		if name == "fabric" {
			limit = fabricTimeout
		}
		out = append(out, manifest.Check{
			Name: "gpu-" + name, Class: classes[name], Timeout: manifest.Duration(limit),
			Exec: []string{agentPath, "gpu", "check", name},
		})
	}
	if c.MIG != nil && c.MIG.Tool == "mig-parted" {
		// NVIDIA's own word on it, beside ours.
		out = append(out, manifest.Check{
			Name: "gpu-mig-parted", Class: "software", Timeout: manifest.Duration(smiTimeout),
			Exec: []string{"/usr/bin/nvidia-mig-parted", "assert", "-f", migConfigPath, "-c", c.MIG.Layout},
		})
	}
	return out, nil
}
