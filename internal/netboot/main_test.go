package netboot

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/netboot/wiretest"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(envBenchFile); path != "" {
		benchServer(path)
	}
	if os.Getenv(envBenchDHCP) != "" {
		benchDHCPServer()
	}
	wiretest.Main(m)
}

// recorder collects events.
type recorder struct {
	mu  sync.Mutex
	all []string
}

func (r *recorder) event(kind string, mac fleet.MAC, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, fmt.Sprintf("%s %s %s", kind, mac, message))
}

func (r *recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.all, "\n")
}

func (r *recorder) count(kind string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, e := range r.all {
		if strings.HasPrefix(e, kind+" ") {
			n++
		}
	}
	return n
}

// memFile is an Answer.Open over bytes.
func memFile(b []byte) func() (io.ReadSeekCloser, error) {
	return func() (io.ReadSeekCloser, error) { return nopCloser{bytes.NewReader(b)}, nil }
}

type nopCloser struct{ io.ReadSeeker }

func (nopCloser) Close() error { return nil }

// installer is an answer that hands out b.
func installer(b []byte) Answer {
	return Answer{Kind: AnswerInstaller, Reason: "test", File: "b/0123456789ab/installer.efi", Size: int64(len(b)), Open: memFile(b)}
}

// always is a policy with one answer.
func always(a Answer) Policy {
	return PolicyFunc(func(context.Context, Client) (Answer, error) { return a, nil })
}

// swapPolicy is a policy that a test changes while the server runs.
type swapPolicy struct{ p atomic.Pointer[Policy] }

func newSwapPolicy(p Policy) *swapPolicy {
	s := &swapPolicy{}
	s.p.Store(&p)
	return s
}

func (s *swapPolicy) Decide(ctx context.Context, c Client) (Answer, error) {
	return (*s.p.Load()).Decide(ctx, c)
}

// swap changes the policy of a server made by tftpBench.
func swap(s *Server, p Policy) { s.Policy.(*swapPolicy).p.Store(&p) }

// testLog writes to the test's log.
func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

// start runs s until the test ends.
func start(t *testing.T, s *Server) *recorder {
	t.Helper()
	rec := &recorder{}
	s.Events = rec.event
	if s.Log == nil {
		s.Log = testLog(t)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	select {
	case <-s.Ready():
	case err := <-done:
		cancel()
		t.Fatalf("Serve: %v", err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return rec
}

// rackConfig serves 10.77.0.0/24 from 10.77.0.1, on the ports of the real
// world.
func rackConfig() Config {
	c := DefaultConfig()
	c.Ports.HTTP = 8080
	c.NodeAPI = "https://10.77.0.1:8443"
	c.Subnets = []Subnet{{
		Prefix: netip.MustParsePrefix("10.77.0.0/24"),
		Pools:  []Range{{netip.MustParseAddr("10.77.0.100"), netip.MustParseAddr("10.77.0.199")}},
		Router: netip.MustParseAddr("10.77.0.1"),
		DNS:    []netip.Addr{netip.MustParseAddr("10.77.0.1")},
	}}
	return c
}

// lockedBuffer collects the output of a process that still runs.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
