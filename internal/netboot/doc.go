// Package netboot answers machines that boot over the network: DHCP (full
// server or ProxyDHCP), TFTP and HTTP.
//
// One question is asked of one place: Policy.Decide says what a Client may
// have, for DHCP, TFTP and HTTP alike. DHCP names the file; TFTP and HTTP
// hand out that one file to the address the machine was seen with, and
// nothing else: there is no directory that could be escaped from.
//
//	packet --ParseClient--> Client --Policy--> Answer --shape--> reply
//	source address --book--> Client --Policy--> Answer --> bytes
//
// What a packet means (client.go, packet.go), what is answered (dhcp.go,
// proxy.go, shape.go) and which address is leased (pool.go) are pure;
// sockets are in socket.go, tftp.go and http.go, and Server ties them
// together. The package knows nothing of images or nodes beyond fleet's MAC.
//
// Standards: RFC 951, 2131, 2132, 3046, 3396, 3527, 4390, 4578, 5107, 5970,
// 6842 (DHCP); PXE 2.1; RFC 1350, 2347-2349, 7440 (TFTP); UEFI 2.10 section
// 24 (PXE and HTTP boot). docs/netboot.md lists where we deviate.
package netboot
