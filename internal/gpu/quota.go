package gpu

import (
	"errors"
	"fmt"
	"strings"

	"github.com/turnout-project/turnout/internal/compat"
	"github.com/turnout-project/turnout/internal/recipe"
)

// QuotaOptions say for whom a quota is.
type QuotaOptions struct {
	Namespace    string
	Nodes        int // of the pool
	Percent      int // of what they offer; 0 means all
	PerContainer int // most devices of a kind; 0 means 1
}

// ErrQuota is wrapped by errors of a quota that cannot be.
var ErrQuota = errors.New("cannot render a quota")

type object struct {
	APIVersion string            `yaml:"apiVersion"`
	Kind       string            `yaml:"kind"`
	Metadata   map[string]string `yaml:"metadata"`
	Spec       any               `yaml:"spec"`
}

type quotaSpec struct {
	Hard map[string]string `yaml:"hard"`
}

type limitSpec struct {
	Limits []limit `yaml:"limits"`
}

type limit struct {
	Type string            `yaml:"type"`
	Max  map[string]string `yaml:"max"`
}

// Quota renders a ResourceQuota over what a pool's nodes offer, and a
// LimitRange for what one container can have of it. The quota names the
// resources that nodes do not offer, with 0, so that nothing else of the GPUs
// can be asked for either.
func Quota(t *compat.Tables, r *recipe.Recipe, o QuotaOptions) (string, error) {
	rs := Resources(t, r)
	switch {
	case len(rs) == 0:
		return "", fmt.Errorf("%w: recipe %s has no gpu.device_plugin, so Kubernetes is offered nothing", ErrQuota, r.Name)
	case o.Nodes < 1:
		return "", fmt.Errorf("%w: the number of nodes must be at least 1", ErrQuota)
	case o.Percent < 0 || o.Percent > 100:
		return "", fmt.Errorf("%w: %d %% is not from 1 to 100", ErrQuota, o.Percent)
	}
	if o.Percent == 0 {
		o.Percent = 100
	}
	if o.PerContainer == 0 {
		o.PerContainer = 1
	}
	hard, top := map[string]string{}, map[string]string{}
	for _, res := range rs {
		if res.Count == 0 {
			return "", fmt.Errorf("%w: how many %s a node has is not known; set gpu.count, and devices for each board", ErrQuota, res.Name)
		}
		n := res.Count * o.Nodes * o.Percent / 100
		hard["requests."+res.Name] = fmt.Sprint(n)
		top[res.Name] = fmt.Sprint(min(o.PerContainer, n))
	}
	if _, whole := hard["requests."+wholeGPU]; !whole {
		hard["requests."+wholeGPU] = "0"
	}
	meta := map[string]string{"name": r.Name + "-gpus"}
	if o.Namespace != "" {
		meta["namespace"] = o.Namespace
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# %d %% of what %d nodes with recipe %s offer.\n", o.Percent, o.Nodes, r.Name)
	for i, obj := range []object{
		{"v1", "ResourceQuota", meta, quotaSpec{hard}},
		{"v1", "LimitRange", meta, limitSpec{[]limit{{"Container", top}}}},
	} {
		text, err := encode(obj)
		if err != nil {
			return "", err
		}
		if i > 0 {
			b.WriteString("---\n")
		}
		b.WriteString(text)
	}
	return b.String(), nil
}
