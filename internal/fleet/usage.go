package fleet

import "time"

// Use is one device of a node that can be given to somebody, and who has it:
// a GPU, or an instance of one that is cut (then the GPU itself is not
// listed).
type Use struct {
	Device   string  `json:"device"`            // "0" for GPU 0, "0/7" for its GPU instance 7, "0/7/1" where that is cut into compute instances
	Profile  string  `json:"profile,omitempty"` // of an instance, "1g.10gb"; "" for a whole GPU
	Occupied bool    `json:"occupied"`          // a process has it open, or a scheduler has given it away
	Tenant   string  `json:"tenant,omitempty"`  // label of who has it; "" if nobody says
	Load     float64 `json:"load,omitempty"`    // of its compute units now, 0 to 1; 0 too if not known
}

// UsageRow is what devices of one kind were used for in a time. Times are in
// hours of one device: two GPUs for half an hour are 1.
type UsageRow struct {
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	Pool     string    `json:"pool"`
	Profile  string    `json:"profile"`  // "gpu" for whole ones
	Tenant   string    `json:"tenant"`   // "" for what nobody is known to have had
	Occupied float64   `json:"occupied"` // that the tenant had
	Load     float64   `json:"load"`     // of that, weighted by load
	Free     float64   `json:"free"`     // tenant "" only: nobody had them
	Unknown  float64   `json:"unknown"`  // tenant "" only: their node was silent
}
