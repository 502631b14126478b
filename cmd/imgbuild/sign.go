package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
)

type signOptions struct{ key, command, public string }

func newSignCommand() *cobra.Command {
	var o signOptions
	cmd := &cobra.Command{
		Use:   "sign IMAGE",
		Short: "Add a signature to an image",
		Long: `Adds a signature to an image that is built: by a key in a file, or by a command
that signs with a key that cannot be had, in a hardware module or a signing
service. The image's digest does not change; a signature that is there stays.

The command is run by sh. In it {in} is a file with the message, {out} the file
for the ed25519 signature over it: 64 bytes, RFC 8032. The signature is checked
with --public-key before it is added.
` + exitCodes,
		Example: `  imgbuild sign images/rack-base --key keys/release.key
  imgbuild sign images/rack-base --public-key release.pub --command "pkcs11-tool --module MODULE.so --login --pin env:PIN --sign --mechanism EDDSA --id 01 -i {in} -o {out}"
  imgbuild sign images/rack-base --public-key release.pub --command "openssl pkeyutl -sign -rawin -inkey release.key -in {in} -out {out}"`,
		Args: cli.OneArg("the folder of an image"),
		RunE: func(cmd *cobra.Command, args []string) error { return runSign(cmd, o, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.key, "key", "", "private key, as keygen writes it")
	f.StringVar(&o.command, "command", "", "command that signs, in place of --key")
	f.StringVar(&o.public, "public-key", "", "public key of --command, PEM")
	return cmd
}

func runSign(cmd *cobra.Command, o signOptions, arg string) error {
	if (o.key == "") == (o.command == "") {
		return cli.Usagef(cmd, "say who signs: --key FILE, or --command with --public-key")
	}
	if (o.command == "") != (o.public == "") {
		return cli.Usagef(cmd, "--command and --public-key belong together")
	}
	l, img, err := openImage(arg)
	if err != nil {
		return err
	}
	sig, keys, err := o.sign(cmd.Context(), img.Digest)
	if err != nil {
		return err
	}
	if err := manifest.Verify(keys, img.Digest, sig); err != nil {
		return fmt.Errorf("what the signer gave: %w", err)
	}
	if _, err := l.Signature(img.Digest, keys); err == nil {
		fmt.Fprintf(cmd.OutOrStdout(), "%s is signed by that key already\n", img.Digest)
		return nil
	}
	if err := l.PutSignature(oci.Descriptor{MediaType: oci.MediaManifest, Digest: img.Digest, Size: int64(len(img.Raw))}, sig); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "signed %s\n", img.Digest)
	return nil
}

// sign returns the signature, and the public key that must have made it.
func (o signOptions) sign(ctx context.Context, digest string) ([]byte, []ed25519.PublicKey, error) {
	if o.key != "" {
		b, err := os.ReadFile(o.key)
		if err != nil {
			return nil, nil, fmt.Errorf("image key: %w", err)
		}
		key, err := manifest.ParsePrivateKey(b)
		if err != nil {
			return nil, nil, err
		}
		sig, err := manifest.Sign(key, digest)
		return sig, []ed25519.PublicKey{key.Public().(ed25519.PublicKey)}, err
	}
	b, err := os.ReadFile(o.public)
	if err != nil {
		return nil, nil, fmt.Errorf("image public key: %w", err)
	}
	keys, err := manifest.ParsePublicKeys(b)
	if err != nil {
		return nil, nil, err
	}
	sig, err := signOutside(ctx, o.command, digest)
	return sig, keys, err
}

// signOutside has a command sign.
func signOutside(ctx context.Context, command, digest string) ([]byte, error) {
	message, err := manifest.SignedMessage(digest)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "imgbuild-sign-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	in, out := filepath.Join(dir, "message"), filepath.Join(dir, "signature")
	if err := os.WriteFile(in, message, 0o600); err != nil {
		return nil, err
	}
	var said bytes.Buffer
	c := exec.CommandContext(ctx, "sh", "-c", strings.NewReplacer("{in}", in, "{out}", out).Replace(command))
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, &said, &said // it may ask for a PIN
	if err := c.Run(); err != nil {
		return nil, fmt.Errorf("the signing command: %w: %s", err, strings.TrimSpace(said.String()))
	}
	sig, err := os.ReadFile(out)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("the signing command wrote no {out}: %s", strings.TrimSpace(said.String()))
	}
	if err == nil && len(sig) != ed25519.SignatureSize {
		err = fmt.Errorf("the signing command wrote %d bytes; an ed25519 signature has %d", len(sig), ed25519.SignatureSize)
	}
	return sig, err
}
