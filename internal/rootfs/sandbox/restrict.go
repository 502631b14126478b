package sandbox

import (
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// waitDelay is how long a killed program's output is waited for, in case a
// daemon it left behind keeps the pipe open.
const waitDelay = 5 * time.Second

// kept are the capabilities package scripts have a use for. The others, above
// all those that reach the machine below, are dropped from what any program
// in the sandbox can ever get.
var kept = map[uintptr]bool{
	unix.CAP_CHOWN: true, unix.CAP_DAC_OVERRIDE: true, unix.CAP_DAC_READ_SEARCH: true,
	unix.CAP_FOWNER: true, unix.CAP_FSETID: true, unix.CAP_KILL: true, unix.CAP_SETGID: true,
	unix.CAP_SETUID: true, unix.CAP_SETPCAP: true, unix.CAP_SETFCAP: true, unix.CAP_MKNOD: true,
	unix.CAP_NET_BIND_SERVICE: true, unix.CAP_SYS_CHROOT: true, unix.CAP_AUDIT_WRITE: true,
	unix.CAP_IPC_LOCK: true, unix.CAP_SYS_NICE: true, unix.CAP_SYS_RESOURCE: true,
}

// restrict limits what the thread's later children can do.
func restrict() error {
	if err := suppressSync(); err != nil {
		return fmt.Errorf("making fsync cheap: %w", err)
	}
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if kept[c] {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && err != unix.EINVAL { // EINVAL: unknown to this kernel
			return fmt.Errorf("dropping capability %d: %w", c, err)
		}
	}
	return nil
}

// auditArch are the names seccomp has for the architectures.
var auditArch = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// suppressSync makes the calls that wait for the disk succeed without doing
// anything: dpkg alone makes hundreds, which cost most of its time.
func suppressSync() error {
	arch, ok := auditArch[runtime.GOARCH]
	if !ok {
		return nil
	}
	const (
		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		ret   = unix.BPF_RET | unix.BPF_K
		allow = unix.SECCOMP_RET_ALLOW
		zero  = unix.SECCOMP_RET_ERRNO // with errno 0: the call returns 0
	)
	calls := []uint32{unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNC, unix.SYS_SYNCFS, unix.SYS_SYNC_FILE_RANGE, unix.SYS_MSYNC}
	// struct seccomp_data: the call's number at offset 0, the architecture at 4.
	prog := []unix.SockFilter{
		{Code: load, K: 4},
		{Code: equal, K: arch, Jf: uint8(len(calls)) + 1},
		{Code: load, K: 0},
	}
	for i, nr := range calls {
		prog = append(prog, unix.SockFilter{Code: equal, K: nr, Jt: uint8(len(calls) - i)})
	}
	prog = append(prog, unix.SockFilter{Code: ret, K: allow}, unix.SockFilter{Code: ret, K: zero})
	f := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	_, _, errno := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&f)))
	runtime.KeepAlive(prog)
	if errno != 0 {
		return errno
	}
	return nil
}
