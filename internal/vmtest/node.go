package vmtest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// NodeSpec is the hardware of a virtual node.
type NodeSpec struct {
	Name      string
	DiskBytes int64 // 8 GiB when 0; sparse
	MemoryMiB int   // 1024 when 0
	CPUs      int   // 1 when 0
}

// Node is one virtual machine. Its disk, NVRAM and TPM keep their contents
// over power cuts. Methods may be called from one goroutine at a time.
type Node struct {
	Name string
	MAC  string
	rack *Rack
	dir  string
	spec NodeSpec

	mu    sync.Mutex
	qemu  *exec.Cmd
	done  chan struct{} // closed when qemu has ended
	swtpm *exec.Cmd
	qmp   *qmpLog

	networkOnce bool // the next start tries the network before the disk
}

// AddNode makes a node with a blank disk, fresh NVRAM and a new TPM whose EK
// certificate is signed by the rack's own authority. It is left switched off.
func (r *Rack) AddNode(spec NodeSpec) (*Node, error) {
	if spec.DiskBytes == 0 {
		spec.DiskBytes = 8 << 30
	}
	if spec.MemoryMiB == 0 {
		spec.MemoryMiB = 1024
	}
	if spec.CPUs == 0 {
		spec.CPUs = 1
	}
	i := len(r.nodes) + 1
	n := &Node{Name: spec.Name, MAC: fmt.Sprintf("52:54:00:77:00:%02x", i), rack: r, dir: filepath.Join(r.Dir, spec.Name), spec: spec}
	if err := os.MkdirAll(n.dir, 0o755); err != nil {
		return nil, err
	}
	if err := n.blank(); err != nil {
		return nil, fmt.Errorf("virtual node %q: %w", spec.Name, err)
	}
	tap := n.tap()
	for _, s := range [][]string{
		{"ip", "-n", r.Namespace, "tuntap", "add", "dev", tap, "mode", "tap"},
		{"ip", "-n", r.Namespace, "link", "set", tap, "master", Bridge},
		{"ip", "-n", r.Namespace, "link", "set", tap, "up"},
	} {
		if err := run(s[0], s[1:]...); err != nil {
			return nil, fmt.Errorf("virtual node %q: %w", spec.Name, err)
		}
	}
	r.nodes = append(r.nodes, n)
	return n, nil
}

// blank makes the node's disk, NVRAM and TPM as they leave the factory.
func (n *Node) blank() error {
	disk, err := os.Create(n.Disk())
	if err != nil {
		return err
	}
	if err := errors.Join(disk.Truncate(n.spec.DiskBytes), disk.Close()); err != nil {
		return err
	}
	if err := n.WipeNVRAM(); err != nil {
		return err
	}
	return manufactureTPM(filepath.Join(n.dir, "tpm"), filepath.Join(n.rack.Dir, "tpm-ca"))
}

// WipeNVRAM makes the firmware's variables as they leave the factory, as
// after a dead battery. The node must be off.
func (n *Node) WipeNVRAM() error {
	vars, err := os.ReadFile(ovmfVars)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(n.dir, "vars.fd"), vars, 0o600)
}

// Disk is the path of the node's raw disk image.
func (n *Node) Disk() string { return filepath.Join(n.dir, "disk.img") }

// Serial is the path of everything the node wrote to its serial console.
func (n *Node) Serial() string { return filepath.Join(n.dir, "serial.log") }

// Console returns what the node wrote to its serial console so far.
func (n *Node) Console() string {
	b, err := os.ReadFile(n.Serial())
	if err != nil {
		return ""
	}
	return string(b)
}

// uuid is the machine's SMBIOS identity, made from its MAC.
func (n *Node) uuid() string {
	return "7e57ab1e-0000-4000-8000-" + strings.ReplaceAll(n.MAC, ":", "")
}

func (n *Node) tap() string { return "tap" + strings.ReplaceAll(n.MAC[12:], ":", "") }

// PowerOn starts the machine. It is an error if it runs already.
func (n *Node) PowerOn() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.running() {
		return fmt.Errorf("virtual node %q is on already", n.Name)
	}
	tpm, err := startTPM(filepath.Join(n.dir, "tpm"))
	if err != nil {
		return err
	}
	qmpPath := filepath.Join(n.dir, "qmp.sock")
	_ = os.Remove(qmpPath)
	logFile, err := os.OpenFile(filepath.Join(n.dir, "qemu.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return errors.Join(err, endProcess(tpm))
	}
	defer logFile.Close()
	cmd := n.rack.Command(neverDone, "qemu-system-x86_64", n.arguments(qmpPath)...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := startLocked(cmd); err != nil {
		return errors.Join(fmt.Errorf("virtual node %q: %w", n.Name, err), endProcess(tpm))
	}
	n.qemu, n.swtpm, n.done = cmd, tpm, make(chan struct{})
	go func(done chan struct{}) {
		_ = cmd.Wait()
		close(done)
	}(n.done)
	n.qmp, err = followQMP(qmpPath, n.done, n.qmp)
	if err != nil {
		logged, _ := os.ReadFile(filepath.Join(n.dir, "qemu.log"))
		return errors.Join(fmt.Errorf("virtual node %q: %w: %s", n.Name, err, tail(string(logged), 400)), n.powerOff())
	}
	return n.endOverride()
}

func (n *Node) arguments(qmpPath string) []string {
	accel := n.rack.Accel
	if accel == "" {
		accel = "tcg,thread=multi"
	}
	cpu := "max"
	if strings.HasPrefix(accel, "kvm") {
		cpu = "host"
	}
	network := "2"
	if n.networkOnce {
		network = "0"
	}
	return []string{
		"-name", n.Name, "-uuid", n.uuid(), "-machine", "q35", "-accel", accel, "-cpu", cpu,
		"-smp", fmt.Sprint(n.spec.CPUs), "-m", fmt.Sprint(n.spec.MemoryMiB),
		"-display", "none", "-vga", "none", "-nodefaults",
		"-drive", "if=pflash,format=raw,readonly=on,file=" + ovmfCode,
		"-drive", "if=pflash,format=raw,file=" + filepath.Join(n.dir, "vars.fd"),
		"-chardev", "socket,id=tpm,path=" + filepath.Join(n.dir, "tpm", "ctrl.sock"),
		"-tpmdev", "emulator,id=tpm0,chardev=tpm", "-device", "tpm-crb,tpmdev=tpm0",
		"-drive", "if=none,id=disk,format=raw,discard=unmap,file=" + n.Disk(),
		"-device", "virtio-blk-pci,drive=disk,serial=" + n.Name + ",bootindex=1",
		"-netdev", "tap,id=net,ifname=" + n.tap() + ",script=no,downscript=no",
		"-device", "virtio-net-pci,netdev=net,mac=" + n.MAC + ",id=nic,romfile=,bootindex=" + network,
		"-device", "virtio-rng-pci",
		"-device", "i6300esb", "-action", "watchdog=reset",
		"-chardev", "file,id=serial,append=on,path=" + n.Serial(), "-serial", "chardev:serial",
		"-qmp", "unix:" + qmpPath + ",server=on,wait=off",
	}
}

// Running reports whether the machine has power.
func (n *Node) Running() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.running()
}

func (n *Node) running() bool {
	if n.done == nil {
		return false
	}
	select {
	case <-n.done:
		return false
	default:
		return true
	}
}

// PowerOff cuts the power: QEMU is killed between two instructions. What the
// guest had not sent to its disk is lost. Nothing happens if it is off.
func (n *Node) PowerOff() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.powerOff()
}

func (n *Node) powerOff() error {
	if n.running() {
		if err := n.qemu.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("virtual node %q: %w", n.Name, err)
		}
		<-n.done
	}
	err := endProcess(n.swtpm)
	n.swtpm = nil
	return err
}

// Resets counts the resets seen since the node was made, and of them those
// that the hardware watchdog caused.
func (n *Node) Resets() (all, byWatchdog int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.qmp == nil {
		return 0, 0
	}
	return n.qmp.counts()
}

// EditDisk opens the disk of a node that is off.
func (n *Node) EditDisk(edit func(disk *os.File) error) error {
	if n.Running() {
		return fmt.Errorf("virtual node %q: its disk can be edited only while it is off", n.Name)
	}
	f, err := os.OpenFile(n.Disk(), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(edit(f), f.Sync(), f.Close())
}

// FlipByte changes one byte at an offset so that it differs from what it was.
func FlipByte(f *os.File, offset int64) error {
	var b [1]byte
	if _, err := f.ReadAt(b[:], offset); err != nil && err != io.EOF {
		return err
	}
	b[0] ^= 0x01
	_, err := f.WriteAt(b[:], offset)
	return err
}

func tail(s string, n int) string {
	s = strings.TrimSpace(s)
	if len(s) > n {
		s = "…" + s[len(s)-n:]
	}
	return s
}
