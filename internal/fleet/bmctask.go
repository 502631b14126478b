package fleet

// BMCTask is work that a BMC does by itself, such as an update of firmware.
type BMCTask struct {
	Path    string `json:"path"`              // Redfish path, to ask again; "" if the BMC names none
	State   string `json:"state"`             // "Running", "Completed", "Exception", …; "" if not known
	Percent int    `json:"percent,omitempty"` //
	Done    bool   `json:"done"`              // it has ended
	Failed  bool   `json:"failed,omitempty"`
	Message string `json:"message,omitempty"` // the BMC's, untrusted
}
