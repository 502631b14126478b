package fleet

import "time"

// Event is one line of the fleet's history: who, when, what, why. Events are
// only ever appended.
type Event struct {
	ID      int64     `json:"id"`             // rising, given by the store
	At      time.Time `json:"at"`             // server clock
	Actor   string    `json:"actor"`          // "operator:alice", "node:n1", "rollout:r1", "server"
	Node    string    `json:"node,omitempty"` // the node it concerns
	Kind    string    `json:"kind"`           // dotted word: "dhcp.offer", "node.enrolled", "slot.confirmed", "rollout.halted", …
	Message string    `json:"message"`
}

// Image is a published image as the server lists it.
type Image struct {
	Digest    string    `json:"digest"` // of the OCI manifest, "sha256:…"
	Name      string    `json:"name"`
	Version   string    `json:"version"`
	Kernel    string    `json:"kernel"`
	SizeBytes int64     `json:"sizeBytes"` // root + verity + UKI
	Published time.Time `json:"published"`

	Revoked *Revocation `json:"revoked,omitempty"` // nil: it may be used
}

// Revocation is an operator's word that an image must not run any more:
// whoever proves to run it is refused, and nobody is sent it.
type Revocation struct {
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
}

// Pool is a set of nodes that should run the same image.
type Pool struct {
	Name        string `json:"name"`
	Image       string `json:"image,omitempty"` // what a fresh node of the pool installs
	AutoApprove bool   `json:"autoApprove,omitempty"`
}
