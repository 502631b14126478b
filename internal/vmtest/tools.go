package vmtest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Firmware files of Debian's ovmf package.
const (
	ovmfCode = "/usr/share/OVMF/OVMF_CODE_4M.fd"
	ovmfVars = "/usr/share/OVMF/OVMF_VARS_4M.fd"
)

// Missing names what this machine lacks to run a rack, or "" when nothing.
func Missing() string {
	var lacks []string
	if os.Geteuid() != 0 {
		lacks = append(lacks, "root (network namespaces)")
	}
	for _, tool := range []string{"qemu-system-x86_64", "swtpm", "swtpm_setup", "ip"} {
		if _, err := exec.LookPath(tool); err != nil {
			lacks = append(lacks, tool)
		}
	}
	for _, file := range []string{ovmfCode, ovmfVars} {
		if _, err := os.Stat(file); err != nil {
			lacks = append(lacks, file)
		}
	}
	return strings.Join(lacks, ", ")
}

// run executes a command and returns its output inside the error on failure.
func run(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
