package fleet

import "time"

// RolloutState is where a rollout stands.
type RolloutState string

// The states of a rollout.
const (
	RolloutRunning RolloutState = "running"
	RolloutPaused  RolloutState = "paused" // by an operator
	RolloutHalted  RolloutState = "halted" // by itself: failure budget used up
	RolloutDone    RolloutState = "done"
	RolloutAborted RolloutState = "aborted" // by an operator; what it changed stays or was undone
)

// Rollout moves pools to an image in ordered stages.
type Rollout struct {
	ID      string       `json:"id"`
	Image   string       `json:"image"`
	State   RolloutState `json:"state"`
	Reason  string       `json:"reason,omitempty"` // why halted, paused or aborted
	Policy  Policy       `json:"policy"`
	Stage   int          `json:"stage"`            // index of the current stage
	BakedAt time.Time    `json:"bakedAt,omitzero"` // when the current stage became complete
	Nodes   []Move       `json:"nodes"`            // every node of every stage, in order
	By      string       `json:"by"`
	Created time.Time    `json:"created"`
	Updated time.Time    `json:"updated"`
}

// Policy is how fast and how carefully a rollout goes.
type Policy struct {
	Stages         []RolloutStage `json:"stages"`
	MaxUnavailable Amount         `json:"maxUnavailable"`     // nodes of a stage that move at once; at least 1
	FailureBudget  Amount         `json:"failureBudget"`      // failed nodes of the rollout tolerated before it halts; 0 halts at the first
	Bake           time.Duration  `json:"bake"`               // wait after each stage but the last
	Timeout        time.Duration  `json:"timeout"`            // a node that took longer counts as failed; 0 means 30 min
	Tries          int            `json:"tries"`              // trial boots; 0 means DefaultTries
	FlipBack       bool           `json:"flipBack"`           // on halt, return what this rollout changed
	Retry          bool           `json:"retry,omitempty"`    // an operator's word: try nodes on which the image is banned, too
	Windows        []Window       `json:"windows,omitempty"`  // when nodes may be started; none: at any time
	ByDomain       bool           `json:"byDomain,omitempty"` // nodes of one failure domain start together

	Drain     string        `json:"drain,omitempty"`     // hook of the server that takes a node out of the scheduler first; "": none
	DrainWait time.Duration `json:"drainWait,omitempty"` // how long its jobs may go on; 0 means 1 h
}

// Amount is a number of nodes, or a percentage of some ("25%"). The zero
// value is no node.
type Amount struct {
	Nodes   int
	Percent int // used if above 0
}

// MoveState is where one node stands in a rollout.
type MoveState string

// The states of a node's move.
const (
	MoveWaiting   MoveState = "waiting"
	MoveDraining  MoveState = "draining"  // the scheduler was asked to take its jobs away
	MoveMoving    MoveState = "moving"    // desired image was set
	MoveDone      MoveState = "done"      // confirmed on the image
	MoveFailed    MoveState = "failed"    // fell back, or took too long
	MoveSkipped   MoveState = "skipped"   // gone, cordoned, banned, already there: see Reason
	MoveReturning MoveState = "returning" // on its way back after a halt
	MoveReturned  MoveState = "returned"  // flipped back after a halt
)

// Move is one node's part in a rollout.
type Move struct {
	Node       string    `json:"node"`
	Stage      int       `json:"stage"`
	State      MoveState `json:"state"`
	From       string    `json:"from,omitempty"` // image before
	Generation uint64    `json:"generation,omitempty"`
	Reason     string    `json:"reason,omitempty"`
	Started    time.Time `json:"started,omitzero"`
	Ended      time.Time `json:"ended,omitzero"`

	Drain     DrainState `json:"drain,omitempty"`
	DrainFrom time.Time  `json:"drainFrom,omitzero"`  // when it was asked for
	DrainNote string     `json:"drainNote,omitempty"` // last word of the hook
	Back      bool       `json:"back,omitempty"`      // it drains for the way back
}

// DrainState is where a node stands with the scheduler of its jobs.
type DrainState string

// The states of draining; "" is a node that was never asked for.
const (
	DrainAsked  DrainState = "asked"   // may still run jobs
	DrainDone   DrainState = "drained" // runs none, gets none
	DrainIsOver DrainState = "over"    // given back to the scheduler
)

// Held reports whether the scheduler was asked to spare a node and not yet
// told to use it again.
func (m *Move) Held() bool { return m.Drain == DrainAsked || m.Drain == DrainDone }
