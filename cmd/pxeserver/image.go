package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/progress"
	"github.com/turnout-project/turnout/internal/rollout"
)

func newImageCommand(g *globals) *cobra.Command {
	return group("image", "Publish images, list and remove them", newImagePublishCommand(g), newImageListCommand(g), newImageCollectCommand(g))
}

func newImageListCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List published images",
		Long: "Lists published images, newest first.\n" + exitCodes,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			images, err := c.Images(cmd.Context())
			if err != nil {
				return err
			}
			return g.print(cmd, images, func(t *tabwriter.Writer) {
				row(t, "IMAGE", "VERSION", "DIGEST", "KERNEL", "SIZE", "PUBLISHED")
				for _, i := range images {
					row(t, i.Name, i.Version, rollout.Short(i.Digest), i.Kernel, progress.Size(i.SizeBytes), ago(i.Published))
				}
			})
		},
	}
}

func newImagePublishCommand(g *globals) *cobra.Command {
	var ref string
	cmd := &cobra.Command{
		Use: "publish DIR", Short: "Send an image to the server",
		Long:    "Sends an image, as `imgbuild build` left it in a folder, to the server. The server checks\nevery digest, and the signature by one of its image_keys. Blobs it has are not sent again;\nan interrupted publication is continued by running it once more.\n" + exitCodes,
		Example: "  pxeserver image publish images/rack-base",
		Args:    oneArg("the folder of an image"),
		RunE:    func(cmd *cobra.Command, args []string) error { return runPublish(cmd, g, args[0], ref) },
	}
	cmd.Flags().StringVar(&ref, "digest", "", "which image, if the folder holds several: its digest or the first digits of it")
	return cmd
}

func runPublish(cmd *cobra.Command, g *globals, dir, ref string) error {
	l, err := oci.Open(dir)
	if err != nil {
		return err
	}
	digest, err := l.Resolve(ref)
	if err != nil {
		return err
	}
	img, err := l.Image(digest)
	if err != nil {
		return err
	}
	sigs, err := l.Signatures(digest)
	if err != nil {
		return fmt.Errorf("%w; build it with --key, or sign it", err)
	}
	c, err := g.client()
	if err != nil {
		return err
	}
	if err := putBlobs(cmd, c, l, img); err != nil {
		return err
	}
	var refusals []error
	for _, sig := range sigs { // of several keys one may be the server's
		i, err := c.Publish(cmd.Context(), api.PublishRequest{Manifest: img.Raw, Signature: sig})
		if err == nil {
			return g.done(cmd, i, nil, "published %s\n%s", img.Manifest.Label(), i.Digest)
		}
		refusals = append(refusals, err)
	}
	return errors.Join(refusals...)
}

func putBlobs(cmd *cobra.Command, c *api.Client, l *oci.Layout, img *oci.Image) error {
	show := progress.New(cmd.ErrOrStderr(), progress.Auto)
	defer show.Close()
	for _, d := range append([]oci.Descriptor{img.OCI.Config}, img.OCI.Layers...) {
		have, err := c.HasBlob(cmd.Context(), d.Digest)
		if err != nil {
			return err
		}
		if have {
			continue
		}
		name := d.Annotations[oci.AnnotationTitle]
		t := show.Start("sending "+or(name, rollout.Short(d.Digest)), progress.Bytes)
		if err := putBlob(cmd.Context(), c, l, d, t); err != nil {
			return fmt.Errorf("sending %s: %w", or(name, d.Digest), err)
		}
		t.End("")
	}
	return nil
}

func putBlob(ctx context.Context, c *api.Client, l *oci.Layout, d oci.Descriptor, t *progress.Task) error {
	f, err := l.Blob(d.Digest)
	if err != nil {
		return err
	}
	defer f.Close()
	return c.PutBlob(ctx, d.Digest, &counted{f: f, t: t, total: d.Size})
}

// counted shows how much of a file was read.
type counted struct {
	f           *os.File
	t           *progress.Task
	done, total int64
}

var _ io.Reader = (*counted)(nil)

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.f.Read(p)
	c.done += int64(n)
	c.t.Update(c.done, c.total)
	return n, err
}
