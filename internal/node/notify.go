package node

import (
	"net"
	"os"
	"strconv"
	"time"
)

// notify tells systemd about the service (sd_notify(3)). Without a socket it
// does nothing.
func notify(state string) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return
	}
	if name[0] == '@' {
		name = "\x00" + name[1:]
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = c.Write([]byte(state)) // systemd that does not listen is not our fault
}

// watchdogEvery is how often systemd wants to hear from the service, 0 for
// never.
func watchdogEvery() time.Duration {
	us, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || us <= 0 {
		return 0
	}
	return time.Duration(us) * time.Microsecond / 3
}
