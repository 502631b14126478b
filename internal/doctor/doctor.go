// Package doctor looks for what keeps a pxeserver from doing its work on
// this machine. Each examination returns findings: what was looked at, what
// was found, and what to do about it. Nothing is changed.
package doctor

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Level says how bad a finding is.
type Level string

// The levels.
const (
	OK      Level = "ok"
	Warning Level = "warning" // works now, or works less well
	Failure Level = "failure" // does not work
)

// Finding is what an examination found.
type Finding struct {
	Check string `json:"check"` // what was looked at, such as "port 69/udp"
	Level Level  `json:"level"`
	Found string `json:"found"`         // in one sentence
	Fix   string `json:"fix,omitempty"` // what to do; "" where all is well
}

func ok(check, format string, args ...any) Finding {
	return Finding{Check: check, Level: OK, Found: fmt.Sprintf(format, args...)}
}

func warning(check, fix, format string, args ...any) Finding {
	return Finding{check, Warning, fmt.Sprintf(format, args...), fix}
}

func failure(check, fix, format string, args ...any) Finding {
	return Finding{check, Failure, fmt.Sprintf(format, args...), fix}
}

// Worst returns the worst level among findings; OK if there are none.
func Worst(fs []Finding) Level {
	worst := OK
	for _, f := range fs {
		if f.Level == Failure || f.Level == Warning && worst == OK {
			worst = f.Level
		}
	}
	return worst
}

// Disk examines the room left in a folder. need is how many bytes the next
// image may take.
func Disk(dir string, need uint64) Finding {
	const check = "disk space"
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return failure(check, "make the folder, or correct data_dir", "%s: %v", dir, err)
	}
	free, all := st.Bavail*uint64(st.Bsize), st.Blocks*uint64(st.Bsize)
	text := fmt.Sprintf("%s of %s free in %s", bytes(free), bytes(all), dir)
	switch {
	case free < 256<<20:
		return failure(check, "make room, first of all by `pxeserver image gc`: without it the fleet's state cannot be written", "%s", text)
	case free < need:
		return warning(check, "make room by `pxeserver image gc`: the next image needs about "+bytes(need), "%s", text)
	}
	return ok(check, "%s", text)
}

// Clock examines whether the kernel's clock is disciplined: certificates and
// the windows of rollouts go by it.
func Clock() Finding {
	const check, fix = "clock", "run a time service: apt-get install systemd-timesyncd (or chrony)"
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	switch {
	case err != nil:
		return warning(check, fix, "the kernel does not say whether it is synchronised: %v", err)
	case state == unix.TIME_ERROR || t.Status&unix.STA_UNSYNC != 0:
		return warning(check, fix, "not synchronised; it says %s", time.Now().UTC().Format(time.RFC3339))
	}
	return ok(check, "synchronised")
}

// Certificate examines a certificate in PEM.
func Certificate(check string, text []byte, now time.Time) Finding {
	b, _ := pem.Decode(text)
	if b == nil {
		return failure(check, "restore it from a backup (pxeserver restore)", "no certificate in PEM")
	}
	c, err := x509.ParseCertificate(b.Bytes)
	if err != nil {
		return failure(check, "restore it from a backup (pxeserver restore)", "%v", err)
	}
	left := c.NotAfter.Sub(now)
	switch {
	case now.Before(c.NotBefore):
		return failure(check, "set the clock", "not valid before %s: the clock of this machine is wrong", c.NotBefore.Format(time.DateOnly))
	case left <= 0:
		return failure(check, "see docs/runbook.md, Replace the CA", "expired on %s", c.NotAfter.Format(time.DateOnly))
	case left < 180*24*time.Hour:
		return warning(check, "see docs/runbook.md, Replace the CA: images carry it, so it takes a rollout", "expires on %s", c.NotAfter.Format(time.DateOnly))
	}
	return ok(check, "valid until %s", c.NotAfter.Format(time.DateOnly))
}

// Secret examines who may read a file that nobody else should.
func Secret(check, path string, allowed fs.FileMode) Finding {
	st, err := os.Stat(path)
	if err != nil {
		return failure(check, "restore it from a backup (pxeserver restore)", "%v", err)
	}
	if extra := st.Mode().Perm() &^ allowed; extra != 0 {
		return failure(check, fmt.Sprintf("chmod %o %s", st.Mode().Perm()&allowed, path), "%s may be read or written by others (mode %o)", path, st.Mode().Perm())
	}
	return ok(check, "%s has mode %o", path, st.Mode().Perm())
}

// OpenFiles examines how many connections this process, and a server started
// like it, may have.
func OpenFiles(nodes int) Finding {
	const check = "open files"
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return warning(check, "", "%v", err)
	}
	if need := uint64(2*nodes + 256); l.Max < need {
		return warning(check, fmt.Sprintf("raise it: ulimit -n %d, or LimitNOFILE= in the unit", need), "at most %d, and %d nodes need %d", l.Max, nodes, need)
	}
	return ok(check, "at most %d", l.Max)
}

// bytes says a size as people read it.
func bytes(n uint64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	default:
		return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
	}
}
