package main

import (
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/turnout-project/turnout/internal/image"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/secureboot"
)

// maxProgram bounds an EFI program that is read whole, in bytes.
const maxProgram = 1 << 30

// signers tells who signed an image and its EFI programs, as rows of inspect.
func signers(l *oci.Layout, img *oci.Image, keyFiles []string) ([][2]string, error) {
	var keys []ed25519.PublicKey
	var names []string
	for _, f := range keyFiles {
		ks, _, err := readKeys([]string{f})
		if err != nil {
			return nil, fmt.Errorf("%w: %w", image.ErrOptions, err)
		}
		for _, k := range ks {
			keys, names = append(keys, k), append(names, f)
		}
	}
	sigs, err := l.Signatures(img.Digest)
	if err != nil && !errors.Is(err, oci.ErrNotFound) {
		return nil, err
	}
	rows := [][2]string{}
	if len(sigs) == 0 {
		rows = append(rows, [2]string{"signature", "none"})
	}
	for _, sig := range sigs {
		rows = append(rows, [2]string{"signature", imageSigner(img.Digest, sig, keys, names)})
	}
	for _, p := range []struct {
		name string
		blob manifest.Blob
	}{{"loader", img.Manifest.Loader}, {"UKI", img.Manifest.UKI}, {"installer UKI", img.Manifest.Installer}} {
		text, err := programSigner(l, p.blob)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		rows = append(rows, [2]string{p.name + " signature", text})
	}
	return rows, nil
}

func imageSigner(digest string, sig []byte, keys []ed25519.PublicKey, names []string) string {
	for i, k := range keys {
		if manifest.Verify([]ed25519.PublicKey{k}, digest, sig) == nil {
			return "by " + names[i] + ", verified"
		}
	}
	if len(keys) == 0 {
		return "not verified: name keys with --image-key"
	}
	return fmt.Sprintf("by none of the %d keys of --image-key", len(keys))
}

// programSigner tells who signed an EFI program for Secure Boot.
func programSigner(l *oci.Layout, blob manifest.Blob) (string, error) {
	f, err := l.Blob(blob.Digest)
	if err != nil {
		return "", err
	}
	pe, err := io.ReadAll(io.LimitReader(f, maxProgram))
	if err = errors.Join(err, f.Close()); err != nil {
		return "", err
	}
	sigs, err := secureboot.Signatures(pe)
	if err != nil {
		return "cannot be read: " + err.Error(), nil //nolint:nilerr // told to the person
	}
	text := ""
	for _, s := range sigs {
		if text != "" {
			text += "; "
		}
		if s.Cert == nil {
			text += "cannot be read: " + s.Err.Error()
			continue
		}
		sum := sha256.Sum256(s.Cert.Raw)
		text += fmt.Sprintf("by %q (certificate sha256:%x…)", s.Cert.Subject.CommonName, sum[:6])
		if s.Err != nil {
			text += ", does NOT hold: " + s.Err.Error()
		} else {
			text += ", holds"
		}
	}
	if text == "" {
		text = "none: not for Secure Boot"
	}
	return text, nil
}
