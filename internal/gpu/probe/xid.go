package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Xids by what they point to. Those that an application causes, that are notes
// only, or that nobody has explained decide nothing: they are in neither list.
// Sources: NVIDIA's catalogue of Xid errors and the mapping in its NVSentinel.
var (
	// hardwareXids ask for a reset, a restart or hands: memory, NVLink, the
	// bus, the power cable.
	hardwareXids = []int{46, 48, 54, 62, 64, 74, 79, 95, 109, 110, 136, 140, 144, 145, 146, 147, 148, 149, 150, 151, 155, 156, 158, 160, 162}
	// driverXids are of the driver and its firmware: calls to the GPU's own
	// processor that nobody answers, versions that do not fit.
	driverXids = []int{78, 119, 120, 143}
)

// recoveryXid announces what the driver itself asks for; its last word counts.
const recoveryXid = 154

var (
	xidLine = regexp.MustCompile(`NVRM: Xid \(PCI:([0-9A-Fa-f:.]+)\): ([0-9]+)(.*)`)
	lostGPU = regexp.MustCompile(`NVRM: .*GPU (?:at )?(?:PCI:)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-9A-Fa-f])?).*fallen off the bus`)
	action  = regexp.MustCompile(`to 0x[0-9A-Fa-f]+ \(([^)]*)\)`)
)

// xid looks for errors of the boards in the kernel's log since boot, and for
// GPUs that left the bus without one.
func (m *Machine) xid(_ context.Context, _ *Config) (string, error) {
	return m.xids(hardwareXids, true)
}

// xidDriver looks for errors of driver and GSP firmware.
func (m *Machine) xidDriver(_ context.Context, _ *Config) (string, error) {
	return m.xids(driverXids, false)
}

func (m *Machine) xids(which []int, withLost bool) (string, error) {
	log, err := m.kernelLog()
	if err != nil {
		return "", fmt.Errorf("%w: the kernel's log: %w", ErrUnknown, err)
	}
	found := map[string][]string{} // by GPU
	var order []string
	note := func(gpu, text string) {
		if found[gpu] == nil {
			order = append(order, gpu)
		}
		found[gpu] = append(found[gpu], text)
	}
	for line := range strings.Lines(log) {
		if f := xidLine.FindStringSubmatch(line); f != nil {
			code, err := strconv.Atoi(f[2])
			switch to := action.FindStringSubmatch(f[3]); {
			case err != nil:
			case code == recoveryXid && to != nil && to[1] == "None": // what came before is over
				delete(found, f[1])
				order = slices.DeleteFunc(order, func(s string) bool { return s == f[1] })
			case code == recoveryXid && to != nil && withLost:
				note(f[1], "the driver asks for recovery: "+to[1])
			case slices.Contains(which, code):
				note(f[1], "Xid "+f[2]+strings.TrimRight(f[3], "\n"))
			}
		} else if f := lostGPU.FindStringSubmatch(line); f != nil && withLost {
			note(f[1], "it has fallen off the bus")
		}
	}
	if len(order) == 0 {
		return "no such error since the system started", nil
	}
	gpu := order[0]
	return "", fmt.Errorf("GPU %s: %s (%d of %d such errors)", gpu, found[gpu][len(found[gpu])-1], 1, count(found))
}

func count(found map[string][]string) (n int) {
	for _, texts := range found {
		n += len(texts)
	}
	return n
}

// logMost bounds what is read of the kernel's log, in bytes.
const logMost = 16 << 20

// kernelLog returns what the kernel's ring buffer holds.
func (m *Machine) kernelLog() (string, error) {
	fd, err := unix.Open(m.path("/dev/kmsg"), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: "/dev/kmsg", Err: err}
	}
	defer unix.Close(fd)
	var log bytes.Buffer
	b := make([]byte, 8<<10)
	for log.Len() < logMost {
		n, err := unix.Read(fd, b)
		switch {
		case errors.Is(err, unix.EPIPE): // lines were overwritten meanwhile
			continue
		case errors.Is(err, unix.EAGAIN), err == nil && n == 0:
			return log.String(), nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return "", &os.PathError{Op: "read", Path: "/dev/kmsg", Err: err}
		}
		log.Write(b[:n])
	}
	return log.String(), nil
}
