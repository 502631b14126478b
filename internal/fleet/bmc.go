package fleet

// PowerAct is what can be done to a machine's power through its BMC.
type PowerAct string

// The acts. An act that finds the machine as it wants it does nothing.
const (
	PowerOn       PowerAct = "on"
	PowerOff      PowerAct = "off"      // at once, as if the cord was pulled
	PowerShutdown PowerAct = "shutdown" // asks the operating system
	PowerCycle    PowerAct = "cycle"    // off and on; on if it is off
)

// BootTarget is what a machine boots next time, once.
type BootTarget string

// The targets.
const (
	BootPXE  BootTarget = "pxe"
	BootHTTP BootTarget = "http" // UEFI HTTP boot
	BootDisk BootTarget = "disk"
	BootNone BootTarget = "none" // as its firmware is set: takes an override back
)

// Machine is what a BMC says of the machine it looks after.
type Machine struct {
	Vendor      string      `json:"vendor,omitempty"`
	Model       string      `json:"model,omitempty"`
	Serial      string      `json:"serial,omitempty"`
	SKU         string      `json:"sku,omitempty"`
	UUID        string      `json:"uuid,omitempty"`
	System      string      `json:"system"` // Redfish ID of the system that was looked at
	Power       string      `json:"power"`  // "On", "Off", "PoweringOn", …
	Health      string      `json:"health,omitempty"`
	BIOSVersion string      `json:"biosVersion,omitempty"`
	MemoryGiB   float64     `json:"memoryGiB,omitempty"`
	Processors  []Processor `json:"processors,omitempty"`
	MACs        []MAC       `json:"macs,omitempty"` // of the host's interfaces
	BMC         BMCInfo     `json:"bmc"`
	Quirks      []string    `json:"quirks,omitempty"` // known oddities of its kind that were allowed for
}

// BMCInfo is what a BMC says of itself.
type BMCInfo struct {
	Model    string `json:"model,omitempty"`
	Firmware string `json:"firmware,omitempty"`
	Redfish  string `json:"redfish,omitempty"` // version of the protocol
}

// Processor is a CPU, GPU or other processor of a machine.
type Processor struct {
	ID     string `json:"id"`
	Kind   string `json:"kind"` // "CPU", "GPU", …
	Model  string `json:"model,omitempty"`
	Health string `json:"health,omitempty"`
}

// Firmware is one piece of firmware of a machine, in the BMC's words.
type Firmware struct {
	ID         string `json:"id"`
	Name       string `json:"name"`
	Version    string `json:"version"`
	Updateable bool   `json:"updateable,omitempty"`
}

// Sensor is one reading of a machine.
type Sensor struct {
	Name     string   `json:"name"`
	Kind     string   `json:"kind"` // "temperature", "fan", "power", "voltage", …
	Reading  float64  `json:"reading"`
	Unit     string   `json:"unit,omitempty"`
	Critical *float64 `json:"critical,omitempty"` // upper critical threshold, nil if unknown
	Health   string   `json:"health,omitempty"`
}
