package kmod

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/rootfs/sandbox"
)

// CompileError says that a driver does not compile for a kernel.
type CompileError struct {
	Driver string // "nvidia-current-open 535.261.03"
	Kernel string // release
	First  string // the compiler's first complaint
	Log    string // path of its whole output
}

func (e *CompileError) Error() string {
	return fmt.Sprintf("driver %s does not compile for kernel %s: %s; take another kernel or driver version. The compiler's whole output is in %q",
		e.Driver, e.Kernel, e.First, e.Log)
}

// source is one module tree of DKMS.
type source struct{ name, version string }

var dkmsName = regexp.MustCompile(`(?m)^PACKAGE_(NAME|VERSION)="?([A-Za-z0-9][A-Za-z0-9._+~-]*)"?\s*$`)

// sources finds the DKMS trees below /usr/src of root.
func sources(root string) ([]source, error) {
	files, err := filepath.Glob(filepath.Join(root, sourceDir, "*", "dkms.conf"))
	if err != nil {
		return nil, err
	}
	var all []source
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		var s source
		for _, m := range dkmsName.FindAllSubmatch(b, -1) {
			if string(m[1]) == "NAME" {
				s.name = string(m[2])
			} else {
				s.version = string(m[2])
			}
		}
		if s.name == "" || s.version == "" || filepath.Base(filepath.Dir(name)) != s.name+"-"+s.version {
			return nil, fmt.Errorf("%w: %s does not name itself", ErrSpec, name)
		}
		all = append(all, s)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: the packages have no DKMS sources in /usr/src", ErrSpec)
	}
	return all, nil
}

// env is the whole environment of the compiler. The kernel's build system
// writes time, user and host into what it makes unless it is told them.
func (s *Spec) env() []string {
	return []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8", "TZ=UTC",
		fmt.Sprintf("SOURCE_DATE_EPOCH=%d", s.SourceDateEpoch), fmt.Sprintf("KBUILD_BUILD_TIMESTAMP=@%d", s.SourceDateEpoch),
		"KBUILD_BUILD_USER=turnout", "KBUILD_BUILD_HOST=turnout",
	}
}

// compile runs dkms for the pinned kernel, whatever kernel this machine runs,
// and returns the paths of the modules, sorted.
func (s *Spec) compile(ctx context.Context, root string) ([]string, error) {
	trees, err := sources(root)
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(filepath.Join(root, "usr/lib/modules", s.Kernel, "build")); err != nil {
		return nil, fmt.Errorf("%w: the build root has no headers of kernel %s", ErrSpec, s.Kernel)
	}
	box, err := sandbox.Open(root, sandbox.Options{})
	if err != nil {
		return nil, err
	}
	defer box.Close()
	var files []string
	for _, t := range trees {
		var out bytes.Buffer
		s.Log.Info("compiling", "driver", t.name, "version", t.version, "kernel", s.Kernel)
		err := box.Run(ctx, sandbox.Command{Env: s.env(), Output: &out, Args: []string{
			"/usr/sbin/dkms", "build", "-m", t.name, "-v", t.version, "-k", s.Kernel, "-a", machine[s.Architecture], "-j", fmt.Sprint(runtime.NumCPU()), "--force",
		}})
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			return nil, s.failed(root, t, out.Bytes(), err)
		}
		made, err := filepath.Glob(filepath.Join(root, "var/lib/dkms", t.name, t.version, s.Kernel, machine[s.Architecture], "module", "*.ko*"))
		if err != nil {
			return nil, err
		}
		if len(made) == 0 {
			return nil, s.failed(root, t, out.Bytes(), errors.New("dkms made no module"))
		}
		files = append(files, made...)
	}
	slices.Sort(files)
	return files, box.Close()
}

// failed keeps the compiler's output and finds the error that matters in it.
func (s *Spec) failed(root string, t source, said []byte, cause error) error {
	e := &CompileError{Driver: t.name + " " + t.version, Kernel: s.Kernel, Log: s.LogPath}
	text, err := os.ReadFile(filepath.Join(root, "var/lib/dkms", t.name, t.version, "build/make.log"))
	if err != nil {
		text = nil // dkms did not come to the compiler
	}
	if e.First = firstError(text); e.First == "" {
		e.First = fmt.Sprintf("dkms: %v: %s", cause, lastLine(said))
	}
	if err := os.WriteFile(s.LogPath, append(said, text...), 0o644); err != nil {
		return errors.Join(e, err)
	}
	return e
}

var complaint = regexp.MustCompile(`^(\S+?:\d+(?::\d+)?: )?(fatal error|error|ERROR|Error)( \d+)?: .*`)

// firstError returns the first complaint of compiler, modpost or make. What
// stands behind it follows from it.
func firstError(log []byte) string {
	for line := range strings.Lines(string(log)) {
		line = strings.TrimSpace(line)
		if m := complaint.FindStringSubmatch(line); m != nil {
			return shorten(line)
		}
	}
	for line := range strings.Lines(string(log)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "make") && strings.Contains(line, "***") {
			return shorten(line)
		}
	}
	return ""
}

// shorten takes the folder of the build off a line.
func shorten(line string) string {
	if i := strings.Index(line, "/build/"); i >= 0 && strings.HasPrefix(line, "/var/lib/dkms/") {
		line = line[i+len("/build/"):]
	}
	return line
}

func lastLine(b []byte) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
