// Command netboot loads boot servers: DHCP, TFTP and HTTP clients of its own,
// as cheap as they can be made, so that what is measured is the server. It
// knows nothing of ours, and speaks with dnsmasq, tftpd-hpa and nginx as
// well; bench/netboot.sh puts them against each other.
//
//	netboot serve -file FILE                       our boot services, for 10.78.0.0/16
//	netboot tftp  -server IP:69 -name F -clients 64
//	netboot http  -server IP:80 -path /F -clients 4
//	netboot dhcp  -server IP -machines 20000
//	netboot storm -server IP -pid N                boot 1,000 machines at once
//
// Clients' addresses are in 10.78.16.0/20, all of them local to the machine:
// `ip route add local 10.78.16.0/20 dev lo`.
package main

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"time"
)

// options are the flags of all modes.
type options struct {
	server, name, path, file, leases string
	clients, parallel                int
	size                             int64
	block, window, pid               int
	chunk                            int
}

func main() {
	if len(os.Args) < 2 {
		fail("want serve, tftp, http, dhcp or storm")
	}
	var o options
	f := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	f.StringVar(&o.server, "server", "10.78.0.1", "address of the server")
	f.StringVar(&o.name, "name", bootFile, "file to load by TFTP")
	f.StringVar(&o.path, "path", "/"+bootFile, "path to load by HTTP")
	f.StringVar(&o.file, "file", "", "file to serve")
	f.StringVar(&o.leases, "leases", "", "SQLite file to keep leases in; none: memory")
	f.IntVar(&o.clients, "clients", 1, "clients, machines")
	f.IntVar(&o.parallel, "parallel", 64, "of those at a time (DHCP)")
	f.Int64Var(&o.size, "size", 0, "bytes to load with each client; 0: all")
	f.IntVar(&o.block, "block", 1468, "TFTP block size")
	f.IntVar(&o.window, "window", 0, "TFTP window; 0: not asked for")
	f.IntVar(&o.pid, "pid", 0, "process of the server, whose memory is watched")
	f.IntVar(&o.chunk, "chunk", 4<<20, "bytes of the image that each machine of a storm loads by HTTP")
	_ = f.Parse(os.Args[2:])
	run := map[string]func(options) error{"serve": serve, "tftp": tftpLoad, "http": httpLoad, "dhcp": dhcpLoad, "storm": storm}[os.Args[1]]
	if run == nil {
		fail("want serve, tftp, http, dhcp or storm")
	}
	if err := run(o); err != nil {
		fail(err.Error())
	}
}

func fail(text string) {
	fmt.Fprintln(os.Stderr, "netboot:", text)
	os.Exit(1)
}

// machineAddr is the address of the i-th client.
func machineAddr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 78, 16 + byte(i>>8), byte(i)})
}

// report prints bytes per second, as a number alone on the last line.
func report(n int64, d time.Duration) {
	fmt.Printf("%.1f\n", float64(n)/1e6/d.Seconds())
}
