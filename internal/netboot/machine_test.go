package netboot

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/netboot/wiretest"
)

// TestIPXEBoots chains iPXE between firmware and our file, as somebody's
// policy might: firmware loads iPXE by TFTP, iPXE asks again, is known by its
// user class although its vendor class is the firmware's, gets a URL and
// loads the file once. Nobody is handed the same thing twice.
func TestIPXEBoots(t *testing.T) {
	needMachineTest(t)
	const mac, text = "52:54:00:77:00:21", "NETBOOT-IPXE-OK"
	ipxe, err := os.ReadFile("/usr/lib/ipxe/ipxe.efi")
	if err != nil {
		wiretest.Missing(t, "needs the package ipxe: "+err.Error())
	}
	rack(t, "tap0")
	loader := installer(ipxe)
	loader.File = "b/ba9876543210/ipxe.efi"
	s := &Server{Config: rackConfig(), Policy: PolicyFunc(func(_ context.Context, c Client) (Answer, error) {
		switch c.Kind {
		case KindUEFIPXE:
			return loader, nil
		case KindIPXE:
			return installer(efiProgram("amd64", text, 2<<20)), nil
		}
		return Answer{Kind: AnswerNone, Reason: "not under test"}, nil
	})}
	rec := start(t, s)
	out := ovmf.boot(t, "tap0", mac, 5*time.Minute)
	if !strings.Contains(out, text) {
		t.Errorf("the program did not run; console:\n%s", out)
	}
	if rec.count("http.sent") != 1 || rec.count("boot.loop") != 0 || rec.count("tftp.sent") != 1 {
		t.Errorf("events:\n%s", rec)
	}
}

// TestBIOSIsRefused has SeaBIOS and its iPXE ask: it is told to nobody but
// the operator, with the remedy, and gets no file.
func TestBIOSIsRefused(t *testing.T) {
	needMachineTest(t)
	wiretest.NeedTool(t, "qemu-system-x86_64")
	rack(t, "tap0")
	s := &Server{Config: rackConfig(), Policy: always(installer([]byte("x")))}
	rec := start(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-machine", "pc", "-m", "128", "-nodefaults", "-display", "none", "-boot", "n",
		"-netdev", "tap,id=n0,script=no,downscript=no,ifname=tap0", "-device", "e1000,netdev=n0,mac=52:54:00:77:00:22")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = cmd.Wait() }()
	waitLong(t, "the refusal", func() bool { return rec.count("dhcp.refused") > 0 })
	if !strings.Contains(rec.String(), "cannot start a UKI: enable UEFI boot") || rec.count("dhcp.offer") != 0 {
		t.Errorf("events:\n%s", rec)
	}
}

// TestDiskBootsWithoutServer: firmware that starts with the network goes on to
// the disk whenever the server fails it, whatever it was to get: nobody
// answers, the server dies before the first byte, or in the middle of the
// file.
func TestDiskBootsWithoutServer(t *testing.T) {
	needMachineTest(t)
	const mac, text = "52:54:00:77:00:23", "DISK-IS-UP"
	disk := filepath.Join(t.TempDir(), "disk.img")
	efiDisk(t, disk, efiProgram("amd64", text, 64<<10))
	drive := []string{"-drive", "if=none,id=d0,format=raw,snapshot=on,file=" + disk, "-device", "virtio-blk-pci,drive=d0,bootindex=1"}
	for _, tc := range []struct {
		name string
		die  func(stop func()) func() (io.ReadSeekCloser, error) // nil: no server at all
		kind Kind
		args []string
	}{
		{"nobody answers", nil, "", onlyHTTP},
		{"dies before the first byte", func(stop func()) func() (io.ReadSeekCloser, error) {
			return func() (io.ReadSeekCloser, error) { stop(); return nil, io.ErrUnexpectedEOF }
		}, KindUEFIPXE, nil},
		{"dies in the middle of TFTP", dieAfter(1 << 20), KindUEFIPXE, nil},
		{"dies in the middle of HTTP", dieAfter(1 << 20), KindUEFIHTTP, onlyHTTP},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rack(t, "tap0")
			if tc.die != nil {
				ctx, cancel := context.WithCancel(t.Context())
				ans := installer(body(8 << 20))
				ans.Open = tc.die(cancel)
				s := &Server{Config: rackConfig(), Log: testLog(t), Policy: PolicyFunc(func(_ context.Context, c Client) (Answer, error) {
					if c.Kind != tc.kind {
						return Answer{Kind: AnswerNone, Reason: "not under test"}, nil
					}
					return ans, nil
				})}
				done := make(chan error, 1)
				go func() { done <- s.Serve(ctx) }()
				<-s.Ready()
				defer func() { cancel(); <-done }()
			}
			out := ovmf.boot(t, "tap0", mac, 25*time.Minute, append(append([]string{}, drive...), tc.args...)...)
			if !strings.Contains(out, text) {
				t.Errorf("the disk did not start; console:\n%s", out)
			}
		})
	}
}

// dieAfter stops the server when n bytes of the file were read.
func dieAfter(n int64) func(func()) func() (io.ReadSeekCloser, error) {
	return func(stop func()) func() (io.ReadSeekCloser, error) {
		return func() (io.ReadSeekCloser, error) {
			f, err := memFile(body(8 << 20))()
			return &dying{ReadSeekCloser: f, left: n, stop: stop}, err
		}
	}
}

type dying struct {
	io.ReadSeekCloser
	left int64
	stop func()
}

func (d *dying) Read(p []byte) (int, error) {
	n, err := d.ReadSeekCloser.Read(p)
	if d.left -= int64(n); d.left < 0 {
		d.stop()
	}
	return n, err
}

// efiDisk writes a FAT file system with the program where firmware looks for
// it.
func efiDisk(t *testing.T, path string, program []byte) {
	t.Helper()
	wiretest.NeedTool(t, "mformat", "mmd", "mcopy")
	file := filepath.Join(t.TempDir(), "BOOTX64.EFI")
	if err := os.WriteFile(file, program, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, make([]byte, 16<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"mformat", "-i", path, "::"}, {"mmd", "-i", path, "::/EFI", "::/EFI/BOOT"}, {"mcopy", "-i", path, file, "::/EFI/BOOT/BOOTX64.EFI"},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// waitLong waits for a virtual machine to do something.
func waitLong(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
