package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// face is an address of this machine, and where it is.
type face struct {
	name string
	addr netip.Prefix
}

// faces are the IPv4 addresses of this machine that a rack could reach.
func faces() ([]face, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("network interfaces: %w", err)
	}
	var out []face
	for _, i := range ifs {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			return nil, fmt.Errorf("addresses of %s: %w", i.Name, err)
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && p.Addr().IsGlobalUnicast() {
				out = append(out, face{i.Name, p})
			}
		}
	}
	return out, nil
}

// wantsQuestions says whether init should ask: the one thing that it cannot
// know was not said, and there is a person to ask.
func wantsQuestions(cmd *cobra.Command, o *initOptions) bool {
	if o.ask {
		return true
	}
	f, ok := cmd.InOrStdin().(*os.File)
	return ok && o.c.Address == "" && term.IsTerminal(int(f.Fd()))
}

// asker puts questions. An empty answer takes what stands in brackets.
type asker struct {
	in  *bufio.Reader
	out io.Writer
}

var errNoAnswer = errors.New("nobody answers; nothing was written\n  say --address and the other flags instead (see `pxeserver init --help`)")

// ask repeats a question until take accepts the answer.
func (a *asker) ask(question, preset string, take func(string) error) error {
	for {
		if preset != "" {
			fmt.Fprintf(a.out, "%s [%s] ", question, preset)
		} else {
			fmt.Fprintf(a.out, "%s ", question)
		}
		line, err := a.in.ReadString('\n')
		if err != nil && line == "" {
			fmt.Fprintln(a.out)
			return errNoAnswer
		}
		answer := strings.TrimSpace(line)
		if answer == "" {
			answer = preset
		}
		bad := take(answer)
		if bad == nil {
			return nil
		}
		fmt.Fprintf(a.out, "  %v\n", bad)
	}
}

// askInit asks what init has to know. What flags said is not asked.
func askInit(cmd *cobra.Command, o *initOptions) error {
	fs, err := faces()
	if err != nil {
		return err
	}
	a := &asker{bufio.NewReader(cmd.InOrStdin()), cmd.OutOrStdout()}
	said := func(flag string) bool { return cmd.Flags().Changed(flag) }
	if !said("address") {
		if err := a.address(o, fs, said("interface")); err != nil {
			return err
		}
	}
	if !said("dhcp") {
		fmt.Fprint(a.out, `
Who gives the nodes their addresses?
  server  this program does: no other DHCP server is on that network
  proxy   another DHCP server does; this one only says what to boot, and changes nothing there
  off     neither: nodes boot over HTTP by an address that their firmware is given
`)
		if err := a.ask("DHCP:", o.c.DHCP.Mode, func(s string) error {
			switch s {
			case "server", "proxy", "off":
				o.c.DHCP.Mode = s
				return nil
			}
			return fmt.Errorf("server, proxy or off")
		}); err != nil {
			return err
		}
	}
	if o.c.DHCP.Mode == "server" && !said("subnet") {
		if err := a.ask("Network to lease from:", subnetOf(fs, o.c.Address), func(s string) error {
			p, err := netip.ParsePrefix(s)
			if err != nil || !p.Addr().Is4() || p.Masked() != p {
				return errors.New("want a network such as 10.77.0.0/24")
			}
			o.c.DHCP.Subnet = s
			return nil
		}); err != nil {
			return err
		}
	}
	if len(o.imageKeys) > 0 {
		return nil
	}
	return a.ask("Public key that may sign images (imgbuild keygen makes one; empty: add it to pxeserver.yaml later):", "", func(s string) error {
		if s == "" {
			return nil
		}
		if _, err := imageKeys([]string{s}); err != nil {
			return err
		}
		o.imageKeys = []string{s}
		return nil
	})
}

// address asks on which side the rack is.
func (a *asker) address(o *initOptions, fs []face, fixed bool) error {
	preset := ""
	if len(fs) > 0 {
		fmt.Fprintln(a.out, "On which address do the nodes reach this server?")
		for i, f := range fs {
			fmt.Fprintf(a.out, "  %d  %-15s on %s (network %s)\n", i+1, f.addr.Addr(), f.name, f.addr.Masked())
		}
		preset = "1"
	}
	return a.ask("Number or address:", preset, func(s string) error {
		if n, err := strconv.Atoi(s); err == nil && n >= 1 && n <= len(fs) {
			o.c.Address = fs[n-1].addr.Addr().String()
			if !fixed {
				o.c.Interface = fs[n-1].name
			}
			return nil
		}
		if ip, err := netip.ParseAddr(s); err != nil || !ip.Is4() {
			return errors.New("want one of the numbers, or an IPv4 address")
		}
		o.c.Address = s
		return nil
	})
}

// subnetOf is the network of an address of this machine, or "".
func subnetOf(fs []face, addr string) string {
	for _, f := range fs {
		if f.addr.Addr().String() == addr {
			return f.addr.Masked().String()
		}
	}
	return ""
}
