//go:build linux

// Package boot is nodeagent as PID 1 of an initrd. It brings up the kernel's
// file systems, modules and a watchdog, and then either starts the slot whose
// root hash the UKI's command line carries, or runs the installer.
//
//	mounts -> modules -> watchdog -> PCR 11 "enter-initrd"
//	slot:      find the disk -> verify -> dm-verity -> /sysroot -> state, /var
//	           -> PCR 11 "leave-initrd" -> switch_root
//	installer: network -> enrol -> attest -> disk -> slot A -> reboot
//
// Nothing here may end silently: whatever fails is said on the console, and
// the machine is reset a few seconds later, so that the loader can count the
// try and the other slot gets its turn. No writable or unverified file system
// is ever mounted over the verified root but /var.
package boot
