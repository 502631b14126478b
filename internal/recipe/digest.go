package recipe

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/turnout-project/turnout/internal/manifest"
)

// relocate rewrites the sources of files that an extended recipe in another
// folder names, so that all are relative to the folder of r.Path.
func (r *Recipe) relocate() error {
	for i := range r.Files {
		f := &r.Files[i]
		if f.Source == "" {
			continue
		}
		from := filepath.Dir(r.Place(fmt.Sprintf("files[%d].source", i)).File)
		rel, err := filepath.Rel(filepath.Dir(r.Path), filepath.Join(from, f.Source))
		if err != nil {
			return r.Errorf(fmt.Sprintf("files[%d].source", i), "", "%v", err)
		}
		f.Source = rel
	}
	return nil
}

// digest sets Digest and Request. Neither depends on where the recipe lies.
func (r *Recipe) digest() error {
	whole := *r
	whole.Path, whole.Digest, whole.Request, whole.Extends, whole.Remove = "", "", "", "", nil
	whole.Files = append([]File(nil), r.Files...)
	for i := range whole.Files {
		f := &whole.Files[i]
		if f.Source == "" {
			continue
		}
		sum, err := r.hashSource(i)
		if err != nil {
			return err
		}
		f.Source = sum
	}
	var err error
	if r.Digest, err = digestOf("turnout recipe v1", whole); err != nil {
		return err
	}
	// The place of the keyring on this host is not part of the question.
	base := r.Base
	base.Keyring = ""
	r.Request, err = digestOf("turnout request v1", struct {
		Architecture   string
		Base           Base
		Kernel, Pinned string
		Packages       []string
		Driver         Driver   `json:",omitzero"`
		Firmware       []string `json:",omitempty"`
	}{r.Architecture, base, r.Kernel.Package, r.Kernel.Version, r.Packages, r.Driver.request(), r.Firmware.Packages})
	return err
}

// request is what of d is asked of the archive.
func (d Driver) request() Driver {
	d.Modules, d.Accept = nil, nil
	return d
}

func digestOf(kind string, v any) (string, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	return manifest.DigestOf(append([]byte(kind+"\n"), b...)), nil
}

// hashSource returns the digest of the file that files[i] embeds.
func (r *Recipe) hashSource(i int) (string, error) {
	field := fmt.Sprintf("files[%d].source", i)
	f, err := os.Open(filepath.Join(filepath.Dir(r.Path), r.Files[i].Source))
	if err != nil {
		var pe *fs.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		return "", r.Errorf(field, "the path is relative to the folder of this file", "source %s: %v", r.Files[i].Source, err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return "", r.Errorf(field, "list each file by itself", "source %s is not a regular file", r.Files[i].Source)
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("reading %s: %w", f.Name(), err)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}
