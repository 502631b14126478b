package store

// Record is a document that a part of the server keeps under a kind and a
// key of its own. Kinds in use: "bmc" (key: node), "recovery", "alert",
// "usage".
type Record struct {
	Kind string `json:"kind"`
	Key  string `json:"key"`
	Node string `json:"node,omitempty"` // the node with which it is forgotten, "" for none
	Doc  []byte `json:"doc"`            // any bytes, JSON as a rule
}
