package fleet

import "time"

// Model names a kind of hardware with its firmware: machines of one model
// measure the same into the firmware's PCRs. It is what a node says of itself.
type Model struct {
	Vendor      string `json:"vendor"`
	Product     string `json:"product"`
	BIOSVersion string `json:"biosVersion"`
}

// Model returns the model that an inventory tells, zero for nil.
func (i *Inventory) Model() Model {
	if i == nil {
		return Model{}
	}
	return Model{Vendor: i.Vendor, Product: i.Product, BIOSVersion: i.BIOSVersion}
}

// IsZero reports whether nothing is known.
func (m Model) IsZero() bool { return m == Model{} }

// String returns "VENDOR PRODUCT, BIOS VERSION".
func (m Model) String() string {
	if m.IsZero() {
		return "unknown model"
	}
	return m.Vendor + " " + m.Product + ", BIOS " + m.BIOSVersion
}

// BaselineState is the standing of a baseline with the operators.
type BaselineState string

// The standings of a baseline.
const (
	BaselineLearned  BaselineState = "learned"  // seen in an accepted attestation; compared with nothing
	BaselineApproved BaselineState = "approved" // nodes of the model may show this
)

// Baseline is one set of firmware measurements of a model. A model may have
// several approved ones: before and after an update of its firmware or dbx.
type Baseline struct {
	ID     string           `json:"id"` // 12 hex digits, from Model, Bank and PCRs
	Model  Model            `json:"model"`
	Bank   string           `json:"bank"`
	PCRs   map[int]string   `json:"pcrs"`             // hex
	Events map[int][]string `json:"events,omitempty"` // digests that led there, by PCR, to name the one that differs
	State  BaselineState    `json:"state"`
	Node   string           `json:"node"` // that showed it first; "" for one that was announced
	First  time.Time        `json:"first"`
	By     string           `json:"by,omitempty"` // who approved it
}
