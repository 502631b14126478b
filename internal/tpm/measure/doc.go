// Package measure computes, from finished boot files, what a TPM must show
// after they ran: Authenticode digests (PCR 4) and the sections of a unified
// kernel image (PCR 11).
//
// It works on bytes and opens neither files nor a TPM, so that the builder
// predicts and the server explains with the same code. Input may be hostile:
// every offset is checked, nothing is allocated by a size from the file.
//
// Who measures what, in the order of a boot:
//
//	firmware      PCR 4  "Calling EFI Application from Boot Option", separator,
//	                     then each EFI application it loads, by Authenticode digest
//	systemd-stub  PCR 11 name and contents of each section of the UKI
//	nodeagent     PCR 11 the words "enter-initrd" and "leave-initrd"
//
// Sources: TCG PC Client Platform Firmware Profile section 3.3.4; Windows
// Authenticode Portable Executable Signature Format; the source of
// systemd-stub 252, 254 and 257.
package measure

// Banks are the PCR banks for which values are predicted.
var Banks = []string{"sha256", "sha384"}
