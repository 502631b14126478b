package fleet

// Ask is a small favour that the server asks of a node's agent with the
// answer to a heartbeat. The agent does it once per ID, a lower or equal ID
// than the last it has done is nothing.
type Ask struct {
	ID  uint64 `json:"id"` // rising per node
	Act AskAct `json:"act"`
}

// AskAct is what an agent can be asked for. It ignores what it does not know.
type AskAct string

// The favours.
const (
	AskRecheck AskAct = "recheck" // run the checks now, and report
	AskAttest  AskAct = "attest"  // attest now, with the whole event log
	AskRestart AskAct = "restart" // end, so that the service manager starts the agent anew
)
