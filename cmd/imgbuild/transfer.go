package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/image"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/oci/registry"
	"github.com/turnout-project/turnout/internal/progress"
)

const credentialsHelp = `
Credentials are those that "docker login" or "oras login" has stored. A transfer
that was cut off goes on when it is started again: blobs that are at the other
end are not sent again.
`

func newPushCommand(common *commonOptions) *cobra.Command {
	var plain bool
	cmd := &cobra.Command{
		Use:   "push IMAGE REFERENCE",
		Short: "Send an image to an OCI registry",
		Long: `Sends an image and its signatures to an OCI registry. IMAGE is a folder that build
wrote, or FOLDER@DIGEST; REFERENCE is HOST/NAME:TAG.
` + credentialsHelp + exitCodes,
		Example: "  imgbuild push images/rack-base registry.example/turnout/rack-base:2026.12",
		Args:    cli.TwoArgs("an image and a reference"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := source(args[0])
			if err != nil {
				return err
			}
			return transfer(cmd, common, "push", plain, func(o registry.Options) (string, error) {
				return s.Digest, registry.Push(cmd.Context(), s.Layout, s.Digest, args[1], o)
			})
		},
	}
	cmd.Flags().BoolVar(&plain, "plain-http", false, "speak HTTP without TLS")
	return cmd
}

type pullOptions struct {
	plain bool
	out   string
	keys  []string
}

func newPullCommand(common *commonOptions) *cobra.Command {
	var o pullOptions
	cmd := &cobra.Command{
		Use:   "pull REFERENCE",
		Short: "Bring an image from an OCI registry",
		Long: `Brings an image and its signatures from an OCI registry into a folder, each part
checked against its digest. With --image-key one of the keys must have signed
it. REFERENCE is HOST/NAME:TAG or HOST/NAME@DIGEST. A folder that holds images
already keeps them.
` + credentialsHelp + exitCodes,
		Example: "  imgbuild pull registry.example/turnout/rack-base:2026.12 --image-key keys/image.pub",
		Args:    cli.OneArg("a reference"),
		RunE:    func(cmd *cobra.Command, args []string) error { return runPull(cmd, common, o, args[0]) },
	}
	f := cmd.Flags()
	f.BoolVar(&o.plain, "plain-http", false, "speak HTTP without TLS")
	f.StringVar(&o.out, "out", "", "folder to write the image to (default: images/<last part of the name>)")
	f.StringArrayVar(&o.keys, "image-key", nil, "public key that must have signed the image; may be given again")
	return cmd
}

func runPull(cmd *cobra.Command, common *commonOptions, o pullOptions, ref string) error {
	keys, _, err := readKeys(o.keys)
	if err != nil {
		return fmt.Errorf("%w: %w", image.ErrOptions, err)
	}
	if o.out == "" {
		name, _, _ := strings.Cut(filepath.Base(ref), "@")
		name, _, _ = strings.Cut(name, ":")
		o.out = filepath.Join("images", name)
	}
	l, err := oci.Create(o.out)
	if err != nil {
		return err
	}
	return transfer(cmd, common, "pull", o.plain, func(ro registry.Options) (string, error) {
		digest, err := registry.Pull(cmd.Context(), l, ref, ro)
		if err != nil || len(keys) == 0 {
			return digest, err
		}
		if _, err = l.Signature(digest, keys); err != nil {
			err = errors.Join(err, l.Forget(digest))
		}
		return digest, err
	})
}

// transfer shows the progress of run and prints the digest it returns.
func transfer(cmd *cobra.Command, common *commonOptions, name string, plain bool, run func(registry.Options) (string, error)) error {
	p, err := common.reporter(cmd)
	if err != nil {
		return err
	}
	defer p.Close()
	task := p.Start(name, progress.Bytes)
	digest, err := run(registry.Options{PlainHTTP: plain, Progress: task.Update})
	if err != nil {
		task.End("failed")
		if errors.Is(err, registry.ErrReference) {
			return fmt.Errorf("%w: %w", image.ErrOptions, err)
		}
		return err
	}
	task.End("")
	fmt.Fprintln(cmd.OutOrStdout(), digest)
	return nil
}
