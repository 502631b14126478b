//go:build linux

package boot

import (
	"fmt"
	"os"
	"strings"
)

// Log takes one line for people.
type Log func(format string, args ...any)

// consoleLevel is the file whose first number says which lines reach the
// consoles.
const consoleLevel = "/proc/sys/kernel/printk"

// kernelLog returns a Log that writes to the kernel's log, and so to every
// console and later to the journal, and a function that gives the consoles
// their old level back. It lifts the limit of ten lines in five seconds that
// the kernel sets for /dev/kmsg, and makes level 5 show on "quiet" kernels.
func kernelLog() (log Log, restore func()) {
	_ = os.WriteFile("/proc/sys/kernel/printk_devkmsg", []byte("on\n"), 0)
	restore = func() {}
	if old, err := os.ReadFile(consoleLevel); err == nil && old[0] < '6' {
		_ = os.WriteFile(consoleLevel, []byte("6"), 0)
		restore = func() { _ = os.WriteFile(consoleLevel, old[:1], 0) }
	}
	f, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		f = os.Stderr
	}
	return func(format string, args ...any) {
		for line := range strings.Lines(fmt.Sprintf(format, args...)) {
			_, _ = fmt.Fprintf(f, "<5>turnout: %s\n", strings.TrimRight(line, "\n"))
		}
	}, restore
}
