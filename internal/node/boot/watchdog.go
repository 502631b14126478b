//go:build linux

package boot

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Watchdog resets the machine when nobody keeps it. It is never closed by the
// magic close: its time runs on into the system, where systemd takes over.
type Watchdog struct {
	Device   string        // "/dev/watchdog0"
	Identity string        // the driver's words
	Timeout  time.Duration // as the driver took it

	f  *os.File
	mu sync.Mutex
	// alive is until when somebody vouches for the boot.
	alive time.Time
}

// openWatchdog starts the machine's watchdog: one of hardware if there is
// any, else softdog, which cannot see a kernel that no longer runs timers.
// It returns nil when timeout is 0 or there is none.
func openWatchdog(timeout time.Duration, modules []string, log Log) *Watchdog {
	if timeout <= 0 {
		return nil
	}
	dev, id := pickWatchdog()
	if dev == "" {
		if p := modulePath(modules, softdog); p != "" {
			if err := loadModule(p); err != nil {
				log("module %s: %v", p, err)
			}
			dev, id = pickWatchdog()
		}
	}
	if dev == "" {
		log("warning: no watchdog: a boot that hangs waits for somebody to reset the machine")
		return nil
	}
	f, err := os.OpenFile(dev, os.O_WRONLY, 0)
	if err != nil {
		log("warning: watchdog %s: %v", dev, err)
		return nil
	}
	w := &Watchdog{Device: dev, Identity: id, f: f}
	if err := w.arm(timeout); err != nil {
		log("warning: %v", err)
	}
	log("watchdog %s (%s) resets the machine after %s", dev, id, w.Timeout)
	w.Grant(timeout)
	go w.keep()
	return w
}

// foundWatchdog is a watchdog as sysfs shows it.
type foundWatchdog struct{ device, identity string }

// pickWatchdog returns the best watchdog, both "" for none.
func pickWatchdog() (dev, identity string) {
	var all []foundWatchdog
	paths, _ := filepath.Glob("/sys/class/watchdog/watchdog*")
	for _, p := range paths {
		b, _ := os.ReadFile(filepath.Join(p, "identity"))
		all = append(all, foundWatchdog{"/dev/" + filepath.Base(p), strings.TrimSpace(string(b))})
	}
	w := bestWatchdog(all)
	return w.device, w.identity
}

// bestWatchdog prefers devices that somebody put there to be used (the
// board's management controller, a card) to the chipset's timer, which many
// boards strap so that it never resets, without a driver being able to tell
// (QEMU before 8.0 too); and anything to software, which does not survive the
// kernel it shall watch.
func bestWatchdog(all []foundWatchdog) foundWatchdog {
	rank := func(w foundWatchdog) int {
		switch {
		case strings.Contains(w.identity, "Software"):
			return 2
		case strings.Contains(w.identity, "iTCO"):
			return 1
		}
		return 0
	}
	var best foundWatchdog
	for _, w := range all {
		if best.device == "" || rank(w) < rank(best) {
			best = w
		}
	}
	return best
}

// arm sets the time-out; a driver may round it.
func (w *Watchdog) arm(timeout time.Duration) error {
	const secs = time.Second
	w.Timeout = timeout
	if err := unix.IoctlSetPointerInt(int(w.f.Fd()), unix.WDIOC_SETTIMEOUT, int(timeout/secs)); err != nil {
		if v, err := unix.IoctlGetInt(int(w.f.Fd()), unix.WDIOC_GETTIMEOUT); err == nil {
			w.Timeout = time.Duration(v) * secs
		}
		return fmt.Errorf("watchdog %s: setting %s: %w", w.Device, timeout, err)
	}
	if v, err := unix.IoctlGetInt(int(w.f.Fd()), unix.WDIOC_GETTIMEOUT); err == nil && v > 0 {
		w.Timeout = time.Duration(v) * secs
	}
	info, err := unix.IoctlGetWatchdogInfo(int(w.f.Fd()))
	if err == nil && info.Options&unix.WDIOF_MAGICCLOSE == 0 {
		return fmt.Errorf("watchdog %s stops when it is closed: from switch_root until systemd takes it the boot is not watched", w.Device)
	}
	return nil
}

// Grant vouches that the boot is well for d from now. A nil Watchdog may be
// used.
func (w *Watchdog) Grant(d time.Duration) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := time.Now().Add(d); t.After(w.alive) {
		w.alive = t
	}
}

// Revoke takes back what was granted, but for one more time-out.
func (w *Watchdog) Revoke() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.alive = time.Now().Add(w.Timeout)
}

// keep feeds the watchdog for as long as somebody vouches.
func (w *Watchdog) keep() {
	for {
		w.mu.Lock()
		ok := time.Now().Before(w.alive)
		w.mu.Unlock()
		if ok {
			w.feed()
		}
		time.Sleep(max(w.Timeout/6, time.Second))
	}
}

func (w *Watchdog) feed() {
	if w != nil {
		_, _ = w.f.Write([]byte{0})
	}
}

// systemdConfig tells systemd to take over this watchdog with this time-out,
// whatever the root's own configuration says.
func (w *Watchdog) systemdConfig() string {
	secs := int(w.Timeout / time.Second)
	return fmt.Sprintf("[Manager]\nWatchdogDevice=%s\nRuntimeWatchdogSec=%d\nRebootWatchdogSec=%d\n", w.Device, secs, max(secs, 120))
}
