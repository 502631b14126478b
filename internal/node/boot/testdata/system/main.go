// Command system is the init of the root file system of the boot tests: it
// tells on the console what it found, as one JSON line, and ends the machine.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"
)

type found struct {
	Boot      json.RawMessage // /run/turnout/boot.json
	Root      string          // file system type of /
	Var       string          // mount options of /var
	Seeded    string          // a file of the image's /var
	Visits    int             // boots that wrote to /var
	ReadOnly  bool            // /, /etc and the machine id cannot be written
	Initrd    bool            // something of the initrd is still there
	Watchdog  string          // what systemd would be told
	ReadError string          // of reading the whole root
	MachineID string          // /etc/machine-id
}

func main() {
	f := found{}
	f.Boot, _ = os.ReadFile("/run/turnout/boot.json")
	mounts, _ := os.ReadFile("/proc/mounts")
	for line := range strings.Lines(string(mounts)) {
		w := strings.Fields(line)
		switch w[1] {
		case "/":
			f.Root = w[2]
		case "/var":
			f.Var = w[2] + " " + w[3]
		case "/sysroot":
			f.Initrd = true
		}
	}
	seeded, _ := os.ReadFile("/var/lib/seed")
	f.Seeded = string(seeded)
	f.ReadOnly = os.WriteFile("/etc/x", nil, 0o644) != nil && os.WriteFile("/x", nil, 0o644) != nil && os.WriteFile("/etc/machine-id", nil, 0o644) != nil
	id, _ := os.ReadFile("/etc/machine-id")
	f.MachineID = string(id)
	visits, _ := os.ReadFile("/var/lib/visits")
	f.Visits = len(visits) + 1
	if err := os.WriteFile("/var/lib/visits", append(visits, 'x'), 0o644); err != nil {
		f.Var += " " + err.Error()
	}
	conf, _ := os.ReadFile("/run/systemd/system.conf.d/60-turnout-watchdog.conf")
	f.Watchdog = string(conf)
	if err := readAll("/usr/share/ballast"); err != nil {
		f.ReadError = err.Error()
	}
	b, _ := json.Marshal(f)
	console, err := os.OpenFile("/dev/console", os.O_WRONLY, 0)
	if err == nil {
		fmt.Fprintf(console, "\nFOUND %s\n", b)
	}
	cmdline, _ := os.ReadFile("/proc/cmdline")
	syscall.Sync()
	if strings.Contains(string(cmdline), "test.hang") {
		time.Sleep(time.Hour)
	}
	_ = syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF)
}

func readAll(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(io.Discard, f)
	return err
}
