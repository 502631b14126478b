package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/manifest"
)

func newKeygenCommand() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "keygen",
		Short: "Make the key that signs images",
		Long: `Writes an ed25519 key pair: image.key (PKCS #8 PEM, only for you to read) signs
images, image.pub (PKIX PEM) goes into images and to pxeserver, so that nodes and
server accept only what you built. A key that exists is never overwritten.
` + exitCodes,
		Example: "  imgbuild keygen --out keys",
		Args:    cli.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runKeygen(cmd, out) },
	}
	cmd.Flags().StringVar(&out, "out", "keys", "folder to write image.key and image.pub to")
	return cmd
}

func runKeygen(cmd *cobra.Command, out string) error {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	private, err := manifest.MarshalPrivateKey(key)
	if err != nil {
		return err
	}
	public, err := manifest.MarshalPublicKey(pub)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return fmt.Errorf("image key: %w", err)
	}
	keyFile, pubFile := filepath.Join(out, "image.key"), filepath.Join(out, "image.pub")
	if err := writeNew(keyFile, private, 0o600); err != nil {
		return err
	}
	if err := writeNew(pubFile, public, 0o644); err != nil {
		return errors.Join(err, os.Remove(keyFile))
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s\n%s\n", keyFile, pubFile)
	return nil
}

// writeNew writes a file that must not exist.
func writeNew(name string, b []byte, mode os.FileMode) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s exists and is kept: images signed by it are out there; choose another --out", name)
	}
	if err != nil {
		return fmt.Errorf("image key: %w", err)
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("image key: %w", errors.Join(err, os.Remove(name)))
	}
	return nil
}
