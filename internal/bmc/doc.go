// Package bmc speaks Redfish (DMTF DSP0266) to the management controllers of
// nodes: power, the next boot, inventory, firmware, sensors. It is the only
// user of gofish.
//
//	Open(Target) -> Session -> Power, BootOnce, Machine, Firmware, Sensors, Update -> Close
//
// Trust: a BMC is known by the SHA-256 of its certificate (most BMCs sign
// their own), or by a CA; there is no way to talk to one without either.
// Passwords are kept sealed with a key that is a file of its own (see Keys).
//
// What differs by vendor is data: quirks.yaml, each row with its source.
package bmc
