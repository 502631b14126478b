// Package vmtest makes virtual racks: QEMU nodes with UEFI firmware, a
// software TPM, a hardware watchdog and a blank disk, on a bridge inside a
// network namespace of their own. It is used by the machine tests and by
// `make demo`; no shipped program imports it.
//
// It needs root and the programs qemu-system-x86_64, swtpm, swtpm_setup and
// ip, and OVMF's firmware files (see Missing). Nothing it starts outlives
// Rack.Close, and no packet leaves the namespace.
package vmtest
