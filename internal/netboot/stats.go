package netboot

import (
	"sync/atomic"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// Stats counts what the server did since it started. The fields may be read
// at any time.
type Stats struct {
	Discovers, Requests, Informs, Declines, Releases atomic.Int64 // understood, by type
	Replies                                          atomic.Int64 // sent
	Naks                                             atomic.Int64 // of those, refusals
	Malformed                                        atomic.Int64 // dropped: could not be understood
	Ignored                                          atomic.Int64 // understood, but not for us
	Refused                                          atomic.Int64 // clients that boot, given no file
	Overflow                                         atomic.Int64 // dropped: all workers busy
	Exhausted                                        atomic.Int64 // no free address
	SendErrors                                       atomic.Int64

	TFTPSent, TFTPProbes, TFTPFailed, TFTPRefused atomic.Int64 // transfers: whole, size probes, broken off, turned away
	TFTPBytes, TFTPRetransmits                    atomic.Int64
	HTTPSent, HTTPProbes, HTTPFailed, HTTPRefused atomic.Int64
	HTTPBytes                                     atomic.Int64
}

func (s *Stats) count(t dhcpv4.MessageType) {
	switch t {
	case dhcpv4.MessageTypeDiscover:
		s.Discovers.Add(1)
	case dhcpv4.MessageTypeRequest:
		s.Requests.Add(1)
	case dhcpv4.MessageTypeInform:
		s.Informs.Add(1)
	case dhcpv4.MessageTypeDecline:
		s.Declines.Add(1)
	case dhcpv4.MessageTypeRelease:
		s.Releases.Add(1)
	}
}
