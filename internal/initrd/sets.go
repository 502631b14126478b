package initrd

import "slices"

// Set names modules an initrd should have, in the order in which they are
// wanted. Optional ones are left out if the kernel has none.
type Set struct {
	Required []string
	Optional []string
}

// With returns s followed by o.
func (s Set) With(o Set) Set {
	return Set{slices.Concat(s.Required, o.Required), slices.Concat(s.Optional, o.Optional)}
}

// Slot is what starting a slot from a local disk takes: the root's file
// system and its verity target, the ESP, the state partition, disks, and
// watchdogs. Hardware watchdogs come before the software one, so that they
// are /dev/watchdog0 where there are any.
var Slot = Set{
	Required: []string{"dm-verity", "squashfs", "vfat", "nls_cp437", "nls_ascii", "ext4"},
	Optional: []string{
		"nls_iso8859-1", "efivarfs", "overlay",
		// what lists PCI and TPM devices on some kernels
		"virtio_pci", "tpm_tis", "tpm_crb", "qemu_fw_cfg",
		// watchdogs
		"lpc_ich", "i2c_i801", "iTCO_wdt", "i6300esb", "sp5100_tco", "hpwdt", "wdat_wdt", "ipmi_si", "ipmi_devintf", "ipmi_watchdog", "softdog",
		// disks
		"virtio_blk", "virtio_scsi", "nvme", "ahci", "ata_piix", "sd_mod", "megaraid_sas", "mpt3sas", "smartpqi", "aacraid", "vmd", "mvsas",
		"virtio_rng", "crc32c_intel",
	},
}

// Network is what the installer needs besides: the network cards of servers
// and of virtual machines. Cards whose driver asks for firmware files are
// left out, because the initrd has none.
var Network = Set{
	Optional: []string{
		"af_packet", "virtio_net", "e1000", "e1000e", "igb", "igc", "ixgbe", "i40e", "ice",
		"tg3", "bnxt_en", "mlx4_en", "mlx5_core", "ena", "vmxnet3", "atlantic", "r8169",
	},
}
