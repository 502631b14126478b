// Package nodereport writes down what is known of nodes, fact by fact, so
// that a rack is accepted or refused by facts: TPM, attestation, image,
// health, firmware, inventory. It is pure: Build makes a report, Sign and
// Verify put a signature to it, HTML shows it.
package nodereport

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/compat"
	"github.com/turnout-project/turnout/internal/fleet"
)

// Report is of one node, or of the nodes of a rack.
type Report struct {
	Title    string    `json:"title"` // "node n1", "rack r7", "pool rack"
	At       time.Time `json:"at"`    // server clock
	Server   string    `json:"server"`
	Require  []string  `json:"require"` // facts that must hold
	Accepted bool      `json:"accepted"`
	Refused  []string  `json:"refused,omitempty"` // nodes that are not accepted
	Nodes    []Node    `json:"nodes"`
}

// Node is one node of a report.
type Node struct {
	Name      string              `json:"name"`
	Pool      string              `json:"pool"`
	Domain    string              `json:"domain,omitempty"`
	State     fleet.NodeState     `json:"state"`
	Accepted  bool                `json:"accepted"`
	Facts     []Fact              `json:"facts"`
	Slots     []fleet.SlotReport  `json:"slots,omitempty"`
	Health    []fleet.CheckResult `json:"health,omitempty"`
	BurnIn    []fleet.CheckResult `json:"burnIn,omitempty"`
	Findings  []fleet.Finding     `json:"findings,omitempty"` // of the attestation
	Inventory *fleet.Inventory    `json:"inventory,omitempty"`
	GPUs      []string            `json:"gpus,omitempty"` // names, one per GPU
	Firmware  []fleet.Firmware    `json:"firmware,omitempty"`
}

// State is how a fact stands.
type State string

// The states of a fact.
const (
	Pass    State = "pass"
	Fail    State = "fail"
	Unknown State = "unknown" // not known; a required fact that is not known does not hold
)

// Fact is one line of a report.
type Fact struct {
	ID       string `json:"id"` // one of IDs
	State    State  `json:"state"`
	Required bool   `json:"required"`
	Text     string `json:"text"` // what was seen
}

// IDs are the facts in their order, with what each says.
var IDs = []struct{ ID, What string }{
	{"seen", "it reports"},
	{"tpm", "its TPM is enrolled"},
	{"ek-certificate", "a maker vouches for its TPM"},
	{"attestation", "this boot was attested and accepted"},
	{"secure-boot", "Secure Boot is on"},
	{"image", "it runs its pool's image, confirmed"},
	{"health", "all required checks pass"},
	{"firmware-pins", "firmware is within the recipe's pins"},
	{"firmware-peers", "firmware is that of its peers"},
	{"gpus", "the image is for its GPUs"},
	{"bmc", "its BMC is known"},
	{"burn-in", "it was burnt in"},
}

// DefaultRequire are the facts that must hold if nothing else is asked for.
var DefaultRequire = []string{"seen", "tpm", "attestation", "image", "health", "firmware-pins", "gpus"}

// CheckRequire reports what is wrong with a list of facts.
func CheckRequire(ids []string) error {
	var all []string
	for _, i := range IDs {
		all = append(all, i.ID)
	}
	for _, id := range ids {
		if !slices.Contains(all, id) {
			return fmt.Errorf("fact %q: want some of %s", id, strings.Join(all, ", "))
		}
	}
	return nil
}

// Input is what a report is made of.
type Input struct {
	Now      time.Time
	Title    string
	Server   string
	Require  []string
	Nodes    []*fleet.Node
	Silent   time.Duration     // a node is silent after that
	EKTrust  map[string]string // node -> what the trust in its TPM rests on
	Images   map[string]string // digest -> "name version"
	Pools    map[string]string // pool -> digest of its image
	Firmware map[string][]fleet.Firmware
	BMC      map[string]string // node -> address of its BMC
	Drift    fleet.Drift
	Tables   *compat.Tables
}

// Build makes a report. A report of no node is not accepted.
func Build(in Input) *Report {
	r := &Report{Title: in.Title, At: in.Now.UTC(), Server: in.Server, Require: in.Require, Nodes: []Node{}}
	for _, n := range in.Nodes {
		x := in.node(n)
		if !x.Accepted {
			r.Refused = append(r.Refused, x.Name)
		}
		r.Nodes = append(r.Nodes, x)
	}
	r.Accepted = len(r.Nodes) > 0 && len(r.Refused) == 0
	return r
}

func (in Input) node(n *fleet.Node) Node {
	x := Node{Name: n.Name, Pool: n.Pool, Domain: n.Domain, State: n.State, Firmware: in.Firmware[n.Name], Accepted: true}
	if r := n.Reported; r != nil {
		x.Slots, x.Inventory, x.GPUs = r.Slots, r.Inventory, in.gpus(r.Inventory)
		for _, c := range r.Health {
			if isBurnIn(c.Name) {
				x.BurnIn = append(x.BurnIn, c)
			} else {
				x.Health = append(x.Health, c)
			}
		}
	}
	if n.Verdict != nil {
		x.Findings = n.Verdict.Findings
	}
	for _, id := range IDs {
		f := Fact{ID: id.ID, Required: slices.Contains(in.Require, id.ID)}
		f.State, f.Text = in.fact(id.ID, n, &x)
		x.Facts = append(x.Facts, f)
		x.Accepted = x.Accepted && (f.State == Pass || !f.Required)
	}
	return x
}

// isBurnIn reports whether a check is a burn-in: those of DCGM (dcgmi diag),
// and what a recipe calls so.
func isBurnIn(name string) bool {
	return strings.HasPrefix(name, "burn-in") || strings.HasPrefix(name, "dcgm")
}

// gpus names a node's GPUs.
func (in Input) gpus(i *fleet.Inventory) []string {
	if i == nil {
		return nil
	}
	var out []string
	for _, p := range i.PCI {
		f := strings.Fields(p)
		if len(f) < 3 || !strings.HasPrefix(f[2], "03") {
			continue
		}
		id, ok := strings.CutPrefix(strings.ToLower(f[1]), "10de:")
		if !ok {
			continue
		}
		name := "NVIDIA, PCI 10de:" + id
		for _, b := range in.Tables.Boards {
			if slices.Contains(b.PCI, strings.ToUpper(id)) {
				name = b.Product
				break
			}
		}
		out = append(out, name)
	}
	return out
}
