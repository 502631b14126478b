package netboot

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/netboot/wiretest"
)

// C28: names, modes and options in every spelling; the bytes are the same.
func TestTFTPSpellings(t *testing.T) {
	want := body(3000)
	s, _ := tftpBench(t, want)
	for _, tc := range []struct {
		rrq   []string
		oack  string // without opcode; "" = none
		block int
	}{
		{[]string{file, "octet"}, "", 512},
		{[]string{file, "OCTET"}, "", 512},
		{[]string{file, "Octet", "BLKSIZE", "1024"}, "blksize\x001024\x00", 1024},
		{[]string{file, "octet", "TSize", "0"}, "tsize\x003000\x00", 512},
		{[]string{file, "netascii", "tsize", "0"}, "tsize\x003000\x00", 512},
		{[]string{"/" + file, "octet"}, "", 512},
		{[]string{"//" + file, "octet"}, "", 512},
		{[]string{`\` + strings.ReplaceAll(file, "/", `\`), "octet"}, "", 512},
		{[]string{"/b//0123456789ab/./installer.efi", "octet"}, "", 512},
		{[]string{file + "\xff", "octet"}, "", 512},
		{[]string{file + "\xff\xff ", "octet"}, "", 512},
		{[]string{file, "octet", "blksize", "1400", "tsize", "0"}, "blksize\x001400\x00tsize\x003000\x00", 1400},
		{[]string{file, "octet", "tsize", "0", "blksize", "9000"}, "tsize\x003000\x00blksize\x001400\x00", 1400},
		{[]string{file, "octet", "timeout", "3", "multicast", ""}, "timeout\x003\x00", 512},
		{[]string{file, "octet", "blksize", "512"}, "blksize\x00512\x00", 512},
		// C24: unusable values are dropped.
		{[]string{file, "octet", "blksize", "0"}, "", 512},
		{[]string{file, "octet", "blksize", "-1"}, "", 512},
		{[]string{file, "octet", "blksize", "7"}, "", 512},
		{[]string{file, "octet", "blksize", "65465"}, "", 512},
		{[]string{file, "octet", "blksize", "4294967808"}, "", 512},
		{[]string{file, "octet", "blksize", "1468x"}, "", 512},
		{[]string{file, "octet", "blksize", ""}, "", 512},
		{[]string{file, "octet", "blksize"}, "", 512},
		{[]string{file, "octet", "windowsize", "0", "timeout", "256", "tsize", "x"}, "", 512},
	} {
		c := newTFTPClient(t, s)
		c.rrq(tc.rrq...)
		if tc.oack != "" {
			if got := c.must("\x00\x06"); string(got[2:]) != tc.oack {
				t.Errorf("%q: OACK %q; want %q", tc.rrq, got[2:], tc.oack)
			}
			c.ack(0)
		}
		if got := c.fetch(tc.block, 1); !bytes.Equal(got, want) {
			t.Errorf("%q: received %d bytes that differ from the %d sent", tc.rrq, len(got), len(want))
		}
	}
	wiretest.WaitFor(t, "all transfers to be counted", func() bool { return s.Stats().TFTPSent.Load() == 24 })
}

// C30 and T5: everything but the one file is refused at once, whatever the
// name, and nothing of the host shows in the text.
func TestTFTPRefusals(t *testing.T) {
	s, _ := tftpBench(t, body(100))
	for name, code := range map[string]byte{
		"../boot-private/key": tftpDenied, "/srv/boot-private/key": tftpNotFound, "..%2f": tftpNotFound,
		"a/../../boot-private/key": tftpDenied, `..\\boot-private\\key`: tftpDenied, "b/0123456789ab/../../x": tftpDenied,
		"b/0123456789ab/installer.efi/..": tftpDenied, "": tftpDenied, "/": tftpDenied, ".": tftpDenied,
		"loader/?USB": tftpNotFound, "grub/\xefOnboard": tftpDenied, "b/0123456789ab/installer.ef": tftpNotFound,
		"b/0123456789ab": tftpNotFound, strings.Repeat("x/", 700): tftpNotFound, "a\nb": tftpDenied,
	} {
		c := newTFTPClient(t, s)
		c.rrq(name, "octet")
		b := c.must("\x00\x05\x00")
		if b[3] != code || bytes.Contains(b, []byte("srv")) {
			t.Errorf("%.40q: %q; want code %d and no path", name, b, code)
		}
	}
	for _, tc := range []struct {
		packet string
		code   byte
	}{
		{"\x00\x02" + file + "\x00octet\x00", tftpDenied}, {"\x00\x01" + file + "\x00mail\x00", tftpIllegal},
		{"\x00\x01" + file, tftpIllegal}, {"\x00\x01\x00\x00\x00", tftpIllegal}, {"\x00\x04\x00\x01", tftpIllegal}, {"\x01", tftpIllegal},
	} {
		c := newTFTPClient(t, s)
		c.send([]byte(tc.packet))
		if b := c.must("\x00\x05\x00"); b[3] != tc.code {
			t.Errorf("%q: %q; want code %d", tc.packet, b, tc.code)
		}
	}
}

func TestTFTPServesWhomThePolicyNames(t *testing.T) {
	s, _ := tftpBench(t, body(100))
	swap(s, always(Answer{Kind: AnswerRefuse, Reason: "node is quarantined"}))
	c := newTFTPClient(t, s)
	c.rrq(file, "octet")
	if b := c.must("\x00\x05\x00\x02"); !strings.Contains(string(b), "quarantined") {
		t.Errorf("refusal %q; want the reason", b)
	}
}

// C19: EDK II asks for the size, ends that transfer with ERROR 8, and comes
// back. That is no failure, and nothing more is sent for it.
func TestTFTPSizeProbe(t *testing.T) {
	want := body(5000)
	s, rec := tftpBench(t, want)
	c := newTFTPClient(t, s)
	c.rrq(file, "octet", "tsize", "0", "blksize", "1468")
	c.must("\x00\x06tsize\x005000\x00blksize\x001400\x00")
	c.send([]byte("\x00\x05\x00\x08User aborted the transfer\x00"))
	wiretest.WaitFor(t, "the probe to be counted", func() bool { return s.Stats().TFTPProbes.Load() == 1 })
	if b := c.recv(2500 * time.Millisecond); b != nil { // two timeouts of the server
		t.Errorf("received %q after the abort; want silence", b)
	}
	again := newTFTPClient(t, s)
	again.rrq(file, "octet", "blksize", "1468")
	again.must("\x00\x06blksize\x001400\x00")
	again.ack(0)
	if got := again.fetch(1400, 1); !bytes.Equal(got, want) {
		t.Error("the file differs")
	}
	wiretest.WaitFor(t, "the event", func() bool { return rec.count("tftp.sent") == 1 })
	if s.Stats().TFTPFailed.Load() != 0 || rec.count("tftp.failed") != 0 {
		t.Errorf("failed %d; events:\n%s", s.Stats().TFTPFailed.Load(), rec)
	}
}

// C22: each block is sent once for a fresh ACK, and again by timer only.
func TestTFTPDuplicateAcks(t *testing.T) {
	s, _ := tftpBench(t, body(10*512+1))
	c := newTFTPClient(t, s)
	c.rrq(file, "octet")
	for n := 1; n < 5; n++ {
		c.must(data(n))
		c.ack(n)
	}
	c.must(data(5))
	c.ack(5)
	c.ack(5)
	c.ack(4)
	c.must(data(6))
	if b := c.recv(500 * time.Millisecond); b != nil {
		t.Fatalf("received %.8q for a doubled ACK", b)
	}
	c.must(data(6)) // by timer
	c.ack(6)
	c.ack(5)
	for n := 7; n <= 11; n++ {
		c.must(data(n))
		c.ack(n)
	}
	if c.got != 12 {
		t.Errorf("%d datagrams; want 11 blocks and one repetition", c.got)
	}
}

// C27: 40 MiB in blocks of 512 bytes: the number passes 32768 and 65535 and
// goes on with 0.
func TestTFTPBlockNumbersWrap(t *testing.T) {
	want := body(40 << 20)
	s, _ := tftpBench(t, want)
	c := newTFTPClient(t, s)
	c.rrq(file, "octet", "windowsize", "16")
	c.must("\x00\x06windowsize\x0016\x00")
	c.ack(0)
	if got := c.fetch(512, 16); sha256.Sum256(got) != sha256.Sum256(want) {
		t.Errorf("received %d bytes that differ", len(got))
	}
}

// RFC 7440: a lost block is sent again from where the client says, without
// waiting for a timer; doubled ACKs do not double the traffic.
func TestTFTPWindowLoss(t *testing.T) {
	const window = 4
	want := body(10*512 + 7)
	s, _ := tftpBench(t, want)
	c := newTFTPClient(t, s)
	c.rrq(file, "octet", "windowsize", fmt.Sprint(window))
	c.must("\x00\x06windowsize\x004\x00")
	c.ack(0)
	for n := 1; n <= 4; n++ {
		c.must(data(n))
	}
	c.ack(2) // 3 was lost: the window starts anew behind 2
	for n := 3; n <= 6; n++ {
		c.must(data(n))
	}
	c.ack(2) // repeated from before the window: once more, then silence
	c.ack(2)
	c.ack(2)
	for n := 3; n <= 6; n++ {
		c.must(data(n))
	}
	if b := c.recv(300 * time.Millisecond); b != nil {
		t.Fatalf("received %.8q for doubled ACKs", b)
	}
	c.ack(6)
	for n := 7; n <= 10; n++ {
		c.must(data(n))
	}
	// nothing arrives at the client: the timer repeats the whole window
	for n := 7; n <= 10; n++ {
		c.must(data(n))
	}
	c.ack(10)
	c.must(data(11))
	c.ack(11)
	wiretest.WaitFor(t, "the end", func() bool { return s.Stats().TFTPSent.Load() == 1 })
}

// Sizes at the edges of blocks and windows.
func TestTFTPSizes(t *testing.T) {
	for _, n := range []int{1, 511, 512, 513, 1024, 4 * 512, 4*512 + 1, 8 * 512} {
		for _, window := range []int{1, 4} {
			want := body(n)
			s, _ := tftpBench(t, want)
			c := newTFTPClient(t, s)
			c.rrq(file, "octet", "windowsize", fmt.Sprint(window))
			c.must("\x00\x06")
			c.ack(0)
			if got := c.fetch(512, window); !bytes.Equal(got, want) {
				t.Errorf("size %d, window %d: %d bytes", n, window, len(got))
			}
		}
	}
}

// A doubled request is one transfer; a client that vanishes ends it; sockets
// are given back.
func TestTFTPVanishingClients(t *testing.T) {
	s, rec := tftpBench(t, body(100<<10))
	before := openFiles(t)
	c := newTFTPClient(t, s)
	c.rrq(file, "octet")
	c.rrq(file, "octet")
	c.must(data(1))
	if b := c.recv(300 * time.Millisecond); b != nil {
		t.Errorf("second transfer for a doubled request: %.8q", b)
	}
	for range 6 {
		gone := newTFTPClient(t, s)
		gone.rrq(file, "octet")
		gone.must(data(1))
		gone.c.Close() // the next repetition meets a closed port
	}
	c.c.Close()
	wiretest.WaitFor(t, "all transfers to end", func() bool { return s.Stats().TFTPFailed.Load() == 7 })
	wiretest.WaitFor(t, "their sockets to be closed", func() bool { return openFiles(t) <= before })
	wiretest.WaitFor(t, "one event, the rest is repetition", func() bool { return rec.count("tftp.failed") == 1 })
}

func openFiles(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

// A forged sender gets two packets at most, not six.
func TestTFTPStrangersAreNotFlooded(t *testing.T) {
	s, _ := tftpBench(t, body(2000))
	s.engine.book.mu.Lock()
	clear(s.engine.book.m)
	s.engine.book.mu.Unlock()
	c := newTFTPClient(t, s)
	c.rrq(file, "octet")
	for c.recv(3*time.Second) != nil {
	}
	if c.got != 2 {
		t.Errorf("%d packets to an address that never answered; want 2", c.got)
	}
}

// A file that fails half way ends with an error that tells nothing of the
// host.
func TestTFTPReadError(t *testing.T) {
	s, rec := tftpBench(t, nil)
	ans := installer(body(70_000))
	ans.Size = 90_000 // the file is shorter than promised
	swap(s, always(ans))
	c := newTFTPClient(t, s)
	c.rrq(file, "octet")
	for n := 1; n <= 127; n++ { // what was read before the failure
		c.must(data(n))
		c.ack(n)
	}
	if b := c.must("\x00\x05\x00\x00"); string(b[4:]) != "the server cannot read the file\x00" {
		t.Errorf("error text %q", b[4:])
	}
	wiretest.WaitFor(t, "the failure", func() bool { return rec.count("tftp.failed") == 1 })
	if !strings.Contains(rec.String(), "20000 bytes shorter than announced") {
		t.Errorf("events:\n%s", rec)
	}
}

// D12, C16: the same machine loads the file again and again.
func TestBootLoopIsNoticed(t *testing.T) {
	s, rec := tftpBench(t, body(10))
	for range 4 {
		c := newTFTPClient(t, s)
		c.rrq(file, "octet")
		c.fetch(512, 1)
	}
	wiretest.WaitFor(t, "four transfers", func() bool { return s.Stats().TFTPSent.Load() == 4 })
	wiretest.WaitFor(t, "the remark", func() bool { return rec.count("boot.loop") == 1 })
}

func FuzzParseRRQ(f *testing.F) {
	f.Add([]byte("\x00\x01" + file + "\x00octet\x00blksize\x001468\x00tsize\x000\x00"))
	f.Add([]byte("\x00\x01\\x\x00OCTET\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseRRQ(b)
		if err != nil {
			return
		}
		if strings.HasPrefix(r.name, "/") || strings.Contains(r.name, "..") && strings.Contains("/"+r.name+"/", "/../") || r.name == "" {
			t.Fatalf("name %q is not clean", r.name)
		}
		if r.block != 0 && (r.block < 512 || r.block > 65464) {
			t.Fatalf("block size %d", r.block)
		}
		if again, ok := cleanName(r.name); !ok || again != r.name {
			t.Fatalf("cleanName(%q) = %q, %v", r.name, again, ok)
		}
	})
}
