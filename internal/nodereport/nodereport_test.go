package nodereport

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/compat"
	"github.com/turnout-project/turnout/internal/fleet"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const image = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

// good is a node of which every fact holds.
func good(name string) *fleet.Node {
	return &fleet.Node{Name: name, Pool: "rack", State: fleet.NodeApproved, Domain: "r7", EKHash: "e0e0", LastSeen: t0.Add(-time.Second),
		Verdict: &fleet.Verdict{Accepted: true, At: t0, BootID: "b1", Path: "disk", Summary: "runs what was built"},
		Reported: &fleet.Report{Stage: fleet.StageSystem, BootID: "b1", Booted: fleet.SlotA,
			Slots: []fleet.SlotReport{{Slot: fleet.SlotA, State: fleet.SlotGood, Image: image, Name: "rack-gpu 1.2.0", Generation: 4}, {Slot: fleet.SlotB, State: fleet.SlotEmpty}},
			Health: []fleet.CheckResult{{Name: "gpu-gpus", Status: fleet.CheckPassed, Required: true, Class: fleet.FaultHardware, Detail: "8 GPUs"},
				{Name: "gpu-firmware", Status: fleet.CheckPassed, Class: fleet.FaultEnvironment, Detail: "bios 2.4"},
				{Name: "dcgm-diag-2", Status: fleet.CheckPassed, Detail: "level 2", Millis: 61000}},
			Inventory: &fleet.Inventory{Vendor: "Example", Product: "X1 <b>", Serial: "S" + name, UUID: "7e57", BIOSVersion: "2.4", CPU: "CPU", CPUs: 192, MemoryBytes: 2 << 40, SecureBoot: true, TPM: "IFX 7.85",
				PCI:   []string{"0000:1b:00.0 10de:2330 0302", "0000:43:00.0 10de:2330 0302", "0000:05:00.0 10de:22a3 0680"},
				Disks: []fleet.Disk{{Name: "nvme0n1", Model: "SSD", SizeBytes: 3.84e12}}, NICs: []fleet.NIC{{Name: "eth0", MAC: "52:54:00:00:00:01", Driver: "mlx5_core", Up: true}}}}}
}

func input(nodes ...*fleet.Node) Input {
	return Input{Now: t0, Title: "rack r7", Server: "1.0.0", Require: DefaultRequire, Nodes: nodes, Silent: time.Minute,
		EKTrust: map[string]string{"n1": "certificate: Infineon"}, Images: map[string]string{image: "rack-gpu 1.2.0"}, Pools: map[string]string{"rack": image},
		Firmware: map[string][]fleet.Firmware{"n1": {{ID: "BMC", Name: "BMC image", Version: "1.9"}}}, BMC: map[string]string{"n1": "https://10.0.9.1"}, Tables: compat.Default()}
}

func factOf(r *Report, node int, id string) Fact {
	for _, f := range r.Nodes[node].Facts {
		if f.ID == id {
			return f
		}
	}
	return Fact{}
}

func TestAccepted(t *testing.T) {
	in := input(good("n1"))
	for _, i := range IDs {
		in.Require = append(in.Require, i.ID)
	}
	r := Build(in)
	for _, f := range r.Nodes[0].Facts {
		if f.State != Pass || !f.Required || f.Text == "" {
			t.Errorf("%+v", f)
		}
	}
	if !r.Accepted || r.Refused != nil || factOf(r, 0, "gpus").Text != "2 × NVIDIA H100 80GB HBM3" {
		t.Errorf("report %+v", r)
	}
	if r := Build(input()); r.Accepted {
		t.Error("a report of no node is accepted")
	}
}

func TestFacts(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(n *fleet.Node, in *Input)
		fact   string
		state  State
		text   string
	}{
		{"silent", func(n *fleet.Node, _ *Input) { n.LastSeen = t0.Add(-time.Hour) }, "seen", Fail, "silent since"},
		{"never seen", func(n *fleet.Node, _ *Input) { n.LastSeen, n.Reported = time.Time{}, nil }, "seen", Fail, "never"},
		{"no report", func(n *fleet.Node, _ *Input) { n.Reported = nil }, "image", Fail, "no slot"},
		{"no report", func(n *fleet.Node, _ *Input) { n.Reported = nil }, "gpus", Unknown, "no inventory"},
		{"no TPM", func(n *fleet.Node, _ *Input) { n.EKHash = "" }, "tpm", Fail, "no TPM"},
		{"pinned TPM", func(_ *fleet.Node, in *Input) { in.EKTrust["n1"] = "pinned" }, "ek-certificate", Fail, "operator's word"},
		{"refused", func(n *fleet.Node, _ *Input) { n.Verdict.Accepted, n.Verdict.Summary = false, "PCR 4 differs" }, "attestation", Fail, "PCR 4 differs"},
		{"booted since", func(n *fleet.Node, _ *Input) { n.Reported.BootID = "b2" }, "attestation", Fail, "booted since"},
		{"Secure Boot off", func(n *fleet.Node, _ *Input) { n.Reported.Inventory.SecureBoot = false }, "secure-boot", Fail, "off"},
		{"a trial", func(n *fleet.Node, _ *Input) { n.Reported.Slots[0].State = fleet.SlotTrying }, "image", Fail, "trying"},
		{"another image", func(_ *fleet.Node, in *Input) { in.Pools["rack"] = "sha256:bb" }, "image", Fail, "its pool's is sha256:bb"},
		{"a check fails", func(n *fleet.Node, _ *Input) { n.Reported.Health[0].Status = fleet.CheckFailed }, "health", Fail, "check gpu-gpus (hardware) failed: 8 GPUs"},
		{"a check gives no answer", func(n *fleet.Node, _ *Input) { n.Reported.Health[0].Status = fleet.CheckUnknown }, "health", Unknown, "unknown"},
		{"pins", func(_ *fleet.Node, in *Input) {
			in.Drift.Firmware = []fleet.DriftFirmware{{Node: "n1", Component: "pins", Pin: "bios 2.3, want 2.4"}}
		}, "firmware-pins", Fail, "want 2.4"},
		{"no pins", func(n *fleet.Node, _ *Input) { n.Reported.Health = n.Reported.Health[:1] }, "firmware-pins", Pass, "pins none"},
		{"peers", func(_ *fleet.Node, in *Input) {
			in.Drift.Firmware = []fleet.DriftFirmware{{Node: "n1", Component: "BMC", Version: "1.8", Usual: "1.9", Peers: 7}}
		}, "firmware-peers", Fail, "BMC 1.8, 1.9 on 7 others"},
		{"GPUs", func(_ *fleet.Node, in *Input) {
			in.Drift.GPUs = []fleet.DriftGPU{{Pool: "rack", Image: image, Nodes: []string{"n1"}, Message: "R595 does not drive it"}}
		}, "gpus", Fail, "does not drive"},
		{"no BMC", func(_ *fleet.Node, in *Input) { delete(in.BMC, "n1") }, "bmc", Unknown, "none"},
		{"no burn-in", func(n *fleet.Node, _ *Input) { n.Reported.Health = n.Reported.Health[:2] }, "burn-in", Unknown, "no burn-in"},
		{"burn-in failed", func(n *fleet.Node, _ *Input) { n.Reported.Health[2].Status = fleet.CheckFailed }, "burn-in", Fail, "dcgm-diag-2 failed"},
	} {
		n := good("n1")
		in := input(n)
		c.change(n, &in)
		in.Require = []string{c.fact}
		r := Build(in)
		f := factOf(r, 0, c.fact)
		if f.State != c.state || !strings.Contains(f.Text, c.text) || r.Accepted != (c.state == Pass) {
			t.Errorf("%s: %+v, accepted %v; want %s, %q", c.name, f, r.Accepted, c.state, c.text)
		}
	}
	if err := CheckRequire([]string{"tpm", "luck"}); err == nil || !strings.Contains(err.Error(), `"luck"`) {
		t.Errorf("CheckRequire: %v", err)
	}
}

func TestSigned(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.key")
	key, err := LoadKey(file)
	if err != nil {
		t.Fatal(err)
	}
	again, err := LoadKey(file)
	if err != nil || !again.Equal(key) {
		t.Fatalf("the key is another one the second time: %v", err)
	}
	if st, _ := os.Stat(file); st.Mode().Perm() != 0o600 {
		t.Errorf("the key has mode %s", st.Mode())
	}
	pub := []ed25519.PublicKey{key.Public().(ed25519.PublicKey)}
	want := Build(input(good("n1"), good("n2")))
	s, err := Sign(key, want)
	if err != nil {
		t.Fatal(err)
	}
	indented, err := json.MarshalIndent(s, "", "    ")
	if err != nil {
		t.Fatal(err)
	}
	html, err := HTML(s)
	if err != nil {
		t.Fatal(err)
	}
	for what, b := range map[string][]byte{"JSON": indented, "page": html} {
		p, err := Parse(b)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		got, err := p.Verify(pub)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", what, d)
		}
	}
	other, _ := LoadKey(filepath.Join(t.TempDir(), "other.key"))
	if _, err := s.Verify([]ed25519.PublicKey{other.Public().(ed25519.PublicKey)}); !errors.Is(err, ErrSignature) || !strings.Contains(err.Error(), "not given") {
		t.Errorf("by another key: %v", err)
	}
	forged, err := Parse(bytes.Replace(indented, []byte(`"on, says the node"`), []byte(`"on, says nobody!!"`), 1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := forged.Verify(pub); !errors.Is(err, ErrSignature) || !strings.Contains(err.Error(), "changed") {
		t.Errorf("a changed report: %v", err)
	}
	// What people see of a page is held against what is signed.
	if _, err := Parse(bytes.Replace(html, []byte("<strong>Accepted"), []byte("<strong>ACCEPTED"), 1)); !errors.Is(err, ErrPage) {
		t.Errorf("a changed page: %v", err)
	}
	for _, bad := range []string{"", "{}", "<html></html>", dataOpen + "{" + dataClose} {
		if _, err := Parse([]byte(bad)); err == nil {
			t.Errorf("%q is taken for a report", bad)
		}
	}
}

// A page loads nothing, and what nodes say of themselves is text in it.
func TestPage(t *testing.T) {
	n := good("n1")
	n.Reported.Health[0].Detail = `</script><script>alert(1)</script>`
	n.Verdict.Summary = `<img src=x onerror=alert(1)>`
	key, _ := LoadKey(filepath.Join(t.TempDir(), "k"))
	s, err := Sign(key, Build(input(n)))
	if err != nil {
		t.Fatal(err)
	}
	html, err := HTML(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"<script>", "<img", "http://", "url(", "<b>", "<link"} {
		if strings.Contains(string(html), bad) {
			t.Errorf("the page holds %q", bad)
		}
	}
	for _, want := range []string{"NVIDIA H100 80GB HBM3", "Infineon", "rack-gpu 1.2.0", "SSD 3840 GB", "2048.0 GiB", "dcgm-diag-2"} {
		if !strings.Contains(string(html), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}
