package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// httpLoad loads a file over several connections at once. The bodies are
// thrown away in the kernel.
func httpLoad(o options) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var sum int64
	var failed error
	start := time.Now()
	for i := range o.clients {
		wg.Go(func() {
			n, err := get(machineAddr(i), o.server, o.path, "")
			mu.Lock()
			defer mu.Unlock()
			sum += n
			if err != nil {
				failed = err
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return failed
	}
	report(sum, time.Since(start))
	return nil
}

// get loads a path from an address of ours and returns how many bytes came.
func get(from netip.Addr, server, path, header string) (int64, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from.AsSlice()}, Timeout: 20 * time.Second}
	conn, err := d.Dial("tcp4", server)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: UefiHttpBoot/1.0\r\n%s\r\n", path, server, header); err != nil {
		return 0, err
	}
	var head []byte
	buf := make([]byte, 4096)
	for !bytes.Contains(head, []byte("\r\n\r\n")) {
		n, err := conn.Read(buf)
		if err != nil {
			return 0, fmt.Errorf("after %q: %w", head, err)
		}
		head = append(head, buf[:n]...)
	}
	text, body, _ := bytes.Cut(head, []byte("\r\n\r\n"))
	if !bytes.HasPrefix(text, []byte("HTTP/1.1 20")) {
		return 0, fmt.Errorf("%.100q", text)
	}
	_, after, ok := bytes.Cut(text, []byte("Content-Length: "))
	length, _, _ := bytes.Cut(after, []byte("\r"))
	want, err := strconv.ParseInt(string(length), 10, 64)
	if !ok || err != nil {
		return 0, fmt.Errorf("no length in %q", text)
	}
	n, err := discard(conn.(*net.TCPConn), want-int64(len(body)))
	return n + int64(len(body)), err
}

// discard takes n bytes from the socket without looking at them (MSG_TRUNC,
// tcp(7)).
func discard(c *net.TCPConn, n int64) (int64, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	buf := make([]byte, 1<<20)
	var got int64
	for got < n {
		_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
		var k int
		var rerr error
		err := raw.Read(func(fd uintptr) bool {
			k, _, rerr = unix.Recvfrom(int(fd), buf[:min(int64(len(buf)), n-got)], unix.MSG_TRUNC)
			return rerr != syscall.EAGAIN
		})
		if err == nil {
			err = rerr
		}
		if err == nil && k == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return got, fmt.Errorf("after %d of %d bytes: %w", got, n, err)
		}
		got += int64(k)
	}
	return got, nil
}
