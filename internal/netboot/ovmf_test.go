package netboot

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/turnout-project/turnout/internal/netboot/wiretest"
)

// rack makes a bridge br0 with the server's address, and a tap for QEMU.
func rack(t *testing.T, taps ...string) {
	t.Helper()
	wiretest.NeedRoot(t)
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
	if err := netlink.LinkAdd(br); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(br) })
	wiretest.Link(t, "br0", "10.77.0.1/24")
	for _, name := range taps {
		tap := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TAP}
		if err := netlink.LinkAdd(tap); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = netlink.LinkDel(tap) })
		if err := netlink.LinkSetMaster(wiretest.Link(t, name), br); err != nil {
			t.Fatal(err)
		}
	}
}

// firmware is a kind of machine that QEMU can be.
type firmware struct {
	cpu, qemu string
	args      []string
	code      string // firmware image, and the store of its variables
	vars      string
}

var (
	ovmf = firmware{"amd64", "qemu-system-x86_64", []string{"-machine", "q35", "-cpu", "max", "-m", "512"},
		"/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"}
	aavmf = firmware{"arm64", "qemu-system-aarch64", []string{"-machine", "virt", "-cpu", "max,pauth-impdef=on", "-m", "1024"},
		"/usr/share/AAVMF/AAVMF_CODE.fd", "/usr/share/AAVMF/AAVMF_VARS.fd"}
)

// boot starts a machine with UEFI firmware on the tap and returns its console
// once it has switched itself off.
func (f firmware) boot(t *testing.T, tap, mac string, limit time.Duration, extra ...string) string {
	t.Helper()
	wiretest.NeedTool(t, f.qemu)
	b, err := os.ReadFile(f.vars)
	if err != nil {
		wiretest.Missing(t, "needs UEFI firmware: "+err.Error())
	}
	vars := filepath.Join(t.TempDir(), "vars.fd")
	if err := os.WriteFile(vars, b, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	args := append([]string{
		"-accel", "tcg,thread=multi", "-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio",
		"-drive", "if=pflash,format=raw,readonly=on,file=" + f.code,
		"-drive", "if=pflash,format=raw,file=" + vars,
		"-netdev", "tap,id=n0,script=no,downscript=no,ifname=" + tap,
		"-device", "virtio-net-pci,netdev=n0,romfile=,bootindex=0,mac=" + mac,
	}, f.args...)
	cmd := exec.CommandContext(ctx, f.qemu, append(args, extra...)...)
	out := &console{stop: cancel}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil && !out.refused() {
		t.Errorf("machine did not switch itself off: %v", err)
	}
	return out.String()
}

// console collects the output of a machine, and pulls its plug when firmware
// says that it does not start what it loaded: it would go on for minutes.
type console struct {
	lockedBuffer
	stop func()
}

func (c *console) Write(p []byte) (int, error) {
	n, err := c.lockedBuffer.Write(p)
	if c.refused() {
		c.stop()
	}
	return n, err
}

func (c *console) refused() bool { return strings.Contains(c.String(), accessDenied) }

const accessDenied = "Access Denied"

// onlyHTTP keeps the firmware from trying PXE first, which takes a minute.
var onlyHTTP = []string{"-fw_cfg", "name=opt/org.tianocore/IPv4PXESupport,string=n", "-fw_cfg", "name=opt/org.tianocore/IPv6PXESupport,string=n"}

func TestOVMFBootsByPXE(t *testing.T) {
	const mac, text = "52:54:00:77:00:01", "NETBOOT-PXE-OK"
	for _, profile := range Profiles {
		t.Run(string(profile), func(t *testing.T) {
			rack(t, "tap0")
			ans := installer(efiProgram("amd64", text, 4<<20))
			ans.Profile = profile
			s := &Server{Config: rackConfig(), Policy: PolicyFunc(func(_ context.Context, c Client) (Answer, error) {
				if c.Kind != KindUEFIPXE { // the path under test only
					return Answer{Kind: AnswerNone, Reason: "not under test"}, nil
				}
				return ans, nil
			})}
			rec := start(t, s)
			out := ovmf.boot(t, "tap0", mac, 2*time.Minute)
			if !strings.Contains(out, text) {
				t.Errorf("the program did not run; console:\n%s", out)
			}
			if rec.count("tftp.sent") != 1 || rec.count("dhcp.offer") == 0 || rec.count("tftp.failed") != 0 {
				t.Errorf("events:\n%s", rec)
			}
			if n := s.Stats().TFTPProbes.Load(); n == 0 {
				t.Errorf("TFTPProbes = %d; want the firmware's size probe counted", n)
			}
		})
	}
}

func TestOVMFBootsByHTTP(t *testing.T) {
	const mac, text = "52:54:00:77:00:02", "NETBOOT-HTTP-OK"
	rack(t, "tap0")
	s := &Server{Config: rackConfig(), Policy: PolicyFunc(func(_ context.Context, c Client) (Answer, error) {
		if c.Kind != KindUEFIHTTP {
			return Answer{Kind: AnswerNone, Reason: "not under test"}, nil
		}
		return installer(efiProgram("amd64", text, 4<<20)), nil
	})}
	rec := start(t, s)
	out := ovmf.boot(t, "tap0", mac, 5*time.Minute, onlyHTTP...)
	if !strings.Contains(out, text) {
		t.Errorf("the program did not run; console:\n%s", out)
	}
	if rec.count("http.sent") != 1 || rec.count("tftp.sent") != 0 {
		t.Errorf("events:\n%s", rec)
	}
	c, ok := s.ClientAt(netip.MustParseAddr("10.77.0.100"))
	for _, l := range s.LeaseTable() {
		c, ok = s.ClientAt(l.IP)
	}
	if !ok || c.Kind != KindUEFIHTTP || c.CPU() != "amd64" || string(c.MAC) != mac {
		t.Errorf("ClientAt = %+v, %v", c, ok)
	}
}

// arm64 firmware, by both ways.
func TestAAVMFBoots(t *testing.T) {
	const mac, text = "52:54:00:77:00:04", "NETBOOT-ARM64-OK"
	for kind, event := range map[Kind]string{KindUEFIPXE: "tftp.sent", KindUEFIHTTP: "http.sent"} {
		t.Run(string(kind), func(t *testing.T) {
			rack(t, "tap0")
			var seen atomic.Pointer[Client]
			s := &Server{Config: rackConfig(), Policy: PolicyFunc(func(_ context.Context, c Client) (Answer, error) {
				if c.Kind != kind {
					return Answer{Kind: AnswerNone, Reason: "not under test"}, nil
				}
				return installer(efiProgram("arm64", text, 1<<20)), nil
			}), Trace: func(tr Trace) {
				if tr.Answer != "" {
					seen.Store(&tr.Client)
				}
			}}
			rec := start(t, s)
			var extra []string
			if kind == KindUEFIHTTP {
				extra = onlyHTTP
			}
			out := aavmf.boot(t, "tap0", mac, 5*time.Minute, extra...)
			if !strings.Contains(out, text) || rec.count(event) != 1 {
				t.Errorf("the program did not run; events:\n%s\nconsole:\n%s", rec, out)
			}
			if c := seen.Load(); c == nil || c.CPU() != "arm64" || string(c.MAC) != mac {
				t.Errorf("seen as %+v", c)
			}
		})
	}
}

// Firmware with Secure Boot on starts a signed program by PXE and by HTTP,
// and no other.
func TestOVMFSecureBoot(t *testing.T) {
	const mac, text = "52:54:00:77:00:05", "NETBOOT-SIGNED-OK"
	secure := firmware{"amd64", ovmf.qemu, []string{"-machine", "q35,smm=on", "-cpu", "max", "-m", "512", "-global", "driver=cfi.pflash01,property=secure,value=on"},
		"/usr/share/OVMF/OVMF_CODE_4M.secboot.fd", "/usr/share/OVMF/OVMF_VARS_4M.snakeoil.fd"}
	for kind, extra := range map[Kind][]string{KindUEFIPXE: nil, KindUEFIHTTP: onlyHTTP} {
		t.Run(string(kind), func(t *testing.T) {
			rack(t, "tap0")
			s := &Server{Config: rackConfig(), Policy: PolicyFunc(func(_ context.Context, c Client) (Answer, error) {
				if c.Kind != kind {
					return Answer{Kind: AnswerNone, Reason: "not under test"}, nil
				}
				return installer(sign(t, efiProgram("amd64", text, 0))), nil
			})}
			rec := start(t, s)
			if out := secure.boot(t, "tap0", mac, 5*time.Minute, extra...); !strings.Contains(out, text) {
				t.Errorf("the signed program did not run; events:\n%s\nconsole:\n%s", rec, out)
			}
		})
	}
	t.Run("unsigned", func(t *testing.T) {
		rack(t, "tap0")
		rec := start(t, &Server{Config: rackConfig(), Policy: always(installer(efiProgram("amd64", text, 0)))})
		if out := secure.boot(t, "tap0", mac, 5*time.Minute); strings.Contains(out, text) || !strings.Contains(out, accessDenied) {
			t.Errorf("firmware did not refuse the unsigned program; events:\n%s\nconsole:\n%s", rec, out)
		}
	})
}

// sign signs a program with the key that Debian's snakeoil variables trust.
func sign(t *testing.T, program []byte) []byte {
	t.Helper()
	wiretest.NeedTool(t, "sbsign", "openssl")
	dir := t.TempDir()
	in, out, key := filepath.Join(dir, "in.efi"), filepath.Join(dir, "out.efi"), filepath.Join(dir, "key")
	if err := os.WriteFile(in, program, 0o600); err != nil {
		t.Fatal(err)
	}
	const snakeoil = "/usr/share/ovmf/PkKek-1-snakeoil"
	for _, args := range [][]string{
		{"openssl", "rsa", "-in", snakeoil + ".key", "-passin", "pass:snakeoil", "-out", key},
		{"sbsign", "--key", key, "--cert", snakeoil + ".pem", "--output", out, in},
	} {
		if text, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", args[0], err, text)
		}
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
