package apt

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/recipe"
)

// root is a folder that apt takes for its whole world. One process at a time
// uses it.
type root struct {
	dir  string
	arch string
	held *os.File
}

// openRoot makes or reuses the root of r's sources.
func openRoot(ctx context.Context, r *recipe.Recipe, cache string) (*root, error) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return nil, errors.New("apt-get is not installed; imgbuild resolves packages with the apt of a Debian or Ubuntu host")
	}
	if cache == "" {
		return nil, errors.New("apt: no cache folder was given")
	}
	if _, err := os.Stat(r.Base.Keyring); err != nil {
		return nil, r.Errorf("base.keyring", "install debian-archive-keyring, or name another", "keyring %s cannot be read on this host", r.Base.Keyring)
	}
	cache, err := filepath.Abs(cache)
	if err != nil {
		return nil, err
	}
	list := sourcesList(r)
	sum := sha256.Sum256([]byte(list))
	a := &root{dir: filepath.Join(cache, "apt", hex.EncodeToString(sum[:8])), arch: r.Architecture}
	if strings.ContainsAny(a.dir, "\"\\\n;") {
		return nil, fmt.Errorf("apt cannot work in a folder with quotes in its name: %s", a.dir)
	}
	for _, d := range []string{"etc/apt/preferences.d", "etc/apt/apt.conf.d", "etc/apt/sources.list.d", "etc/apt/trusted.gpg.d",
		"var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/lib/dpkg", "var/log/apt"} {
		if err := os.MkdirAll(filepath.Join(a.dir, d), 0o755); err != nil {
			return nil, fmt.Errorf("apt cache: %w", err)
		}
	}
	if err := a.hold(ctx); err != nil {
		return nil, err
	}
	for name, text := range map[string]string{"apt.conf": a.config(), "etc/apt/sources.list": list, "etc/apt/preferences": "", "var/lib/dpkg/status": "", "var/lib/apt/extended_states": ""} {
		if err := os.WriteFile(filepath.Join(a.dir, name), []byte(text), 0o644); err != nil {
			a.close()
			return nil, fmt.Errorf("apt cache: %w", err)
		}
	}
	return a, nil
}

// hold waits until no other process uses the root.
func (a *root) hold(ctx context.Context) error {
	f, err := os.OpenFile(filepath.Join(a.dir, "held"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("apt cache: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			a.held = f
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return fmt.Errorf("apt cache %s: %w", a.dir, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return fmt.Errorf("waiting for another process to leave %s: %w", a.dir, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (a *root) close() { a.held.Close() }

// config is the whole configuration of apt: with Dir set, none of the host's
// is read. apt is run without its sandbox user, who could not enter a cache
// below a home; what it brings is verified all the same.
func (a *root) config() string {
	return fmt.Sprintf(`Dir %q;
Dir::State::status %q;
APT::Architecture %q;
APT::Architectures { %q; };
APT::Install-Recommends "false";
APT::Install-Suggests "false";
APT::Sandbox::User "root";
APT::Protect-Kernels "false";
APT::Update::Error-Mode "any";
pkgCacheGen::ForceEssential ",";
Acquire::Languages "none";
Acquire::By-Hash "no";
Acquire::PDiffs "false";
Acquire::GzipIndexes "false";
Acquire::ForceHash "sha256";
Acquire::Check-Date "true";
Acquire::Check-Valid-Until "true";
Acquire::Retries "3";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowWeakRepositories "false";
Acquire::AllowDowngradeToInsecureRepositories "false";
`, a.dir, filepath.Join(a.dir, "var/lib/dpkg/status"), a.arch, a.arch)
}

// snapshotURI matches the address of an archive frozen at a time, such as
// those of snapshot.debian.org.
var snapshotURI = regexp.MustCompile(`/[0-9]{8}T[0-9]{6}Z(/|$)`)

// sourcesList writes r's archives for apt. A Release file says until when it
// is to be believed, so that nobody can serve an old one for ever; of a
// snapshot the old one is what is wanted, and its signature and hashes hold
// as before.
func sourcesList(r *recipe.Recipe) string {
	var b strings.Builder
	for _, s := range r.Base.Sources {
		valid := ""
		if snapshotURI.MatchString(s.URI) {
			valid = " check-valid-until=no"
		}
		for _, suite := range s.Suites {
			fmt.Fprintf(&b, "deb [arch=%s signed-by=%s%s] %s %s %s\n", r.Architecture, r.Base.Keyring, valid,
				s.URI, suite, strings.Join(s.Components, " "))
		}
	}
	return b.String()
}

// pin makes apt prefer exactly these versions, also for what depends on them.
func (a *root) pin(versions map[string]string) error {
	var b strings.Builder
	for name, v := range versions {
		fmt.Fprintf(&b, "Package: %s\nPin: version %s\nPin-Priority: 1001\n\n", name, v)
	}
	if err := os.WriteFile(filepath.Join(a.dir, "etc/apt/preferences"), []byte(b.String()), 0o644); err != nil {
		return fmt.Errorf("apt cache: %w", err)
	}
	return nil
}

// commandError is a failed apt command with what it printed.
type commandError struct {
	command string
	output  string
	err     error
}

func (e *commandError) Error() string {
	return fmt.Sprintf("%s: %v: %s", e.command, e.err, strings.Join(complaints(e.output), "; "))
}

func (e *commandError) Unwrap() error { return e.err }

// complaints returns apt's errors and warnings, or all it printed if it named none.
func complaints(output string) []string {
	var lines []string
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if text, ok := strings.CutPrefix(line, "E: "); ok {
			lines = append(lines, text)
		}
	}
	if len(lines) == 0 {
		lines = append(lines, strings.TrimSpace(output))
	}
	return lines
}

// run runs an apt command in the root and returns its standard output.
func (a *root) run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = a.dir
	cmd.Env = append(keptEnv(), "APT_CONFIG="+filepath.Join(a.dir, "apt.conf"), "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")
	cmd.WaitDelay = 5 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		return "", &commandError{command: name, output: out.String() + "\n" + errs.String(), err: err}
	}
	return out.String(), nil
}

// keptEnv is what of the caller's environment concerns the way to the
// network, and the search path.
func keptEnv() []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}
