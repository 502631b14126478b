package api

import (
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// Paths of the operator API. {…} are path segments.
//
//	GET    nodes                 []fleet.Node
//	POST   nodes                 NodeRequest       -> fleet.Node   add a node before it is seen
//	GET    nodes/{node}          fleet.Node
//	DELETE nodes/{node}
//	POST   nodes/{node}/approve  NodeRequest       -> fleet.Node   optional new name and pool
//	POST   nodes/{node}/cordon   NodeRequest       -> fleet.Node
//	POST   nodes/{node}/uncordon                   -> fleet.Node
//	POST   nodes/{node}/domain   NodeRequest       -> fleet.Node   its failure domain
//	POST   nodes/{node}/unban    NodeRequest       -> fleet.Node   image, "" for all
//	POST   nodes/{node}/cleartpm                   -> fleet.Node   forget its TPM: the next one is bound
//	POST   nodes/{node}/revoke                     -> fleet.Node   its certificates: it must prove its TPM again
//	POST   nodes/{node}/attest                     -> fleet.Node   it attests with the answer to its next heartbeat
//	POST   nodes/{node}/reimage  NodeRequest       -> fleet.Node   image, "" for its pool's
//	POST   slots/flip            FlipRequest       -> []Flip
//	GET    pools                 []fleet.Pool
//	PUT    pools/{pool}          fleet.Pool        -> fleet.Pool
//	GET    baselines             []fleet.Baseline
//	POST   baselines             AnnounceRequest   -> fleet.Baseline   approved before a node shows it
//	POST   baselines/{id}/approve                  -> fleet.Baseline
//	DELETE baselines/{id}
//	GET    images                []fleet.Image
//	POST   images                PublishRequest    -> fleet.Image
//	POST   images/{digest}/revoke|restore ReasonRequest -> fleet.Image
//	HEAD   blobs/{digest}        200 or 404
//	PUT    blobs/{digest}        bytes
//	GET    rollouts              []fleet.Rollout
//	POST   rollouts              RolloutRequest    -> fleet.Rollout
//	GET    rollouts/{id}         fleet.Rollout
//	POST   rollouts/{id}/pause|resume|abort|undo  ReasonRequest -> fleet.Rollout
//	GET    events?after=&node=&kind=&limit=&last=&wait=   []fleet.Event
//	GET    version               Version
const (
	PathNodes     = "/v1/nodes"
	PathFlip      = "/v1/slots/flip"
	PathPools     = "/v1/pools"
	PathBaselines = "/v1/baselines"
	PathImageList = "/v1/images"
	PathBlobs     = "/v1/blobs/"
	PathRollouts  = "/v1/rollouts"
	PathEventList = "/v1/events"
	PathVersion   = "/v1/version"
)

// MaxEventWait is the longest an events request may wait for news.
const MaxEventWait = 55 * time.Second

// NodeRequest carries what an act on a node needs; the rest is empty.
type NodeRequest struct {
	Name    string            `json:"name,omitempty"`  // add; approve: rename
	Pool    string            `json:"pool,omitempty"`  // add, approve
	MACs    []string          `json:"macs,omitempty"`  // add; any spelling
	Image   string            `json:"image,omitempty"` // unban, reimage: digest, its first digits, or "name version"
	Reason  string            `json:"reason,omitempty"`
	Domain  *string           `json:"domain,omitempty"`  // domain: failure domain, "" for none
	Labels  map[string]string `json:"labels,omitempty"`  // add, label: labels to set
	Unlabel []string          `json:"unlabel,omitempty"` // label: keys of labels to take away
	Retry   bool              `json:"retry,omitempty"`   // reimage: although the image is banned on the node
	Disk    string            `json:"disk,omitempty"`    // reimage: pattern of the disk to install on, "" as the image says
}

// FlipRequest asks nodes to boot their other confirmed slot.
type FlipRequest struct {
	Nodes  []string `json:"nodes"`
	DryRun bool     `json:"dryRun"` // say what would be done, do nothing
	Reason string   `json:"reason,omitempty"`
}

// Flip is what a FlipRequest means for one node. All nodes of a request are
// flipped, or none: if one is refused, none is touched.
type Flip struct {
	Node       string     `json:"node"`
	From       fleet.Slot `json:"from,omitempty"`
	To         fleet.Slot `json:"to,omitempty"`
	Image      string     `json:"image,omitempty"` // digest in the other slot
	Name       string     `json:"name,omitempty"`  // of that image, for people
	Generation uint64     `json:"generation,omitempty"`
	Refused    string     `json:"refused,omitempty"` // why not, "" when it can be
	Done       bool       `json:"done"`
}

// PublishRequest makes an image known whose blobs are all there.
type PublishRequest struct {
	Manifest  []byte `json:"manifest"`  // OCI manifest; its SHA-256 is the image digest
	Signature []byte `json:"signature"` // over the image digest, see manifest.Verify
}

// RolloutRequest starts a rollout, or with DryRun only says what it would be.
type RolloutRequest struct {
	Image  string       `json:"image"` // digest, its first digits, or "name version"
	Policy fleet.Policy `json:"policy"`
	DryRun bool         `json:"dryRun"`
}

// AnnounceRequest describes firmware that nodes are going to have. It begins
// with a log or with another baseline, and says what will be different.
type AnnounceRequest struct {
	Like     string         `json:"like,omitempty"`     // ID of a baseline, or the beginning of it
	EventLog []byte         `json:"eventLog,omitempty"` // of a machine that was updated, as the kernel shows it
	Model    fleet.Model    `json:"model"`              // what is empty is as in Like
	PCRs     map[int]string `json:"pcrs,omitempty"`     // hex; values that the maker of the firmware published
	DBX      []byte         `json:"dbx,omitempty"`      // whole contents of the variable after an update
	Reason   string         `json:"reason,omitempty"`
}

// ReasonRequest accompanies pause, resume and abort.
type ReasonRequest struct {
	Reason   string `json:"reason,omitempty"`
	FlipBack bool   `json:"flipBack,omitempty"` // abort: return what the rollout changed
	AtOnce   string `json:"atOnce,omitempty"`   // undo: nodes of a stage on the move at once, "" as on the way there
}

// Version says which server answers.
type Version struct {
	Version   string `json:"version"`
	Heartbeat int    `json:"heartbeat"` // seconds
}
