//go:build linux

package boot

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Cmdline is what the kernel command line tells the initrd. Keys that are
// not ours are ignored.
type Cmdline struct {
	Installer bool          // turnout.mode=installer
	RootHash  []byte        // roothash=<hex>, 32 bytes; nil for the installer
	Watchdog  time.Duration // turnout.watchdog=<seconds>; 0 means none
	Verify    bool          // turnout.verify=full: read the whole root before it is used
	Wipe      bool          // turnout.wipe=1: the installer may erase foreign data
	Server    string        // turnout.server=<https URL>; "" means trust.json, then DHCP
	Init      string        // init=<path>; "" means /sbin/init
}

// ParseCmdline reads /proc/cmdline. A key given twice counts as given last,
// as the kernel has it.
func ParseCmdline(s string) (Cmdline, error) {
	var c Cmdline
	for _, word := range strings.Fields(s) {
		key, value, _ := strings.Cut(word, "=")
		if err := c.set(key, value); err != nil {
			return Cmdline{}, fmt.Errorf("kernel command line: %s: %w", word, err)
		}
	}
	if !c.Installer && c.RootHash == nil {
		return Cmdline{}, fmt.Errorf("kernel command line has neither roothash= nor turnout.mode=installer: %q", strings.TrimSpace(s))
	}
	return c, nil
}

func (c *Cmdline) set(key, value string) error {
	switch key {
	case "roothash":
		b, err := hex.DecodeString(value)
		if err != nil || len(b) != 32 {
			return fmt.Errorf("want 64 hexadecimal digits")
		}
		c.RootHash = b
	case "turnout.mode":
		if value != "installer" && value != "slot" {
			return fmt.Errorf("want installer or slot")
		}
		c.Installer = value == "installer"
	case "turnout.watchdog":
		n, err := strconv.Atoi(value)
		if err != nil || n < 0 || n > 3600 {
			return fmt.Errorf("want seconds, 0 to 3600")
		}
		c.Watchdog = time.Duration(n) * time.Second
	case "turnout.verify":
		if value != "full" && value != "lazy" {
			return fmt.Errorf("want full or lazy")
		}
		c.Verify = value == "full"
	case "turnout.wipe":
		c.Wipe = value == "1"
	case "turnout.server":
		c.Server = value
	case "init":
		c.Init = value
	}
	return nil
}
