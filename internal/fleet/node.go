package fleet

import (
	"fmt"
	"net"
	"strings"
	"time"
)

// MAC is a hardware address in canonical form: lower case, colon separated
// ("52:54:00:12:34:56"). Use ParseMAC to make one.
type MAC string

// ParseMAC accepts the usual spellings (colons, hyphens, Cisco dots, none;
// any case; 6, 8 or 20 bytes) and returns the canonical one. All-zero
// addresses are refused: they identify nothing.
func ParseMAC(s string) (MAC, error) {
	in := strings.TrimSpace(s)
	if !strings.ContainsAny(in, ":-.") && (len(in) == 12 || len(in) == 16 || len(in) == 40) {
		var b strings.Builder
		for i := 0; i < len(in); i += 2 {
			if i > 0 {
				b.WriteByte(':')
			}
			b.WriteString(in[i : i+2])
		}
		in = b.String()
	}
	hw, err := net.ParseMAC(in)
	if err != nil {
		return "", fmt.Errorf("MAC address %q: want six hexadecimal bytes such as 52:54:00:12:34:56", s)
	}
	zero := true
	for _, b := range hw {
		zero = zero && b == 0
	}
	if zero {
		return "", fmt.Errorf("MAC address %q is all zero and identifies no node", s)
	}
	return MAC(hw.String()), nil
}

// NodeState is the standing of a node with its operators.
type NodeState string

// The standings of a node.
const (
	NodePending     NodeState = "pending"     // seen, waits for approval: gets nothing but the installer
	NodeApproved    NodeState = "approved"    // may enrol, install and run
	NodeCordoned    NodeState = "cordoned"    // left alone by rollouts, by an operator's word
	NodeQuarantined NodeState = "quarantined" // taken out by automation, with a reason
)

// LastVerified is when a node last proved what it runs, or, if it never did,
// when it could have begun to.
func (n *Node) LastVerified() time.Time {
	switch {
	case !n.Verified.IsZero():
		return n.Verified
	case n.Verdict != nil && n.Verdict.Accepted:
		return n.Verdict.At
	}
	return n.Created
}

// Node is one machine as the server knows it. Its identity is its TPM
// (EKHash) once enrolled, its set of MACs before.
type Node struct {
	Name     string            `json:"name"`
	Pool     string            `json:"pool"`
	MACs     []MAC             `json:"macs"`
	State    NodeState         `json:"state"`
	Domain   string            `json:"domain,omitempty"` // what fails together: a rack, a power feed, an NVLink domain; rollouts by domain move it as one
	Reason   string            `json:"reason,omitempty"` // why pending or quarantined
	Labels   map[string]string `json:"labels,omitempty"` // an operator's, for selectors: see CheckLabel
	EKHash   string            `json:"ekHash,omitempty"` // SHA-256 of the EK public area, hex; "" before enrolment
	AKName   string            `json:"akName,omitempty"` // TPM name of the attestation key, hex
	Desired  Desired           `json:"desired"`
	Reported *Report           `json:"reported,omitempty"` // nil until the first heartbeat
	LastSeen time.Time         `json:"lastSeen,omitzero"`  // server clock
	Verdict  *Verdict          `json:"verdict,omitempty"`  // last attestation, nil before
	Verified time.Time         `json:"verified,omitzero"`  // when an attestation was last accepted, server clock
	Banned   []Ban             `json:"banned,omitempty"`   // images that failed here; not sent again without an operator's word
	Forgiven []string          `json:"forgiven,omitempty"` // images whose ban an operator lifted here and that were not asked for since
	Failure  *Failure          `json:"failure,omitempty"`  // last thing that went wrong with an image here, nil if nothing did
	Ask      *Ask              `json:"ask,omitempty"`      // newest favour that its agent was asked for, nil for none
	Created  time.Time         `json:"created"`
}

// Desired is what the server wants a node to run. A node acts on it once per
// generation; a lower or equal generation than the one it has acted on does
// nothing.
type Desired struct {
	Image      string `json:"image,omitempty"`      // digest "sha256:…"; "" means no wish
	Generation uint64 `json:"generation,omitempty"` // strictly rising per node; becomes the slot's generation
	Tries      int    `json:"tries,omitempty"`      // trial boots granted; 0 means DefaultTries
	Reason     string `json:"reason,omitempty"`     // for people and the event log
	Rollout    string `json:"rollout,omitempty"`    // rollout that asked, "" for an operator
	Reinstall  bool   `json:"reinstall,omitempty"`  // write the image anew, even if a slot holds it already
	Retry      bool   `json:"retry,omitempty"`      // an operator's word: lift the node's own ban of the image
	Disk       string `json:"disk,omitempty"`       // an operator's word: pattern of the one disk to install on, by name, serial or name of /dev/disk/by-id
}

// DefaultTries is the number of trial boots of an image that asks for none.
const DefaultTries = 2

// Ban remembers that an image failed on a node.
type Ban struct {
	Image  string    `json:"image"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// Failure is what went wrong with an image on a node, remembered beyond the
// heartbeat that told it: after a fallback the node itself may not know.
type Failure struct {
	Image      string    `json:"image"`
	Generation uint64    `json:"generation"`
	Check      string    `json:"check,omitempty"` // name of the health check, "attestation", or ""
	Detail     string    `json:"detail"`
	At         time.Time `json:"at"` // server clock
}

// String returns "check NAME: DETAIL", or the detail alone.
func (f *Failure) String() string {
	switch {
	case f == nil:
		return ""
	case f.Check == "":
		return f.Detail
	}
	return "check " + f.Check + ": " + f.Detail
}

// Stage says which program on the node speaks.
type Stage string

// The stages of a node's life that report to the server.
const (
	StageInstaller Stage = "installer" // installer initrd, nothing mounted
	StageInitrd    Stage = "initrd"    // initrd of an image that cannot go on and asks for help
	StageSystem    Stage = "system"    // service in the booted system
)

// Report is a heartbeat: everything the node knows of itself. The server
// keeps the newest. Times in it are the node's own and only shown; liveness
// and expiry go by the server's clock.
type Report struct {
	Stage     Stage             `json:"stage"`
	BootID    string            `json:"bootID"`              // kernel's random boot id
	Booted    Slot              `json:"booted,omitempty"`    // NoSlot in the installer
	BootPath  string            `json:"bootPath,omitempty"`  // "disk" or "network"
	Slots     []SlotReport      `json:"slots,omitempty"`     // both, A first; empty before a disk is set up
	Acted     uint64            `json:"acted,omitempty"`     // highest desired generation acted on
	Activity  string            `json:"activity,omitempty"`  // what it does now: "idle", "installing 43 %", "rebooting"
	Kernel    string            `json:"kernel,omitempty"`    // uname -r
	Versions  map[string]string `json:"versions,omitempty"`  // "driver", "nodeagent", …
	Inventory *Inventory        `json:"inventory,omitempty"` // sent on the first heartbeat of a boot
	Health    []CheckResult     `json:"health,omitempty"`
	Healthy   bool              `json:"healthy"` // all required checks passed and attestation was accepted
	// Metrics are numbers that a pool's nodes are compared by, each under a
	// dotted name with its unit last: "gpu.0.temperature_celsius".
	Metrics map[string]float64 `json:"metrics,omitempty"`
	Usage   []Use              `json:"usage,omitempty"` // GPUs and their instances, and who has them; empty if not known
	Time    time.Time          `json:"time"`
}

// Slot returns the report of one slot, or an empty one.
func (r *Report) Slot(s Slot) SlotReport {
	if r != nil {
		for _, x := range r.Slots {
			if x.Slot == s {
				return x
			}
		}
	}
	return SlotReport{Slot: s, State: SlotEmpty}
}

// BootedImage returns the digest of the image the node runs, or "".
func (r *Report) BootedImage() string {
	if r == nil || r.Booted == NoSlot {
		return ""
	}
	return r.Slot(r.Booted).Image
}

// Inventory is what the node found in itself.
type Inventory struct {
	Vendor      string   `json:"vendor,omitempty"` // DMI sys_vendor
	Product     string   `json:"product,omitempty"`
	Serial      string   `json:"serial,omitempty"`
	UUID        string   `json:"uuid,omitempty"`
	BIOSVersion string   `json:"biosVersion,omitempty"`
	CPU         string   `json:"cpu,omitempty"`
	CPUs        int      `json:"cpus,omitempty"`
	MemoryBytes uint64   `json:"memoryBytes,omitempty"`
	Disks       []Disk   `json:"disks,omitempty"`
	NICs        []NIC    `json:"nics,omitempty"`
	PCI         []string `json:"pci,omitempty"` // "0000:3b:00.0 10de:2330 0302" (address vendor:device class)
	TPM         string   `json:"tpm,omitempty"` // manufacturer and firmware version
	SecureBoot  bool     `json:"secureBoot"`
}

// Disk is one block device of a node.
type Disk struct {
	Name       string `json:"name"` // "nvme0n1"
	Model      string `json:"model,omitempty"`
	Serial     string `json:"serial,omitempty"`
	SizeBytes  uint64 `json:"sizeBytes"`
	SectorSize int    `json:"sectorSize"` // logical, 512 or 4096
}

// NIC is one network interface of a node.
type NIC struct {
	Name   string `json:"name"`
	MAC    MAC    `json:"mac"`
	Driver string `json:"driver,omitempty"`
	Up     bool   `json:"up"`
}
