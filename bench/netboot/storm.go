package main

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"
)

// storm boots machines: all lease an address at once, then all load the
// loader by TFTP, then all load a chunk of the image by HTTP. Nobody may fail.
func storm(o options) error {
	if o.clients == 1 {
		o.clients = 1000
	}
	o.parallel = o.clients
	memory := func(when string) { fmt.Printf("memory %s: %s\n", when, resident(o.pid)) }
	memory("before")
	for turn := range 3 {
		start := time.Now()
		ips, repeats, err := lease(o)
		if err != nil {
			return err
		}
		fmt.Printf("turn %d: %d machines have an address after %.2f s, %d packets repeated\n", turn+1, len(ips), time.Since(start).Seconds(), repeats)
		ls := make([]load, len(ips))
		for i, ip := range ips {
			ls[i].addr = ip
		}
		n, d, err := tftpRun(o, netip.AddrPortFrom(netip.MustParseAddr(o.server), 69), ls)
		if err != nil {
			return err
		}
		fmt.Printf("turn %d: loader of %d bytes by TFTP: %.1f s, %.0f MB/s\n", turn+1, n/int64(len(ls)), d.Seconds(), float64(n)/1e6/d.Seconds())
		begun := time.Now()
		got, err := chunks(o, ips)
		if err != nil {
			return err
		}
		d = time.Since(begun)
		fmt.Printf("turn %d: %d bytes of the image by HTTP each: %.1f s, %.0f MB/s\n", turn+1, got/int64(len(ips)), d.Seconds(), float64(got)/1e6/d.Seconds())
		memory(fmt.Sprintf("after turn %d", turn+1))
	}
	return nil
}

func chunks(o options, ips []netip.Addr) (int64, error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var sum int64
	var failed error
	for _, ip := range ips {
		wg.Go(func() {
			n, err := get(ip, o.server+":80", o.path, fmt.Sprintf("Range: bytes=0-%d\r\n", o.chunk-1))
			mu.Lock()
			defer mu.Unlock()
			sum += n
			if err != nil {
				failed = fmt.Errorf("%s: %w", ip, err)
			}
		})
	}
	wg.Wait()
	return sum, failed
}

// resident is what a process has in memory now, and had at most.
func resident(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return "not watched"
	}
	var out []string
	for _, line := range strings.Split(string(b), "\n") {
		if strings.HasPrefix(line, "VmRSS") || strings.HasPrefix(line, "VmHWM") {
			out = append(out, strings.Join(strings.Fields(line), " "))
		}
	}
	return strings.Join(out, ", ")
}
