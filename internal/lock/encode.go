package lock

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/turnout-project/turnout/internal/manifest"
)

// Encode returns the canonical bytes of f, the same for equal files.
func Encode(f *File) ([]byte, error) {
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(b, '\n'), nil
}

// Digest returns the "sha256:…" of f's canonical bytes.
func (f *File) Digest() (string, error) {
	b, err := Encode(f)
	if err != nil {
		return "", err
	}
	return manifest.DigestOf(b), nil
}

// Write replaces the file at name by f, whole or not at all.
func Write(name string, f *File) error {
	if err := f.Validate(); err != nil {
		return fmt.Errorf("lock %s not written: %w", name, err)
	}
	b, err := Encode(f)
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(name, b, 0o644); err != nil {
		return fmt.Errorf("lock %s not written: %w", name, err)
	}
	return nil
}

// Read reads the lock file at name and refuses one that is not exact.
func Read(name string) (*File, error) {
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("lock %s does not exist; make it with `imgbuild lock`: %w", name, fs.ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	f, err := Decode(b)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return f, nil
}

// Decode is Read on bytes.
func Decode(b []byte) (*File, error) {
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	if head.Version != Version {
		return nil, fmt.Errorf("version %d, this program knows %d; make it anew with `imgbuild lock`", head.Version, Version)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	var f File
	if err := dec.Decode(&f); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more after the end of the lock")
	}
	return &f, f.Validate()
}

var (
	nameRE    = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)
	versionRE = regexp.MustCompile(`^([0-9]+:)?[0-9][0-9A-Za-z.+~-]*$`)
	keysRE    = regexp.MustCompile(`^[0-9A-F]{40}(,[0-9A-F]{40})*$`)
	labelRE   = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*$`)
	suiteRE   = regexp.MustCompile(`^[a-z0-9][a-z0-9./-]*$`)
)

// Validate refuses a lock that is not exact or names things it must not.
func (f *File) Validate() error {
	switch {
	case f.Version != Version:
		return fmt.Errorf("version %d, this program knows %d", f.Version, Version)
	case !labelRE.MatchString(f.Name):
		return fmt.Errorf("name %q is not a recipe's name", f.Name)
	case f.Architecture != "amd64" && f.Architecture != "arm64":
		return fmt.Errorf("architecture %q is not amd64 or arm64", f.Architecture)
	case f.SourceDateEpoch <= 0:
		return fmt.Errorf("sourceDateEpoch %d is not a date", f.SourceDateEpoch)
	case len(f.Indexes) == 0:
		return errors.New("no index is named")
	}
	if err := manifest.CheckDigest(f.Recipe); err != nil {
		return fmt.Errorf("recipe: %w", err)
	}
	for _, x := range f.Indexes {
		if err := x.validate(); err != nil {
			return fmt.Errorf("index %s %s: %w", x.URI, x.Suite, err)
		}
	}
	if err := f.validateKernel(); err != nil {
		return err
	}
	if err := f.validateList("packages", f.Packages); err != nil {
		return err
	}
	if err := f.validateList("tools", f.Tools); err != nil {
		return err
	}
	if err := f.validateList("build", f.Build); err != nil {
		return err
	}
	return f.validateAccounts()
}

var accountRE = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]{0,31}$`)

func (f *File) validateAccounts() error {
	owner := map[int]string{}
	for _, name := range slices.Sorted(maps.Keys(f.Accounts)) {
		id := f.Accounts[name]
		switch {
		case !accountRE.MatchString(name):
			return fmt.Errorf("accounts: %q is no name of an account", name)
		case id < AccountFirst || id > AccountLast:
			return fmt.Errorf("accounts: %s has the number %d; want %d to %d", name, id, AccountFirst, AccountLast)
		case owner[id] != "":
			return fmt.Errorf("accounts: %s and %s have the number %d", owner[id], name, id)
		}
		owner[id] = name
	}
	return nil
}

var kernelRE = regexp.MustCompile(`^linux-image-[0-9]`)

func (f *File) validateKernel() error {
	var kernels []string
	for _, p := range f.Packages {
		if kernelRE.MatchString(p.Name) {
			kernels = append(kernels, p.Name)
		}
	}
	if len(kernels) != 1 || kernels[0] != f.Kernel {
		return fmt.Errorf("packages hold the kernels %v; want just %q", kernels, f.Kernel)
	}
	return nil
}

func (f *File) validateList(kind string, ps []Package) error {
	if !slices.IsSortedFunc(ps, func(a, b Package) int { return strings.Compare(a.Name, b.Name) }) {
		return fmt.Errorf("%s are not sorted by name", kind)
	}
	for i, p := range ps {
		if err := p.validate(f.Architecture); err != nil {
			return fmt.Errorf("%s: %q: %w", kind, p.Name, err)
		}
		if i > 0 && ps[i-1].Name == p.Name {
			return fmt.Errorf("%s: %q is listed twice", kind, p.Name)
		}
	}
	return nil
}

func (x Index) validate() error {
	if !keysRE.MatchString(x.Key) {
		return fmt.Errorf("key %q is not a fingerprint", x.Key)
	}
	if !suiteRE.MatchString(x.Suite) {
		return fmt.Errorf("suite %q is not a suite", x.Suite)
	}
	if _, err := x.Time(); err != nil {
		return err
	}
	if err := checkSHA256(x.SHA256); err != nil {
		return err
	}
	_, err := checkURI(x.URI)
	return err
}

// Time returns the Date of the index.
func (x Index) Time() (time.Time, error) {
	for _, layout := range []string{time.RFC1123, "Mon, 2 Jan 2006 15:04:05 MST"} {
		if t, err := time.Parse(layout, x.Date); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("date %q is not the date of a Release file", x.Date)
}

func (p Package) validate(arch string) error {
	switch {
	case !nameRE.MatchString(p.Name):
		return errors.New("not a package name")
	case p.Source != "" && !nameRE.MatchString(p.Source):
		return fmt.Errorf("source %q is not a package name", p.Source)
	case !versionRE.MatchString(p.Version):
		return fmt.Errorf("version %q is not a Debian version", p.Version)
	case p.Architecture != arch && p.Architecture != "all":
		return fmt.Errorf("architecture %q is not %s or all", p.Architecture, arch)
	case p.SizeBytes <= 0:
		return fmt.Errorf("size %d", p.SizeBytes)
	}
	if err := checkSHA256(p.SHA256); err != nil {
		return err
	}
	u, err := checkURI(p.URI)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(path.Base(u.Path), p.Name+"_") || !strings.HasSuffix(u.Path, ".deb") {
		return fmt.Errorf("uri %s is not one of this package", p.URI)
	}
	return nil
}

// FileName returns the name a mirror and a person give the package:
// "name_version_architecture.deb", the version without its epoch.
func (p Package) FileName() string {
	_, v, ok := strings.Cut(p.Version, ":")
	if !ok {
		v = p.Version
	}
	return p.Name + "_" + v + "_" + p.Architecture + ".deb"
}

func checkSHA256(s string) error {
	if b, err := hex.DecodeString(s); err != nil || len(b) != 32 || strings.ToLower(s) != s {
		return fmt.Errorf("sha256 %q is not 64 hexadecimal digits", s)
	}
	return nil
}

func checkURI(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("uri %q is not a plain http or https address", s)
	}
	if strings.Contains(u.Path, "/../") || strings.Contains(u.Path, "/./") || strings.Contains(u.Path, `\`) {
		return nil, fmt.Errorf("uri %q has dots or backslashes as folders", s)
	}
	return u, nil
}
