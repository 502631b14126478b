package kmod

import (
	"archive/tar"
	"bytes"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/lock"
)

// pack writes the modules as a Debian package (deb(5), format 2.0) without
// scripts and dependencies: the kernel's own package runs depmod when it is
// configured, and it is unpacked by then.
func (s *Spec) pack(out, version string, modules []Module) error {
	when := time.Unix(s.SourceDateEpoch, 0).UTC()
	dir := "./usr/lib/modules/" + s.Kernel + "/updates/dkms/"
	var data, sums bytes.Buffer
	t := tar.NewWriter(&data)
	size := int64(0)
	if err := folders(t, dir, when); err != nil {
		return err
	}
	for _, m := range modules {
		if err := file(t, dir+m.File, m.data, when); err != nil {
			return err
		}
		size += int64(len(m.data))
		fmt.Fprintf(&sums, "%x  %s\n", md5.Sum(m.data), strings.TrimPrefix(dir+m.File, "./"))
	}
	if err := t.Close(); err != nil {
		return err
	}
	control := fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: %s\nMaintainer: Turnout <turnout@localhost>\nInstalled-Size: %d\nSection: kernel\nPriority: optional\nDescription: kernel modules of driver %s for kernel %s\n Compiled by imgbuild from %s.\n",
		s.Name(), version, s.Architecture, (size+1023)/1024, s.Driver, s.Kernel, strings.Join(s.Sources, ", "))
	var meta bytes.Buffer
	t = tar.NewWriter(&meta)
	if err := errors.Join(file(t, "./control", []byte(control), when), file(t, "./md5sums", sums.Bytes(), when), t.Close()); err != nil {
		return err
	}
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	return errors.Join(writeAr(f, when, member{"debian-binary", []byte("2.0\n")}, member{"control.tar", meta.Bytes()}, member{"data.tar", data.Bytes()}), f.Close())
}

// folders writes the entries of a folder and of those it is in.
func folders(t *tar.Writer, dir string, when time.Time) error {
	clean := strings.Trim(strings.TrimPrefix(dir, "."), "/")
	name := "./"
	if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755, ModTime: when, Format: tar.FormatGNU}); err != nil {
		return err
	}
	for part := range strings.SplitSeq(clean, "/") {
		name += part + "/"
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755, ModTime: when, Format: tar.FormatGNU}); err != nil {
			return err
		}
	}
	return nil
}

func file(t *tar.Writer, name string, content []byte, when time.Time) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: when, Format: tar.FormatGNU}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	_, err := t.Write(content)
	return err
}

type member struct {
	name string
	data []byte
}

// writeAr writes an ar archive (ar(5)).
func writeAr(w io.Writer, when time.Time, members ...member) error {
	if _, err := io.WriteString(w, "!<arch>\n"); err != nil {
		return err
	}
	for _, m := range members {
		if _, err := fmt.Fprintf(w, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", m.name, when.Unix(), 0, 0, "100644", len(m.data)); err != nil {
			return err
		}
		if _, err := w.Write(m.data); err != nil {
			return err
		}
		if len(m.data)%2 == 1 {
			if _, err := io.WriteString(w, "\n"); err != nil {
				return err
			}
		}
	}
	return nil
}

// Describe returns the package of modules at p, made from s, as rootfs takes
// it. Its source is that of the modules, so that who looks for known
// vulnerabilities finds them; it has no address.
func (s *Spec) Describe(p string) (lock.Package, error) {
	version, err := s.Version()
	if err != nil {
		return lock.Package{}, err
	}
	f, err := os.Open(p)
	if err != nil {
		return lock.Package{}, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	if err != nil {
		return lock.Package{}, err
	}
	source := ""
	for _, name := range s.Sources {
		if from, ok := lock.Find(s.Packages, name); ok && source == "" {
			if source = from.Source; source == "" {
				source = name
			}
		}
	}
	return lock.Package{
		Name: s.Name(), Version: version, Architecture: s.Architecture, Source: source, SizeBytes: n, SHA256: hex.EncodeToString(h.Sum(nil)),
	}, nil
}
