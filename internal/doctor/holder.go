package doctor

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// holder names the process that has a port, as "dnsmasq (pid 812)"; "" if it
// cannot be seen, which takes root for processes of others.
func holder(network, port string) string {
	n, err := strconv.Atoi(port)
	if err != nil {
		return ""
	}
	sockets := map[string]bool{}
	for _, table := range []string{network, network + "6"} {
		for _, inode := range inodes("/proc/net/"+table, n, network == "tcp") {
			sockets["socket:["+inode+"]"] = true
		}
	}
	if len(sockets) == 0 {
		return ""
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && sockets[to] {
			pid := strings.Split(fd, "/")[2]
			name, _ := os.ReadFile("/proc/" + pid + "/comm")
			return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(name)), pid)
		}
	}
	return ""
}

// inodes are the sockets of a table of /proc/net (proc(5)) that have a local
// port; of TCP those that listen.
func inodes(table string, port int, listening bool) []string {
	f, err := os.Open(table)
	if err != nil {
		return nil
	}
	defer f.Close()
	var out []string
	for s := bufio.NewScanner(f); s.Scan(); {
		w := strings.Fields(s.Text())
		if len(w) < 10 {
			continue
		}
		_, hex, _ := strings.Cut(w[1], ":")
		p, err := strconv.ParseUint(hex, 16, 16)
		if err != nil || int(p) != port || listening && w[3] != "0A" {
			continue
		}
		out = append(out, w[9])
	}
	return out
}
