package nodereport

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// fact says how one fact stands for a node.
func (in Input) fact(id string, n *fleet.Node, x *Node) (State, string) {
	switch id {
	case "seen":
		return in.seen(n)
	case "tpm":
		return tpm(n)
	case "ek-certificate":
		return ekCertificate(in.EKTrust[n.Name])
	case "attestation":
		return attestation(n)
	case "secure-boot":
		return secureBoot(x.Inventory)
	case "image":
		return in.image(n)
	case "health":
		return health(n, x.Health)
	case "firmware-pins":
		return in.pins(n, x)
	case "firmware-peers":
		return in.peers(n, x)
	case "gpus":
		return in.fits(n, x)
	case "bmc":
		if b := in.BMC[n.Name]; b != "" {
			return Pass, b
		}
		return Unknown, "none is set"
	case "burn-in":
		return burnIn(x.BurnIn)
	}
	return Unknown, "no such fact"
}

func (in Input) seen(n *fleet.Node) (State, string) {
	switch age := in.Now.Sub(n.LastSeen); {
	case n.LastSeen.IsZero():
		return Fail, "it never has"
	case age > in.Silent:
		return Fail, "silent since " + stamp(n.LastSeen)
	}
	return Pass, "last at " + stamp(n.LastSeen)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func tpm(n *fleet.Node) (State, string) {
	if n.EKHash == "" {
		return Fail, "no TPM is enrolled"
	}
	text := "EK SHA-256 " + n.EKHash
	if n.Reported != nil && n.Reported.Inventory != nil && n.Reported.Inventory.TPM != "" {
		text = n.Reported.Inventory.TPM + ", " + text
	}
	return Pass, text
}

func ekCertificate(trust string) (State, string) {
	switch {
	case trust == "":
		return Unknown, "not enrolled"
	case strings.HasPrefix(trust, "certificate"):
		return Pass, trust
	}
	return Fail, trust + ": an operator's word, no maker's"
}

func attestation(n *fleet.Node) (State, string) {
	v := n.Verdict
	switch {
	case v == nil:
		return Fail, "it never attested"
	case !v.Accepted:
		return Fail, "refused at " + stamp(v.At) + ": " + v.Summary
	case n.Reported == nil || v.BootID != n.Reported.BootID:
		return Fail, "accepted at " + stamp(v.At) + ", but it has booted since"
	}
	return Pass, "accepted at " + stamp(v.At) + ", path " + cmp.Or(v.Path, "unknown") + ": " + v.Summary
}

func secureBoot(i *fleet.Inventory) (State, string) {
	switch {
	case i == nil:
		return Unknown, "no inventory was reported"
	case i.SecureBoot:
		return Pass, "on, says the node"
	}
	return Fail, "off"
}

func (in Input) name(digest string) string {
	if n := in.Images[digest]; n != "" {
		return n + " (" + digest + ")"
	}
	return digest
}

func (in Input) image(n *fleet.Node) (State, string) {
	want, r := in.Pools[n.Pool], n.Reported
	if r == nil || r.Booted == fleet.NoSlot {
		return Fail, "it runs from no slot"
	}
	s := r.Slot(r.Booted)
	text := fmt.Sprintf("slot %s, %s, %s, generation %d", r.Booted, s.State, in.name(s.Image), s.Generation)
	switch {
	case want == "":
		return Unknown, text + "; pool " + n.Pool + " has no image"
	case s.Image != want:
		return Fail, text + "; its pool's is " + in.name(want)
	case s.State != fleet.SlotGood:
		return Fail, text
	}
	return Pass, text
}

func health(n *fleet.Node, rs []fleet.CheckResult) (State, string) {
	if n.Reported == nil || n.Reported.Stage != fleet.StageSystem {
		return Unknown, "no system reports"
	}
	if c, bad := fleet.FirstFailure(rs); bad {
		state := Fail
		if c.Status == fleet.CheckUnknown {
			state = Unknown
		}
		return state, fmt.Sprintf("check %s (%s) %s: %s", c.Name, cmp.Or(string(c.Class), "software"), c.Status, c.Detail)
	}
	if len(rs) == 0 {
		return Unknown, "nothing is checked"
	}
	return Pass, fmt.Sprintf("%d check(s), %s", len(rs), fleet.Diagnose(rs))
}

// pins is about the image's check of the recipe's firmware pins.
func (in Input) pins(n *fleet.Node, x *Node) (State, string) {
	for _, d := range in.Drift.Firmware {
		if d.Node == n.Name && d.Pin != "" {
			return Fail, d.Pin
		}
	}
	for _, c := range x.Health {
		if c.Name != "gpu-firmware" {
			continue
		}
		if c.Status == fleet.CheckPassed {
			return Pass, cmp.Or(c.Detail, "as the recipe has it")
		}
		return Unknown, "the check gives no answer: " + c.Detail
	}
	if n.Reported == nil || n.Reported.Stage != fleet.StageSystem {
		return Unknown, "no system reports"
	}
	return Pass, "the image pins none"
}

func (in Input) peers(n *fleet.Node, x *Node) (State, string) {
	var odd []string
	for _, d := range in.Drift.Firmware {
		if d.Node == n.Name && d.Usual != "" {
			odd = append(odd, fmt.Sprintf("%s %s, %s on %d others", d.Component, d.Version, d.Usual, d.Peers))
		}
	}
	switch {
	case odd != nil:
		return Fail, strings.Join(odd, "; ")
	case x.Inventory == nil && len(x.Firmware) == 0:
		return Unknown, "no versions are known"
	}
	return Pass, "none stands out"
}

func (in Input) fits(n *fleet.Node, x *Node) (State, string) {
	for _, d := range in.Drift.GPUs {
		if d.Pool != n.Pool || d.Image != in.Pools[n.Pool] {
			continue
		}
		for _, name := range d.Nodes {
			if name == n.Name {
				return Fail, d.Message
			}
		}
	}
	switch {
	case x.Inventory == nil:
		return Unknown, "no inventory was reported"
	case len(x.GPUs) == 0:
		return Pass, "it has none"
	}
	return Pass, count(x.GPUs)
}

// count says "8 × NVIDIA H100 80GB HBM3".
func count(names []string) string {
	n := map[string]int{}
	var order []string
	for _, x := range names {
		if n[x] == 0 {
			order = append(order, x)
		}
		n[x]++
	}
	var out []string
	for _, x := range order {
		out = append(out, fmt.Sprintf("%d × %s", n[x], x))
	}
	return strings.Join(out, ", ")
}

func burnIn(rs []fleet.CheckResult) (State, string) {
	if len(rs) == 0 {
		return Unknown, "no burn-in has run: the image has no check called burn-in… or dcgm…"
	}
	for _, c := range rs {
		if c.Status != fleet.CheckPassed {
			return Fail, c.Name + " " + string(c.Status) + ": " + c.Detail
		}
	}
	return Pass, fmt.Sprintf("%d check(s) passed", len(rs))
}
