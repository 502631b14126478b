package netboot

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/turnout-project/turnout/internal/api"
)

// Profile is the shape of the replies to PXE firmware. Families of firmware
// contradict each other, so no shape suits all; a node that does not boot
// with the default gets another.
type Profile string

// The profiles.
const (
	ProfileAuto   Profile = ""       // plain from our own DHCP server, direct from ProxyDHCP
	ProfilePlain  Profile = "plain"  // server and file in the header and options 66 and 67; no option 60, no 43
	ProfileDirect Profile = "direct" // option 60 PXEClient, and 43 that says "use this file, ask nobody"
	// ProfileBootServer sends option 60 PXEClient and no 43: the client asks
	// UDP 4011 for the file. Some firmware ignores every offer with a 43.
	ProfileBootServer Profile = "boot-server"
	// ProfileHeader is plain without options 66 and 67, for firmware that
	// reads option 67 beyond its end.
	ProfileHeader Profile = "header"
)

// Profiles lists the profiles an operator may name.
var Profiles = []Profile{ProfilePlain, ProfileDirect, ProfileBootServer, ProfileHeader}

// Bytes of option 43: discovery control 8 (use the boot file of this reply,
// no broadcast, no multicast), end. PXE 2.1 section 2.2.
var useThisFile = []byte{6, 1, 8, 255}

const (
	classPXE  = "PXEClient"
	classHTTP = "HTTPClient"
)

// urlBase is the start of every URL given to clients that know us as server.
func (e *engine) urlBase(server netip.Addr, kind Kind) string {
	if e.cfg.OfferHTTPS && kind == KindUEFIHTTP && e.httpsPort != 0 {
		return "https://" + netip.AddrPortFrom(server, e.httpsPort).String()
	}
	if e.cfg.BootURL != "" {
		return strings.TrimSuffix(e.cfg.BootURL, "/")
	}
	return "http://" + netip.AddrPortFrom(server, e.httpPort).String()
}

// shapeBoot writes the boot file of ans into m, in the form that the client
// understands. viaProxy is true for replies that carry no address.
func (e *engine) shapeBoot(m *dhcpv4.DHCPv4, r *request, ans Answer, viaProxy bool) {
	m.ServerIPAddr = ip4(r.server)
	switch {
	case r.client.Kind == KindIPXE:
		e.shapeURL(m, r, ans)
		set(m, 175, []byte{176, 1, 1}) // no-pxedhcp: do not wait for a proxy
		if viaProxy {
			set(m, 60, []byte(classPXE))
			set(m, 43, useThisFile)
		}
	case r.client.Kind == KindUEFIHTTP || r.client.HasArch && r.client.Arch.http():
		e.shapeURL(m, r, ans)
		set(m, 60, []byte(classHTTP))
	default:
		e.shapePXE(m, r, ans, viaProxy)
	}
	if guid := r.msg.Options.Get(dhcpv4.OptionClientMachineIdentifier); len(guid) == 17 {
		set(m, 97, guid)
	}
}

// shapeURL names the file by an absolute URL. Header and option agree, unless
// the URL is too long for the header.
func (e *engine) shapeURL(m *dhcpv4.DHCPv4, r *request, ans Answer) {
	url := e.urlBase(r.server, r.client.Kind) + "/" + ans.File
	set(m, 67, []byte(url))
	if len(url) < 128 {
		m.BootFileName = url
	}
}

func (e *engine) shapePXE(m *dhcpv4.DHCPv4, r *request, ans Answer, viaProxy bool) {
	p := ans.Profile
	if p == ProfileAuto || viaProxy && (p == ProfilePlain || p == ProfileHeader) {
		p = ProfilePlain
		if viaProxy { // without option 60 it would be no proxy offer
			p = ProfileDirect
		}
	}
	if p == ProfileBootServer && !r.bootServer && e.hasBootServer {
		set(m, 60, []byte(classPXE))
		return
	}
	m.ServerHostName, m.BootFileName = r.server.String(), ans.File
	if p != ProfileHeader {
		set(m, 66, []byte(r.server.String()))
		set(m, 67, []byte(ans.File))
	}
	if r.bootServer {
		set(m, 60, []byte(classPXE))
		set(m, 43, bootServer43(r.msg.Options.Get(dhcpv4.OptionVendorSpecificInformation)))
	} else if p == ProfileDirect || p == ProfileBootServer {
		set(m, 60, []byte(classPXE))
		set(m, 43, useThisFile)
	}
}

// bootServer43 answers a boot server request: the boot item the client asked
// for (sub-option 71), if any, and discovery control.
func bootServer43(asked []byte) []byte {
	for v := asked; len(v) >= 2 && v[0] != 255; {
		if v[0] == 0 {
			v = v[1:]
			continue
		}
		n := int(v[1])
		if 2+n > len(v) {
			break
		}
		if v[0] == 71 && n == 4 {
			return append(append([]byte{6, 1, 8, 71, 4}, v[2:6]...), 255)
		}
		v = v[2+n:]
	}
	return useThisFile
}

// shapeNetwork writes what belongs to the subnet.
func (e *engine) shapeNetwork(m *dhcpv4.DHCPv4, r *request) {
	s := r.subnet
	mask := [4]byte{}
	binary.BigEndian.PutUint32(mask[:], ^uint32(0)<<(32-s.Prefix.Bits()))
	set(m, 1, mask[:])
	set(m, 28, ip4(s.broadcast()))
	if s.Router.IsValid() {
		set(m, 3, ip4(s.Router))
	}
	set(m, 6, join(s.DNS))
	set(m, 42, join(s.NTP))
	set(m, 15, []byte(s.Domain))
	if s.MTU > 0 {
		set(m, 26, binary.BigEndian.AppendUint16(nil, uint16(s.MTU)))
	}
	if res, ok := s.reservation(r.client.MAC); ok {
		set(m, 12, []byte(res.Hostname))
	}
	if e.cfg.NodeAPI != "" && (r.client.Kind == KindNodeAgent || asksFor(r.msg, api.DHCPOptionServer)) {
		set(m, api.DHCPOptionServer, []byte(e.cfg.NodeAPI))
	}
}

// shapeTimes writes lease, renewal and rebinding time.
func shapeTimes(m *dhcpv4.DHCPv4, lease time.Duration) {
	for code, d := range map[byte]time.Duration{51: lease, 58: lease / 2, 59: lease * 7 / 8} {
		set(m, code, binary.BigEndian.AppendUint32(nil, uint32(d/time.Second)))
	}
}

// fit drops the least needed options until m fits the size the client takes
// (option 57, at least 576 bytes of IP packet).
func fit(m, req *dhcpv4.DHCPv4) {
	limit := 576
	if n, err := req.MaxMessageSize(); err == nil && int(n) > limit {
		limit = int(n)
	}
	for _, code := range []uint8{42, 15, 12, 28, 66, 6} {
		if len(m.ToBytes())+28 <= limit {
			return
		}
		delete(m.Options, code)
	}
}

func asksFor(m *dhcpv4.DHCPv4, code byte) bool {
	for _, c := range m.Options.Get(dhcpv4.OptionParameterRequestList) {
		if c == code {
			return true
		}
	}
	return false
}

func join(as []netip.Addr) []byte {
	var b []byte
	for _, a := range as {
		b = append(b, ip4(a)...)
	}
	return b
}
