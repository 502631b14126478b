package netboot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/turnout-project/turnout/internal/fleet"
)

// engine turns requests into replies. It does no I/O but through the policy
// and the lease store.
type engine struct {
	cfg           Config
	policy        Policy
	store         LeaseStore
	pool          *pool
	book          *book
	watch         *watch
	stats         *Stats
	log           *slog.Logger
	events        func(kind string, mac fleet.MAC, message string)
	now           func() time.Time
	httpPort      uint16
	httpsPort     uint16 // 0: none
	governor      *governor
	hasBootServer bool // UDP 4011 is answered
	arp           *arpProber
	trace         func(Trace) // nil: nobody looks
}

// arrival is how a packet came in.
type arrival struct {
	iface      string
	ifindex    int
	addrs      []netip.Prefix // addresses of that interface
	hw         net.HardwareAddr
	src        netip.AddrPort
	dst        netip.Addr
	bootServer bool // on port 4011
}

// request is one parsed packet with everything that follows from it.
type request struct {
	arrival
	msg      *dhcpv4.DHCPv4
	client   Client
	subnet   *Subnet    // nil: not one of ours
	serverID netip.Addr // what we call ourselves in option 54
	server   netip.Addr // where TFTP and HTTP are reached
	why      string     // the reason for answer or silence, for the trace
}

// handle answers one packet; nil means silence.
func (e *engine) handle(ctx context.Context, b []byte, a arrival) *reply {
	r, why := e.parse(b, a)
	var p *reply
	if r != nil {
		p, why = e.answer(ctx, r), r.why
	}
	if e.trace != nil {
		e.trace(e.traceOf(b, a, r, why, p))
	}
	return p
}

// parse returns nil, and why, for packets that are no request of a client.
func (e *engine) parse(b []byte, a arrival) (*request, string) {
	msg, err := parseRequest(b)
	switch {
	case errors.Is(err, errNotForUs):
		e.stats.Ignored.Add(1)
		e.log.Debug("dhcp: ignored", "from", a.src, "reason", err)
		return nil, err.Error()
	case err != nil:
		e.stats.Malformed.Add(1)
		e.log.Debug("dhcp: malformed packet", "from", a.src, "bytes", len(b), "reason", err)
		return nil, "malformed: " + err.Error()
	}
	r := e.newRequest(msg, a)
	if r.client.Key() == "" {
		e.stats.Malformed.Add(1)
		e.log.Debug("dhcp: request without hardware address or client identifier", "from", a.src)
		return nil, "no hardware address and no client identifier"
	}
	if g := r.client.Relay; g.IsValid() && !e.knowsRelay(g) {
		e.stats.Ignored.Add(1)
		e.log.Debug("dhcp: relay is not one of ours", "relay", g, "from", a.src)
		return nil, "relay " + g.String() + " is not one of ours"
	}
	e.stats.count(msg.MessageType())
	e.noteIdentity(r)
	return r, ""
}

// knowsRelay reports whether answers may go to g. Anybody can write any
// address into a request as that of a relay: if no relays are configured, it
// must be in a network of ours, or a private one (RFC 1918, RFC 6598).
func (e *engine) knowsRelay(g netip.Addr) bool {
	if len(e.cfg.Relays) > 0 {
		return slices.ContainsFunc(e.cfg.Relays, func(p netip.Prefix) bool { return p.Contains(g) })
	}
	return e.subnetOf(g) != nil || g.IsPrivate() || sharedSpace.Contains(g)
}

var sharedSpace = netip.MustParsePrefix("100.64.0.0/10")

func (e *engine) answer(ctx context.Context, r *request) *reply {
	if r.bootServer {
		return e.bootServerRequest(ctx, r)
	}
	if e.cfg.Mode == ModeProxy {
		return e.proxy(ctx, r)
	}
	return e.serve(ctx, r)
}

func (e *engine) newRequest(msg *dhcpv4.DHCPv4, a arrival) *request {
	r := &request{arrival: a, msg: msg, client: ParseClient(msg)}
	r.client.Interface = a.iface
	r.subnet = e.subnetFor(r)
	r.server = e.serverAddr(r)
	r.serverID = r.server
	if v := relaySuboptions(msg)[11]; len(v) == 4 { // server identifier override, RFC 5107
		r.serverID, _ = netip.AddrFromSlice(v)
	}
	return r
}

// subnetFor finds the network the client sits in: by the relay's link
// selection (RFC 3527), the relay's address, the client's own address, the
// interface.
func (e *engine) subnetFor(r *request) *Subnet {
	var at []netip.Addr
	switch ciaddr := addr4(r.msg.ClientIPAddr); {
	case r.client.Relay.IsValid():
		at = []netip.Addr{r.client.Relay}
		if v := relaySuboptions(r.msg)[5]; len(v) == 4 {
			link, _ := netip.AddrFromSlice(v)
			at = []netip.Addr{link}
		}
	default:
		if ciaddr.IsValid() && !ciaddr.IsUnspecified() {
			at = append(at, ciaddr)
		}
		for _, p := range r.addrs {
			at = append(at, p.Addr())
		}
	}
	for _, a := range at {
		if s := e.subnetOf(a); s != nil {
			return s
		}
	}
	return nil
}

// serverAddr is the address under which this client reaches us.
func (e *engine) serverAddr(r *request) netip.Addr {
	if r.subnet != nil && r.subnet.ServerIP.IsValid() {
		return r.subnet.ServerIP
	}
	if e.cfg.ServerIP.IsValid() {
		return e.cfg.ServerIP
	}
	var first netip.Addr
	for _, p := range r.addrs {
		if p.Addr() == r.dst || r.subnet != nil && r.subnet.Prefix.Contains(p.Addr()) {
			return p.Addr()
		}
		if !first.IsValid() {
			first = p.Addr()
		}
	}
	if r.dst.Is4() && !r.dst.IsUnspecified() && !r.dst.IsMulticast() && r.dst != broadcastAll {
		return r.dst
	}
	return first
}

var broadcastAll = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// isUs reports whether a names this server.
func (r *request) isUs(a netip.Addr) bool {
	return a == r.serverID || a == r.server ||
		slices.ContainsFunc(r.addrs, func(p netip.Prefix) bool { return p.Addr() == a })
}

// noteIdentity tells the operator of identifiers that identify nothing.
func (e *engine) noteIdentity(r *request) {
	if n := r.client.UUIDNote; n != "" && e.watch.once(r.client.Key(), "uuid", e.now(), 24*time.Hour) {
		e.log.Warn("dhcp: machine UUID not usable", "client", r.client.Name(), "reason", n)
		e.event("dhcp.uuid", r.client, "machine UUID not usable: "+n)
	}
}

func (e *engine) event(kind string, c Client, message string) {
	if e.events != nil {
		e.events(kind, c.MAC, message)
	}
}

// serve answers as full DHCP server.
func (e *engine) serve(ctx context.Context, r *request) *reply {
	if r.subnet == nil {
		e.stats.Ignored.Add(1)
		r.why = "no subnet for this interface or relay"
		e.log.Debug("dhcp: no subnet for request", "client", r.client.Name(), "interface", r.iface, "relay", r.client.Relay)
		return nil
	}
	switch r.msg.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		return e.discover(ctx, r)
	case dhcpv4.MessageTypeRequest:
		return e.request(ctx, r)
	case dhcpv4.MessageTypeInform:
		return e.inform(ctx, r)
	case dhcpv4.MessageTypeDecline:
		e.decline(ctx, r)
	case dhcpv4.MessageTypeRelease:
		e.release(ctx, r)
	default:
		e.stats.Ignored.Add(1)
	}
	return nil
}

func (e *engine) discover(ctx context.Context, r *request) *reply {
	ans, ok := e.mayAnswer(ctx, r)
	if !ok {
		return nil
	}
	l, err := e.pool.offer(r.subnet, r.client, optionAddr(r.msg, dhcpv4.OptionRequestedIPAddress), e.now(), e.cfg.OfferHold)
	if err != nil {
		e.stats.Exhausted.Add(1)
		r.why = err.Error()
		if e.watch.once(r.subnet.Prefix.String(), "exhausted", e.now(), time.Minute) {
			e.log.Error("dhcp: no free address", "subnet", r.subnet.Prefix, "client", r.client.Name())
			e.event("dhcp.exhausted", r.client, fmt.Sprintf("no free address in %s: enlarge its pools", r.subnet.Prefix))
		}
		return nil
	}
	if e.arp != nil && l.State == LeaseOffered && !r.client.Relay.IsValid() {
		e.arp.probe(r.ifindex, r.hw, l.IP)
	}
	m := e.reply(r, dhcpv4.MessageTypeOffer)
	m.YourIPAddr = ip4(l.IP)
	e.fill(m, r, ans)
	e.tellOffer(r, ans, l.IP)
	return e.address(m, r)
}

func (e *engine) request(ctx context.Context, r *request) *reply {
	ans, ok := e.mayAnswer(ctx, r)
	if !ok {
		return nil
	}
	chosen := optionAddr(r.msg, dhcpv4.OptionServerIdentifier)
	if chosen.IsValid() && !r.isUs(chosen) {
		e.pool.withdraw(r.subnet, r.client.Key())
		e.watch.requested(r.client.Key())
		r.why = "client chose the server " + chosen.String()
		e.log.Debug("dhcp: client chose another server", "client", r.client.Name(), "server", chosen)
		if r.client.Kind.Boots() && e.watch.once(r.client.Key(), "elsewhere:"+chosen.String(), e.now(), 10*time.Minute) {
			e.event("dhcp.elsewhere", r.client, fmt.Sprintf("took an address from another DHCP server, %s: it boots what that one names; turn it off, or use mode proxy", chosen))
		}
		return nil
	}
	want := optionAddr(r.msg, dhcpv4.OptionRequestedIPAddress)
	if !want.IsValid() {
		want = addr4(r.msg.ClientIPAddr)
	}
	if !r.subnet.Prefix.Contains(want) {
		return e.nak(r, fmt.Sprintf("%s is not an address of %s", want, r.subnet.Prefix))
	}
	lease := e.leaseTime(r.subnet)
	l, ok := e.pool.claim(r.subnet, r.client, want, e.now(), lease)
	if !ok {
		return e.nak(r, fmt.Sprintf("%s is not free for this client", want))
	}
	if err := e.store.PutLease(ctx, l); err != nil {
		r.why = "storing the lease: " + err.Error()
		e.log.Error("dhcp: storing lease", "ip", l.IP, "client", r.client.Name(), "error", err)
		return nil
	}
	m := e.reply(r, dhcpv4.MessageTypeAck)
	m.ClientIPAddr, m.YourIPAddr = r.msg.ClientIPAddr, ip4(l.IP)
	e.fill(m, r, ans)
	e.watch.requested(r.client.Key())
	e.log.Info("dhcp: ack", "client", r.client.Name(), "ip", l.IP, "kind", r.client.Kind, "answer", ans.Kind, "file", ans.File)
	if e.watch.once(r.client.Key(), "ack:"+string(r.client.Kind)+ans.File, e.now(), time.Minute) {
		e.event("dhcp.ack", r.client, fmt.Sprintf("%s has %s", r.client.Kind, l.IP))
	}
	return e.address(m, r)
}

// nak refuses an address. It goes to the broadcast address, or to the relay,
// because the client must not use the address it asked for.
func (e *engine) nak(r *request, why string) *reply {
	e.log.Info("dhcp: nak", "client", r.client.Name(), "reason", why)
	e.stats.Naks.Add(1)
	r.why = why
	m := e.reply(r, dhcpv4.MessageTypeNak)
	set(m, 56, []byte(why))
	p := &reply{msg: m, from: r.server, ifindex: r.ifindex, to: netip.AddrPortFrom(broadcastAll, clientPort)}
	if r.client.Relay.IsValid() {
		m.Flags |= 0x8000 // RFC 2131 section 4.3.2: have the relay broadcast it
		p.to, p.ifindex = r.relayPort(), 0
	}
	return p
}

func (e *engine) inform(_ context.Context, r *request) *reply {
	m := e.reply(r, dhcpv4.MessageTypeAck)
	m.ClientIPAddr = r.msg.ClientIPAddr
	e.shapeNetwork(m, r)
	fit(m, r.msg)
	return e.address(m, r)
}

func (e *engine) decline(ctx context.Context, r *request) {
	ip := optionAddr(r.msg, dhcpv4.OptionRequestedIPAddress)
	if l, ok := e.pool.end(r.subnet, r.client.Key(), ip, LeaseDeclined, e.now().Add(time.Hour)); ok {
		e.log.Warn("dhcp: declined, somebody else uses the address", "client", r.client.Name(), "ip", ip)
		e.event("dhcp.decline", r.client, fmt.Sprintf("%s is in use by another machine; not offered for an hour", ip))
		e.keep(ctx, l)
	}
}

func (e *engine) release(ctx context.Context, r *request) {
	if l, ok := e.pool.end(r.subnet, r.client.Key(), addr4(r.msg.ClientIPAddr), LeaseReleased, e.now()); ok {
		e.log.Info("dhcp: released", "client", r.client.Name(), "ip", l.IP)
		e.keep(ctx, l)
	}
}

func (e *engine) keep(ctx context.Context, l Lease) {
	if err := e.store.PutLease(ctx, l); err != nil {
		e.log.Error("dhcp: storing lease", "ip", l.IP, "error", err)
	}
}

func (e *engine) leaseTime(s *Subnet) time.Duration {
	if s.LeaseTime != 0 {
		return s.LeaseTime
	}
	return e.cfg.LeaseTime
}

// fill adds network, times and boot file to an OFFER or ACK with an address.
func (e *engine) fill(m *dhcpv4.DHCPv4, r *request, ans Answer) {
	e.shapeNetwork(m, r)
	shapeTimes(m, e.leaseTime(r.subnet))
	if ans.Serves() {
		e.shapeBoot(m, r, ans, false)
	}
	fit(m, r.msg)
}

// tellOffer logs an offer and counts those that nobody takes up.
func (e *engine) tellOffer(r *request, ans Answer, ip netip.Addr) {
	key, now := r.client.Key(), e.now()
	n := e.watch.offered(key, now)
	e.log.Info("dhcp: offer", "client", r.client.Name(), "ip", ip, "kind", r.client.Kind, "arch", r.client.CPU(),
		"answer", ans.Kind, "file", ans.File, "reason", ans.Reason)
	if r.client.Kind.Boots() && e.watch.once(key, "offer:"+string(r.client.Kind)+ans.File, now, time.Minute) {
		e.event("dhcp.offer", r.client, fmt.Sprintf("%s %s offered %s: %s", r.client.Kind, r.client.CPU(), ans.File, ans.Reason))
	}
	if n >= 5 && e.watch.once(key, "unanswered", now, 10*time.Minute) {
		e.log.Warn("dhcp: offers are not taken up", "client", r.client.Name(), "offers", n)
		e.event("dhcp.unanswered", r.client,
			fmt.Sprintf("offered %d times, never requested: another DHCP server on this network, or a relay that drops replies?", n))
	}
}
