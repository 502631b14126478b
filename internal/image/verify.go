package image

import (
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/progress"
	"github.com/turnout-project/turnout/internal/tpm/measure"
	"github.com/turnout-project/turnout/internal/uki"
	"github.com/turnout-project/turnout/internal/verity"
)

// VerifyError lists what does not hold in an image.
type VerifyError struct {
	Digest string
	Faults []string // at least one
}

// Error returns one line per fault.
func (e *VerifyError) Error() string {
	return fmt.Sprintf("image %s is not as it should be:\n  %s", e.Digest, strings.Join(e.Faults, "\n  "))
}

// verifier checks one image.
type verifier struct {
	layout *oci.Layout
	img    *oci.Image
	faults []string
	report *progress.Reporter
}

// Verify checks a finished image without trusting its builder's word: the
// signature by one of keys, every digest, the whole verity tree, that the UKIs
// say what the manifest says, the expected measurements, and the policy on
// the contents of the root (see Policy). Faults come as a *VerifyError or wrap
// manifest.ErrSignature; other errors mean that it could not be checked.
func Verify(ctx context.Context, l *oci.Layout, digest string, keys []ed25519.PublicKey, p *progress.Reporter) (*oci.Image, error) {
	img, err := l.Image(digest)
	if err != nil {
		return nil, &VerifyError{digest, []string{err.Error()}}
	}
	if _, err := l.Signature(digest, keys); err != nil {
		return nil, err
	}
	v := &verifier{layout: l, img: img, report: p}
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"digests", v.digests},
		{"verity tree", v.verity},
		{"boot files", v.bootFiles},
		{"policy", v.policy},
	} {
		task := p.Start("verify "+step.name, progress.Bytes)
		before := len(v.faults)
		if err := step.run(ctx); err != nil {
			return nil, fmt.Errorf("verifying %s: %w", step.name, err)
		}
		if len(v.faults) > before {
			task.End(fmt.Sprintf("%d faults", len(v.faults)-before))
			break // what follows would only repeat it
		}
		task.End("good")
	}
	if len(v.faults) > 0 {
		return nil, &VerifyError{digest, v.faults}
	}
	return img, nil
}

func (v *verifier) fault(format string, args ...any) {
	v.faults = append(v.faults, fmt.Sprintf(format, args...))
}

// digests checks every layer, and that the manifest names the same ones.
func (v *verifier) digests(ctx context.Context) error {
	for _, d := range v.img.OCI.Layers {
		if err := v.layout.CheckBlob(ctx, d); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			v.fault("%v", err)
		}
	}
	m := v.img.Manifest
	for mediaType, blob := range map[string]manifest.Blob{
		manifest.MediaRoot: m.Root, manifest.MediaVerity: m.Verity.Blob, manifest.MediaUKI: m.UKI,
		manifest.MediaInstaller: m.Installer, manifest.MediaLoader: m.Loader,
	} {
		d, ok := v.img.OCI.Layer(mediaType)
		if !ok || d.Digest != blob.Digest || d.Size != blob.SizeBytes {
			v.fault("the manifest names %s (%d bytes) as %s, the image holds %s (%d bytes)", blob.Digest, blob.SizeBytes, mediaType, d.Digest, d.Size)
		}
	}
	slices.Sort(v.faults) // the map has no order
	return nil
}

// verity reads the root against its tree, and compares chunks and superblock.
func (v *verifier) verity(ctx context.Context) error {
	m := v.img.Manifest
	rootHash, err := hex.DecodeString(m.Verity.RootHash)
	if err != nil {
		v.fault("root hash %q is not hexadecimal", m.Verity.RootHash)
		return nil
	}
	data, err := v.layout.Blob(m.Root.Digest)
	if err != nil {
		return err
	}
	defer func() { _ = data.Close() }() // read only
	tree, err := v.layout.Blob(m.Verity.Digest)
	if err != nil {
		return err
	}
	defer func() { _ = tree.Close() }() // read only
	sb, err := verity.Verify(ctx, data, tree, rootHash, verity.VerifyOptions{})
	if errors.Is(err, verity.ErrCorrupt) || errors.Is(err, verity.ErrNoSuperblock) {
		v.fault("%v", err)
		return nil
	}
	if err != nil {
		return err
	}
	if hex.EncodeToString(sb.Salt) != m.Verity.Salt || uuidString(sb.UUID) != m.Verity.UUID || sb.DataBlocks != m.Verity.DataBlocks || sb.DataBytes() != m.Root.SizeBytes {
		v.fault("the verity superblock and the manifest differ in salt, UUID or size")
	}
	if _, err := data.Seek(0, io.SeekStart); err != nil {
		return err
	}
	blob, err := chunksOf(ctx, data)
	if err != nil {
		return err
	}
	if !reflect.DeepEqual(blob, m.Root) {
		v.fault("the chunks of the root are not those of the manifest")
	}
	return nil
}

// bootFiles checks the command lines of the UKIs and computes the
// measurements anew.
func (v *verifier) bootFiles(context.Context) error {
	m := v.img.Manifest
	files := map[string][]byte{}
	for _, b := range []manifest.Blob{m.UKI, m.Installer, m.Loader} {
		f, err := v.layout.Blob(b.Digest)
		if err != nil {
			return err
		}
		files[b.Digest], err = io.ReadAll(io.LimitReader(f, uki.MaxSize+1))
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	v.cmdline("UKI", files[m.UKI.Digest], "roothash="+m.Verity.RootHash)
	v.cmdline("installer UKI", files[m.Installer.Digest], "turnout.mode=installer")
	got, err := measure.Predict(measure.Input{UKI: files[m.UKI.Digest], Installer: files[m.Installer.Digest], Loader: files[m.Loader.Digest]})
	if err != nil {
		v.fault("measurements: %v", err)
		return nil
	}
	want, err := json.Marshal(m.Measurements)
	if err != nil {
		return err
	}
	if b, err := json.Marshal(got); err != nil || string(b) != string(want) {
		v.fault("the measurements in the manifest are not those of its boot files")
	}
	return nil
}

// cmdline checks that the last word of its key in a UKI's command line is
// want.
func (v *verifier) cmdline(what string, pe []byte, want string) {
	line, err := uki.Cmdline(strings.NewReader(string(pe)))
	if err != nil {
		v.fault("%s: %v", what, err)
		return
	}
	key, _, _ := strings.Cut(want, "=")
	last := ""
	for _, w := range strings.Fields(line) {
		if strings.HasPrefix(w, key+"=") {
			last = w
		}
	}
	if last != want {
		v.fault("%s: its command line says %q, want %q", what, last, want)
	}
}

// policy unpacks the root and asks Policy. It takes as much space in the
// folder for temporary files as the root has unpacked.
func (v *verifier) policy(ctx context.Context) error {
	m := v.img.Manifest
	p, err := v.layout.Blob(m.Root.Digest)
	if err != nil {
		return err
	}
	name := p.Name()
	if err := p.Close(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "imgbuild-verify-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // only a copy
	tree, err := Unsquash(ctx, name, dir)
	if err != nil {
		return err
	}
	faults, err := Policy(tree, m)
	v.faults = append(v.faults, faults...)
	return err
}
