// Package secureboot makes the keys of UEFI Secure Boot, signs EFI programs
// with them, and brings them into firmware. It is pure: bytes in, bytes out.
//
//	PK   platform key          who owns the machine: changes KEK
//	KEK  key exchange key      changes db and dbx
//	db   signature database    signs systemd-boot and UKIs
//
// Formats: Microsoft's "Windows Authenticode Portable Executable Signature
// Format", PKCS #7 (RFC 2315) by hand on encoding/asn1, and UEFI 2.10, sections
// 8.2.2 (authenticated variables), 32.4.1 (signature lists) and 32.3 (PK, KEK,
// db). Signatures hold no time and are RSA PKCS #1 v1.5, so that the same key
// and file give the same bytes.
//
// It may not be imported by the node or the server: a key that signs boot
// programs belongs where images are built.
package secureboot
