package localvm

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// machine is how QEMU stands for the servers of one architecture.
type machine struct {
	qemu       string
	code, vars string // firmware files of Debian's packages
	packages   string // that have all of this
	board      string
	cpu        string // under software emulation
	tpm        string // device of the TPM
}

var machines = map[string]machine{
	"amd64": {"qemu-system-x86_64", "/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd",
		"qemu-system-x86, ovmf and swtpm", "q35", "max", "tpm-crb"},
	// Pointer authentication costs an emulator dear, and proves nothing here.
	"arm64": {"qemu-system-aarch64", "/usr/share/AAVMF/AAVMF_CODE.fd", "/usr/share/AAVMF/AAVMF_VARS.fd",
		"qemu-system-arm, qemu-efi-aarch64 and swtpm", "virt,gic-version=3", "max,pauth=off", "tpm-tis-device"},
}

// missing names what this host lacks; "" when nothing.
func (m machine) missing() string {
	var lacks []string
	for _, tool := range []string{m.qemu, "swtpm"} {
		if _, err := exec.LookPath(tool); err != nil {
			lacks = append(lacks, tool)
		}
	}
	for _, file := range []string{m.code, m.vars} {
		if _, err := os.Stat(file); err != nil {
			lacks = append(lacks, file)
		}
	}
	return strings.Join(lacks, ", ")
}

// accelerator returns QEMU's -accel and -cpu: what was asked for, else kvm
// if this host has it for the architecture, else emulation.
func (m machine) accelerator(asked, architecture string) (accel, cpu string) {
	accel = asked
	if accel == "" {
		accel = "tcg,thread=multi"
		if f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err == nil {
			if architecture == runtime.GOARCH {
				accel = "kvm"
			}
			_ = f.Close() // only tried
		}
	}
	if strings.HasPrefix(accel, "kvm") {
		return accel, "host"
	}
	return accel, m.cpu
}

// machineFor returns the machine of an architecture, if this host has it.
func machineFor(architecture string) (machine, error) {
	m, known := machines[architecture]
	if !known {
		return m, fmt.Errorf("no virtual machine is known for %s", architecture)
	}
	if lacks := m.missing(); lacks != "" {
		return m, fmt.Errorf("this machine lacks %s; install %s", lacks, m.packages)
	}
	return m, nil
}
