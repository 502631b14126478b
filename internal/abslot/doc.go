// Package abslot is the A/B slot state machine of a node: which state each
// slot is in, what may happen next, and the one rename that makes it happen.
//
// The state of a slot is the name of its UKI on the EFI system partition
// (ESP), which systemd-boot reads and counts down by itself:
//
//	EFI/Linux/g000007-0123456789ab.efi      good      (confirmed)
//	EFI/Linux/g000008-ba9876543210+2.efi    armed     (two trial boots left)
//	EFI/Linux/g000008-ba9876543210+1-1.efi  trying
//	EFI/Linux/g000008-ba9876543210+0-50.efi bad       (condemned; +0-k by the loader: out of tries)
//	EFI/Linux/ba9876543210.new              staged    (no loader starts a name without .efi)
//	EFI/Linux/ba9876543210.tmp              writing
//
// Names carry no slot: a UKI belongs to the slot whose verity tree has the
// root hash of the UKI's command line. docs/slots.md has the transitions with
// their write orders and guards.
//
// The package is pure: files are reached through ESP (carriers in the
// subpackages memesp, fatesp and espdir), everything else through the
// functions of Config. It knows no TPM, no network and no block device.
package abslot
