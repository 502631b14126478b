package netboot

import (
	"context"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/turnout-project/turnout/internal/api"
)

// proxy answers beside another DHCP server (PXE 2.1 section 2.2.3): clients
// that boot get an offer without an address; everybody else is left alone. It
// also listens to which address each client asks the other server for.
func (e *engine) proxy(ctx context.Context, r *request) *reply {
	switch r.msg.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		if r.client.Kind == KindNodeAgent && e.cfg.NodeAPI != "" {
			return e.proxyAgent(r)
		}
		if !r.client.Kind.Boots() {
			e.stats.Ignored.Add(1)
			r.why = "does not boot; left to the other server"
			return nil
		}
		return e.proxyReply(ctx, r, dhcpv4.MessageTypeOffer)
	case dhcpv4.MessageTypeRequest:
		e.overhear(r)
		r.why = "for the other server"
		chosen := optionAddr(r.msg, dhcpv4.OptionServerIdentifier)
		if r.client.Kind.Boots() && chosen.IsValid() && r.isUs(chosen) {
			return e.proxyReply(ctx, r, dhcpv4.MessageTypeAck)
		}
	default:
		e.stats.Ignored.Add(1)
	}
	return nil
}

// proxyAgent tells our own agent the URL of the node API, in an offer without
// an address that no other client would take.
func (e *engine) proxyAgent(r *request) *reply {
	m := e.reply(r, dhcpv4.MessageTypeOffer)
	set(m, 60, []byte(api.VendorClass))
	set(m, api.DHCPOptionServer, []byte(e.cfg.NodeAPI))
	return e.address(m, r)
}

// overhear notes which address a client is about to have.
func (e *engine) overhear(r *request) {
	ip := optionAddr(r.msg, dhcpv4.OptionRequestedIPAddress)
	if !ip.IsValid() {
		ip = addr4(r.msg.ClientIPAddr)
	}
	e.watch.requested(r.client.Key())
	if ip.IsValid() && !ip.IsUnspecified() && r.client.Kind.Boots() {
		e.book.put(ip, r.client, e.now())
	}
}

func (e *engine) proxyReply(ctx context.Context, r *request, t dhcpv4.MessageType) *reply {
	r.client.Via = "proxy"
	ans, ok := e.mayAnswer(ctx, r)
	if !ok {
		return nil
	}
	m := e.reply(r, t)
	m.ClientIPAddr = r.msg.ClientIPAddr
	e.shapeBoot(m, r, ans, true)
	fit(m, r.msg)
	if t == dhcpv4.MessageTypeOffer {
		e.tellOffer(r, ans, netip.Addr{})
	}
	return e.address(m, r)
}

// bootServerRequest answers UDP 4011: the client has an address and asks for
// its boot file. The reply goes back to where the request came from.
func (e *engine) bootServerRequest(ctx context.Context, r *request) *reply {
	t := r.msg.MessageType()
	if t != dhcpv4.MessageTypeRequest && t != dhcpv4.MessageTypeInform && t != dhcpv4.MessageTypeDiscover ||
		!r.client.Kind.Boots() {
		e.stats.Ignored.Add(1)
		return nil
	}
	if ip := addr4(r.msg.ClientIPAddr); ip.IsValid() && !ip.IsUnspecified() && ip == r.src.Addr() {
		e.book.put(ip, r.client, e.now())
	}
	p := e.proxyReply(ctx, r, dhcpv4.MessageTypeAck)
	if p == nil {
		return nil
	}
	e.watch.requested(r.client.Key())
	e.log.Info("dhcp: boot server ack", "client", r.client.Name(), "to", r.src, "file", p.msg.BootFileName)
	p.to, p.ifindex, p.hw = r.src, r.ifindex, nil
	return p
}
