package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/oci/registry"
	"github.com/turnout-project/turnout/internal/progress"
	"github.com/turnout-project/turnout/internal/rollout"
)

func newImageCommand(g *globals) *cobra.Command {
	return group("image", "Publish images, list and remove them", newImagePublishCommand(g), newImageListCommand(g), newImageCollectCommand(g),
		newImageRevokeCommand(g), newImageRestoreCommand(g))
}

func newImageListCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List published images",
		Long: "Lists published images, newest first.\n" + exitCodes,
		Args: cli.NoArgs,
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
				row(t, "IMAGE", "VERSION", "DIGEST", "KERNEL", "SIZE", "PUBLISHED", "STATE")
				for _, i := range images {
					state := "usable"
					if i.Revoked != nil {
						state = "revoked by " + i.Revoked.By
					}
					row(t, i.Name, i.Version, rollout.Short(i.Digest), i.Kernel, progress.Size(i.SizeBytes), ago(i.Published), state)
				}
			})
		},
	}
}

func newImagePublishCommand(g *globals) *cobra.Command {
	var o publishOptions
	cmd := &cobra.Command{
		Use: "publish DIR|HOST/NAME@DIGEST", Short: "Send an image to the server",
		Long: `Sends an image to the server: from a folder, as ` + "`imgbuild build`" + ` left it, or from an OCI
registry, by digest, with the credentials that "docker login" or "oras login" has stored. The
server checks every digest, and the signature by one of its image_keys. Blobs it has are not
sent again; an interrupted publication is continued by running it once more.
` + exitCodes,
		Example: "  pxeserver image publish images/rack-base\n  pxeserver image publish registry.example/turnout/rack-base@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
		Args:    cli.OneArg("the folder of an image, or its name in a registry"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.isReference(args[0]) {
				return publishFromRegistry(cmd, g, args[0], o)
			}
			return runPublish(cmd, g, args[0], o.digest)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.digest, "digest", "", "which image, if the folder holds several: its digest or the first digits of it")
	f.BoolVar(&o.plain, "plain-http", false, "speak HTTP without TLS with the registry")
	f.StringVar(&o.keep, "keep", "", "folder for what comes from the registry, kept for the next time; a temporary one if empty")
	return cmd
}

// publishOptions are the flags of image publish.
type publishOptions struct {
	digest, keep string
	plain        bool
}

// isReference tells an image in a registry from a folder.
func (publishOptions) isReference(arg string) bool {
	_, err := os.Stat(arg)
	host, _, ok := strings.Cut(arg, "/")
	return err != nil && ok && strings.ContainsAny(host, ".:") && !strings.HasPrefix(host, ".")
}

// publishFromRegistry brings an image from a registry and publishes it. It is
// named by its digest: a tag may be another image tomorrow.
func publishFromRegistry(cmd *cobra.Command, g *globals, ref string, o publishOptions) error {
	_, digest, _ := strings.Cut(ref, "@")
	if manifest.CheckDigest(digest) != nil {
		return cli.Usagef(cmd, "%s: name the image by digest, HOST/NAME@sha256:…; a tag may be another image tomorrow", ref)
	}
	dir := o.keep
	if dir == "" {
		tmp, err := os.MkdirTemp("", "turnout-publish-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(tmp)
		dir = tmp
	}
	l, err := oci.Create(dir)
	if err != nil {
		return err
	}
	if err := pull(cmd, l, ref, o.plain); err != nil {
		return err
	}
	return runPublish(cmd, g, dir, digest)
}

func pull(cmd *cobra.Command, l *oci.Layout, ref string, plain bool) error {
	show := progress.New(cmd.ErrOrStderr(), progress.Auto)
	defer show.Close()
	t := show.Start("bringing "+ref, progress.Bytes)
	if _, err := registry.Pull(cmd.Context(), l, ref, registry.Options{PlainHTTP: plain, Progress: t.Update}); err != nil {
		t.End("failed")
		return err
	}
	t.End("")
	return nil
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
