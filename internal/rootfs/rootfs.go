// Package rootfs makes the root file system of an image: it unpacks the
// packages of a lock in parallel, lets dpkg configure them in a sandbox
// without network or services, applies what the recipe adds, and cleans and
// packs the result so that the same lock gives the same bytes.
//
// It needs root and Linux 5.6. It fetches nothing: packages must be at hand,
// their hashes checked by whoever fetched them.
package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/recipe"
	"github.com/turnout-project/turnout/internal/rootfs/tree"
)

// Spec is what a root file system is made of.
type Spec struct {
	Packages []lock.Package
	// DebPath returns the path of the package with that SHA-256 (hex).
	DebPath func(sha256 string) string
	// Recipe gives the files, users, services, sysctl, modprobe and excluded
	// modules. nil adds nothing.
	Recipe *recipe.Recipe
	// ExtraFiles are put in after the recipe's files and may replace them.
	ExtraFiles []File
	// EnableUnits are systemd units to enable beside the recipe's.
	EnableUnits     []string
	SourceDateEpoch int64 // Unix seconds
	// Accounts are numbers of system accounts that are given (lock.File).
	Accounts map[string]int
	// WorkDir is a folder of this build alone; what an earlier build left in
	// it is removed. It ends up with root/, vmlinuz-* and logs.
	WorkDir string
	Jobs    int          // packages unpacked at once; 0 means one per CPU
	Log     *slog.Logger // nil: quiet
	// Progress is told how far a stage is; total is 0 if unknown. It may be
	// called from several goroutines, one call at a time. nil: quiet.
	Progress func(stage string, done, total int64)
	// Base is the path of a base that SaveBase kept in an earlier build of the
	// same BaseDigest: packages are neither unpacked nor configured again. The
	// result is the same. "" makes everything from packages.
	Base string
	// SaveBase is called with the function that writes the base to a path,
	// once packages are configured, and returns where the base then is: a
	// folder, best on the file system of WorkDir. nil: it is not kept.
	SaveBase func(write func(path string) error) (string, error)
}

// File is a file, folder or link put into the root. Exactly one of Content,
// Source, Link and Dir counts, in the order Dir, Link, Source, Content.
type File struct {
	Path    string // absolute
	Content []byte
	Source  string // path of a file on the build host
	Link    string // target of a symbolic link
	Dir     bool
	Mode    fs.FileMode // permissions; 0 means 0644, folders 0755
	Owner   string      // "user:group" by names or numbers of the image; "" means root:root
}

// Result is a finished root file system.
type Result struct {
	Dir           string      // the tree, to be packed; good until Close
	KernelImage   string      // path of the kernel, moved out of the tree's /boot
	KernelRelease string      // uname -r
	ModulesDir    string      // path of Dir's /usr/lib/modules/<release>
	Installed     []Installed // sorted by name
	Timings       []Timing    // in order

	mount *os.File // what keeps Dir, if that is an overlay of a base
	base  *os.File // locked for as long as Dir is above it
}

// Close ends Dir, which may be an overlay. It may be called again, and on nil.
func (r *Result) Close() {
	if r == nil {
		return
	}
	if r.mount != nil {
		_ = r.mount.Close() // a folder
	}
	if r.base != nil {
		_ = r.base.Close() // gives the lock back
	}
}

// Installed is a package as dpkg in the image knows it.
type Installed struct{ Name, Version, Architecture string }

// Timing is how long a stage took.
type Timing struct {
	Stage string
	Took  time.Duration
}

// ErrSpec is wrapped by errors of a Spec that names something which cannot
// be: a missing unit, an unknown owner, a package twice.
var ErrSpec = errors.New("cannot build this root file system")

// Build makes the root file system. On error the work folder is left as it
// is for a look at it; nothing stays mounted in any case.
func Build(ctx context.Context, s Spec) (*Result, error) {
	if err := s.fill(); err != nil {
		return nil, err
	}
	b := &build{Spec: s, dir: filepath.Join(s.WorkDir, "root")}
	defer b.close()
	done := false
	defer func() {
		if !done {
			b.result.Close()
		}
	}()
	for _, st := range b.stages() {
		start := time.Now()
		b.progress(st.name, 0, 0)
		if err := st.run(ctx); err != nil {
			return nil, fmt.Errorf("root file system: %s: %w", st.name, err)
		}
		b.result.Timings = append(b.result.Timings, Timing{st.name, time.Since(start)})
		b.Log.Debug("root file system", "stage", st.name, "took", time.Since(start).Round(time.Millisecond))
	}
	done = true
	return &b.result, nil
}

// stage is one step of a build.
type stage struct {
	name string
	run  func(context.Context) error
}

func (b *build) stages() []stage {
	base := []stage{
		{"prepare", b.prepare},
		{"unpack", b.unpack},
		{"dpkg database", b.writeDatabase},
		{"configure", b.configure},
		{"prune firmware", b.pruneFirmware},
		{"number accounts", b.numberAccounts},
		{"keep packages", b.saveBase},
	}
	if b.Base != "" {
		base = []stage{{"prepare", b.prepare}, {"restore packages", b.restoreBase}}
	}
	return append(base, stage{"apply recipe", b.apply}, stage{"clean", b.clean}, stage{"collect", b.collect})
}

func (s *Spec) fill() error {
	switch {
	case len(s.Packages) == 0:
		return fmt.Errorf("%w: no packages", ErrSpec)
	case s.WorkDir == "":
		return fmt.Errorf("%w: no work folder", ErrSpec)
	case os.Geteuid() != 0:
		return errors.New("building a root file system needs root: run imgbuild with sudo, or in a container as root")
	}
	if s.Jobs == 0 {
		s.Jobs = runtime.NumCPU()
	}
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	if s.Recipe == nil {
		s.Recipe = &recipe.Recipe{}
	}
	return nil
}

// build is one run of Build.
type build struct {
	Spec
	dir      string    // WorkDir/root
	tree     *tree.Dir // dir, links followed inside it
	debs     []*unpacked
	unpacker *unpacker
	result   Result
}

func (b *build) progress(stage string, done, total int64) {
	if b.Progress != nil {
		b.Progress(stage, done, total)
	}
}

func (b *build) close() {
	if b.tree != nil {
		b.tree.Close()
	}
	if b.unpacker != nil {
		b.unpacker.tree.Close()
	}
}

// prepare makes the empty tree.
func (b *build) prepare(context.Context) error {
	for _, old := range []string{b.dir, b.logPath()} {
		if err := os.RemoveAll(old); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(b.dir, 0o755); err != nil {
		return err
	}
	var err error
	b.tree, err = tree.Open(b.dir)
	return err
}

// logPath is where the output of package scripts is kept.
func (b *build) logPath() string { return filepath.Join(b.WorkDir, "configure.log") }
