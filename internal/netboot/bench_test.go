package netboot

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/pprof"
	"sync"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/netboot/wiretest"
)

// BenchmarkTFTP loads 64 MiB in blocks of 1468 bytes, lock step, from us and
// from dnsmasq on the same machine, with one client and with sixteen at once.
// Compare the two of one run only.
func BenchmarkTFTP(b *testing.B) {
	const size, block = 64 << 20, 1468
	want := body(size)
	path := filepath.Join(b.TempDir(), "f")
	if err := os.WriteFile(path, want, 0o644); err != nil {
		b.Fatal(err)
	}
	h := wiretest.NewHost(b, "bench0")
	wiretest.Link(b, "bench0", "10.77.0.9/24")
	h.Run("ip", "addr", "add", "10.77.0.1/24", "dev", "eth0")
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	us := h.Command(exe)
	us.Env = append(os.Environ(), envBenchFile+"="+path)
	if err := us.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = us.Process.Kill(); _ = us.Wait() })
	dnsmasq := h.Command("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root", "--pid-file="+b.TempDir()+"/pid",
		"--enable-tftp", "--tftp-root="+filepath.Dir(path), "--tftp-max=100")
	if err := dnsmasq.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = dnsmasq.Process.Kill(); _ = dnsmasq.Wait() })
	wiretest.WaitFor(b, "both servers", func() bool {
		return h.Run("ss", "-ulnH", "sport = :69") != "" && h.Run("ss", "-ulnH", "sport = :6969") != ""
	})
	for _, clients := range []int{1, 16} {
		for name, target := range map[string]struct{ addr, file string }{"dnsmasq": {"10.77.0.1:69", "f"}, "ours": {"10.77.0.1:6969", file}} {
			b.Run(fmt.Sprintf("%s-%d", name, clients), func(b *testing.B) {
				b.SetBytes(size)
				for b.Loop() {
					fetchAll(b, target.addr, target.file, clients, size/clients, block)
				}
			})
		}
	}
}

const envBenchFile = "NETBOOT_BENCH_FILE"

// benchServer serves the file over TFTP on port 6969 until it is killed.
func benchServer(path string) {
	st, err := os.Stat(path)
	if err != nil {
		panic(err)
	}
	cfg := rackConfig()
	cfg.BlockSize = 1468
	cfg.Mode, cfg.Subnets, cfg.Ports = ModeOff, nil, Ports{DHCP: -1, Proxy: -1, TFTP: 6969, HTTP: -1}
	ans := installer(nil)
	ans.Size, ans.Open = st.Size(), func() (io.ReadSeekCloser, error) { return os.Open(path) }
	s := &Server{Config: cfg, Policy: always(ans)}
	if p := os.Getenv("NETBOOT_BENCH_PROFILE"); p != "" {
		f, _ := os.Create(p)
		_ = pprof.StartCPUProfile(f)
		time.AfterFunc(9*time.Second, pprof.StopCPUProfile)
	}
	panic(s.Serve(context.Background()))
}

// fetchAll loads the first n bytes with each of some clients at once.
func fetchAll(b *testing.B, addr, name string, clients, n, block int) {
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			if err := fetchSome(addr, name, n, block); err != nil {
				b.Error(err)
			}
		})
	}
	wg.Wait()
}

func fetchSome(addr, name string, n, block int) error {
	to, err := net.ResolveUDPAddr("udp4", addr)
	if err != nil {
		return err
	}
	c, err := net.ListenUDP("udp4", nil)
	if err != nil {
		return err
	}
	defer c.Close()
	rrq := fmt.Appendf(nil, "\x00\x01%s\x00octet\x00blksize\x00%d\x00", name, block)
	if _, err := c.WriteToUDP(rrq, to); err != nil {
		return err
	}
	buf := make([]byte, 2048)
	ack := []byte{0, opACK, 0, 0}
	var from netip.AddrPort
	for got, tries := 0, 0; got < n; {
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		k, src, err := c.ReadFromUDPAddrPort(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) && tries < 10 {
			if tries++; from.IsValid() {
				_, _ = c.WriteToUDPAddrPort(ack, from)
			} else {
				_, _ = c.WriteToUDP(rrq, to)
			}
			continue
		}
		if err != nil {
			return err
		}
		if from = src; buf[1] == opDATA && got > 0 && bytes.Equal(ack[2:], buf[2:4]) {
			continue // repeated
		}
		if buf[1] == opERROR {
			return fmt.Errorf("%s: %q", addr, buf[4:k])
		}
		if buf[1] == opDATA {
			copy(ack[2:], buf[2:4])
			got += k - 4
		} else {
			binary.BigEndian.PutUint16(ack[2:], 0)
		}
		if _, err := c.WriteToUDPAddrPort(ack, from); err != nil {
			return err
		}
		if buf[1] == opDATA && k < block+4 {
			return nil
		}
		if got >= n {
			_, _ = c.WriteToUDPAddrPort([]byte("\x00\x05\x00\x00enough\x00"), from)
		}
	}
	return nil
}
