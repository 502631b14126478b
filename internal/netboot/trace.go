package netboot

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// Trace is one DHCP request and what became of it.
type Trace struct {
	At        time.Time
	Interface string
	From      netip.AddrPort // sender of the request
	To        netip.AddrPort // where it was sent to: ours, or broadcast
	Type      string         // of the request: "DISCOVER", …; "" if it was not understood
	Client    Client         // zero if it was not understood
	Answer    string         // "OFFER", "ACK", "NAK"; "" for silence
	Via       string         // how the answer went: "relay", "unicast", "broadcast", "frame"
	ReplyFrom netip.AddrPort
	ReplyTo   netip.AddrPort
	IP        netip.Addr // address offered or acknowledged
	File      string     // name or URL of the boot file
	Why       string     // the reason for answer or silence
	Request   []byte     // UDP payloads
	Reply     []byte
}

// String is one line for people.
func (t Trace) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s", t.At.Format("15:04:05.000"), t.Interface, t.Client.Name())
	if t.Type == "" {
		fmt.Fprintf(&b, " %d bytes from %s", len(t.Request), t.From)
	} else {
		fmt.Fprintf(&b, " %s (%s)", t.Type, strings.TrimSpace(string(t.Client.Kind)+" "+t.Client.CPU()))
	}
	if t.Answer == "" {
		b.WriteString(" -> silence")
	} else {
		fmt.Fprintf(&b, " -> %s by %s to %s", t.Answer, t.Via, t.ReplyTo)
		if t.IP.IsValid() {
			fmt.Fprintf(&b, " ip=%s", t.IP)
		}
		if t.File != "" {
			fmt.Fprintf(&b, " file=%s", t.File)
		}
	}
	if t.Why != "" {
		b.WriteString(": " + t.Why)
	}
	return b.String()
}

// traceOf tells the story of r (nil: not understood) and its reply (nil:
// silence).
func (e *engine) traceOf(b []byte, a arrival, r *request, why string, p *reply) Trace {
	port := uint16(serverPort)
	if a.bootServer {
		port = 4011
	}
	t := Trace{At: e.now(), Interface: a.iface, From: a.src, To: netip.AddrPortFrom(a.dst, port), Why: why, Request: clone(b)}
	if r != nil {
		t.Type, t.Client = r.msg.MessageType().String(), r.client
	}
	if p == nil {
		return t
	}
	t.Answer, t.Reply = p.msg.MessageType().String(), p.msg.ToBytes()
	t.ReplyFrom, t.ReplyTo = netip.AddrPortFrom(p.from, port), p.to
	switch {
	case p.hw != nil:
		t.Via = "frame"
	case p.to.Addr() == broadcastAll:
		t.Via = "broadcast"
	case r.client.Relay.IsValid() && !a.bootServer:
		t.Via = "relay"
	default:
		t.Via = "unicast"
	}
	if ip := addr4(p.msg.YourIPAddr); ip.IsValid() && !ip.IsUnspecified() {
		t.IP = ip
	}
	if t.File = string(p.msg.Options[67]); t.File == "" {
		t.File = p.msg.BootFileName
	}
	return t
}

// PcapHeader starts a capture file (libpcap, microseconds, raw IPv4).
func PcapHeader(w io.Writer) error {
	h := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	h = binary.LittleEndian.AppendUint32(h, 2|4<<16)
	h = append(h, make([]byte, 8)...)
	h = binary.LittleEndian.AppendUint32(h, 1<<16)
	h = binary.LittleEndian.AppendUint32(h, 101) // LINKTYPE_RAW
	_, err := w.Write(h)
	return err
}

// Pcap appends request and reply to a capture file. The IP headers are made
// up from the addresses.
func (t Trace) Pcap(w io.Writer) error {
	for _, p := range []struct {
		from, to netip.AddrPort
		payload  []byte
	}{{t.From, t.To, t.Request}, {t.ReplyFrom, t.ReplyTo, t.Reply}} {
		if p.payload == nil {
			continue
		}
		pkt := udpPacket(orZero(p.from), orZero(p.to), p.payload)
		h := binary.LittleEndian.AppendUint32(nil, uint32(t.At.Unix()))
		h = binary.LittleEndian.AppendUint32(h, uint32(t.At.Nanosecond()/1000))
		h = binary.LittleEndian.AppendUint32(h, uint32(len(pkt)))
		h = binary.LittleEndian.AppendUint32(h, uint32(len(pkt)))
		if _, err := w.Write(append(h, pkt...)); err != nil {
			return err
		}
	}
	return nil
}

func orZero(a netip.AddrPort) netip.AddrPort {
	if !a.Addr().Is4() {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), a.Port())
	}
	return a
}

// Explanation is what a client would get, and why.
type Explanation struct {
	Answer   Answer
	Silent   bool              // DHCP would not answer
	Why      string            //
	Profile  Profile           // shape of a PXE reply
	Reply    map[string]string // what DHCP would say of booting: "siaddr", "file", "option 60", …
	Download string            // URL, or tftp:// name
}

// Explain tells what a client would be given, without giving it or counting
// it. c needs MAC, Kind and Arch; Relay or IP choose the subnet, else it is
// the first. It works on a server that does not run.
func (s *Server) Explain(ctx context.Context, c Client) (Explanation, error) {
	s.init()
	ans, err := decide(ctx, s.Policy, c)
	if err != nil {
		return Explanation{}, err
	}
	x := Explanation{Answer: ans, Why: ans.Reason, Silent: c.Kind.Boots() && !ans.Serves()}
	if !c.Kind.Boots() {
		x.Why = "asks for an address only"
	}
	if x.Silent || !c.Kind.Boots() {
		return x, nil
	}
	msg := &dhcpv4.DHCPv4{Options: dhcpv4.Options{53: {1}}}
	r := &request{msg: msg, client: c}
	for _, a := range []netip.Addr{c.Relay, c.IP} {
		if r.subnet == nil && a.IsValid() {
			r.subnet = s.engine.subnetOf(a)
		}
	}
	if r.subnet == nil && len(s.Config.Subnets) > 0 {
		r.subnet = &s.Config.Subnets[0]
	}
	if r.server = s.engine.serverAddr(r); !r.server.IsValid() && r.subnet != nil {
		r.server = r.subnet.Prefix.Addr().Next()
	}
	s.engine.pickProfile(&ans, c)
	m := s.engine.reply(r, dhcpv4.MessageTypeOffer)
	s.engine.shapeBoot(m, r, ans, s.Config.Mode == ModeProxy)
	x.Profile, x.Reply = ans.Profile, replyText(m)
	if x.Download = x.Reply["option 67"]; !strings.Contains(x.Download, "://") {
		x.Download = "tftp://" + r.server.String() + "/" + ans.File
	}
	return x, nil
}

func replyText(m *dhcpv4.DHCPv4) map[string]string {
	t := map[string]string{"siaddr": m.ServerIPAddr.String()}
	if m.BootFileName != "" {
		t["file"] = m.BootFileName
	}
	for _, code := range []uint8{60, 66, 67} {
		if v, ok := m.Options[code]; ok {
			t[fmt.Sprintf("option %d", code)] = string(v)
		}
	}
	for _, code := range []uint8{43, 175} {
		if v, ok := m.Options[code]; ok {
			t[fmt.Sprintf("option %d", code)] = hex.EncodeToString(v)
		}
	}
	return t
}
