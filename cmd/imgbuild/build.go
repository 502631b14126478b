package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/cas"
	"github.com/turnout-project/turnout/internal/image"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/progress"
	"github.com/turnout-project/turnout/internal/recipe"
	"github.com/turnout-project/turnout/internal/secureboot"
)

type buildOptions struct {
	lock      string
	key       string
	imageKeys []string
	serverCA  string
	server    string
	out       string
	store     string
	mirrors   mirrorOptions
	offline   bool
	nodeagent string
	noCache   bool
	bootKey   string
	bootCert  string
	data      []string
}

func newBuildCommand(common *commonOptions) *cobra.Command {
	var o buildOptions
	cmd := &cobra.Command{
		Use:   "build RECIPE",
		Short: "Build a signed image from a recipe and its lock",
		Long: `Builds an image and writes it as an OCI layout: root file system and verity
tree, a UKI that boots a slot, a UKI that installs, systemd-boot, the expected
TPM measurements, an SBOM, and a signature.

The same recipe, lock, node agent and keys give the same bytes, in any folder, on
any machine with the same mksquashfs. Packages and finished parts are kept in the
store: a build that would repeat one takes its result and says so. An interrupted
build leaves what was at --out as it was.

Nodes of the image believe the public keys of --image-key (by default that of
--key) and servers certified by --server-ca. Build as root.
` + exitCodes,
		Example: `  imgbuild build recipes/rack-base.yaml --key keys/image.key --server-ca /etc/turnout/ca.pem --out images/rack-base`,
		Args:    cli.OneArg("a recipe"),
		RunE:    func(cmd *cobra.Command, args []string) error { return runBuild(cmd, common, o, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.lock, "lock", "", "lock file, or oci://HOST/NAME:TAG that vendor made (default: the recipe's path with .lock.json)")
	f.StringVar(&o.key, "key", "keys/image.key", "private key that signs the image")
	f.StringArrayVar(&o.imageKeys, "image-key", nil, "public key that nodes accept images by; may be given again (default: that of --key)")
	f.StringVar(&o.serverCA, "server-ca", "", "certificate authority of the server, written by `pxeserver init`")
	f.StringVar(&o.server, "server", "", "https address of the server (default: nodes learn it by DHCP)")
	f.StringVar(&o.out, "out", "", "folder to write the image to (default: images/<recipe's name>)")
	f.BoolVar(&o.offline, "offline", false, "ask no archive: fail if a package is neither in the store, nor in a --mirror that is a folder or an oci:// registry")
	f.StringVar(&o.nodeagent, "nodeagent", "", "nodeagent program to put into the image (default: beside imgbuild; nodeagent-arm64 there for an arm64 image)")
	f.StringVar(&o.bootKey, "secureboot-key", "", "key that signs loader and UKIs for Secure Boot: db.key of `imgbuild sbkeys`")
	f.StringVar(&o.bootCert, "secureboot-cert", "", "certificate of --secureboot-key (default: beside it, .crt for .key)")
	f.BoolVar(&o.noCache, "no-cache", false, "build every part anew")
	o.mirrors.addFlags(cmd)
	addStoreFlag(cmd, &o.store)
	addDataFlag(cmd, &o.data)
	return cmd
}

func runBuild(cmd *cobra.Command, common *commonOptions, o buildOptions, path string) error {
	start := time.Now()
	b, err := prepareBuild(cmd.Context(), o, path)
	if err != nil {
		return err
	}
	if b.Progress, err = common.reporter(cmd); err != nil {
		return err
	}
	defer b.Progress.Close()
	if err := checkBuild(o.data, b.Recipe, b.Lock, b.Progress.Note); err != nil {
		return err
	}
	res, err := image.Build(cmd.Context(), b)
	if err != nil {
		return explainGone(cmd.Context(), b.Recipe, b.Store, err)
	}
	if res.Cached != "" {
		b.Progress.Note("nothing to build: %s", res.Cached)
	}
	m := res.Manifest
	b.Progress.Note("%s: root %s, UKI %s, installer %s, kernel %s, in %s", m.Label(), progress.Size(m.Root.SizeBytes),
		progress.Size(m.UKI.SizeBytes), progress.Size(m.Installer.SizeBytes), m.Kernel.Release, progress.Elapsed(time.Since(start)))
	fmt.Fprintln(cmd.OutOrStdout(), res.Digest)
	return nil
}

// prepareBuild reads everything the command line names.
func prepareBuild(ctx context.Context, o buildOptions, path string) (image.Options, error) {
	var b image.Options
	var err error
	if b.Recipe, err = recipe.Load(path); err != nil {
		return b, err
	}
	if o.lock == "" {
		o.lock = defaultLock(path)
	}
	if b.Lock, err = o.mirrors.readLock(ctx, o.lock, path); err != nil {
		return b, err
	}
	key, err := os.ReadFile(o.key)
	if err != nil {
		return b, fmt.Errorf("%w: image key: %w; make one with `imgbuild keygen`", image.ErrOptions, err)
	}
	if b.Key, err = manifest.ParsePrivateKey(key); err != nil {
		return b, fmt.Errorf("%w: %s: %w", image.ErrOptions, o.key, err)
	}
	if b.Trust, err = o.trust(b); err != nil {
		return b, err
	}
	if b.Agent, err = o.agent(b.Recipe.Architecture); err != nil {
		return b, err
	}
	if b.Out = o.out; b.Out == "" {
		b.Out = filepath.Join("images", b.Recipe.Name)
	}
	if b.Store, err = cas.Open(o.store); err != nil {
		return b, err
	}
	if err = o.mirrors.set(b.Store); err != nil {
		return b, err
	}
	b.Store.Offline = o.offline
	b.NoCache = o.noCache
	b.Boot, err = o.bootSigner()
	return b, err
}

// bootSigner reads the key of Secure Boot, nil if none is named.
func (o *buildOptions) bootSigner() (*secureboot.Signer, error) {
	if o.bootKey == "" {
		if o.bootCert != "" {
			return nil, fmt.Errorf("%w: --secureboot-cert needs --secureboot-key", image.ErrOptions)
		}
		return nil, nil
	}
	cert := o.bootCert
	if cert == "" {
		cert = strings.TrimSuffix(o.bootKey, ".key") + ".crt"
	}
	k, err := os.ReadFile(o.bootKey)
	if err != nil {
		return nil, fmt.Errorf("%w: Secure Boot key: %w; make one with `imgbuild sbkeys`", image.ErrOptions, err)
	}
	c, err := os.ReadFile(cert)
	if err != nil {
		return nil, fmt.Errorf("%w: Secure Boot certificate: %w", image.ErrOptions, err)
	}
	s, err := secureboot.ParseSigner(k, c)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", image.ErrOptions, o.bootKey, err)
	}
	return s, nil
}

// trust is whom the image's nodes believe.
func (o *buildOptions) trust(b image.Options) (manifest.Trust, error) {
	t := manifest.Trust{Server: o.server}
	if len(o.imageKeys) > 0 {
		var err error
		if _, t.ImageKeys, err = readKeys(o.imageKeys); err != nil {
			return t, fmt.Errorf("%w: %w", image.ErrOptions, err)
		}
	} else {
		pub, err := manifest.MarshalPublicKey(publicKey(b.Key))
		if err != nil {
			return t, err
		}
		t.ImageKeys = string(pub)
	}
	if o.serverCA == "" {
		return t, nil
	}
	ca, err := os.ReadFile(o.serverCA)
	if err != nil {
		return t, fmt.Errorf("%w: server's certificate authority: %w; `pxeserver init` writes it", image.ErrOptions, err)
	}
	t.ServerCA = string(ca)
	return t, nil
}

// agent is the nodeagent program: what was named, or the one beside imgbuild,
// which for another processor than the build host's is called nodeagent-arm64.
func (o *buildOptions) agent(architecture string) (string, error) {
	if o.nodeagent != "" {
		return o.nodeagent, nil
	}
	exe, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("%w: name the node agent with --nodeagent: %w", image.ErrOptions, err)
	}
	beside := filepath.Join(filepath.Dir(exe), "nodeagent")
	if architecture == runtime.GOARCH {
		return beside, nil
	}
	other := beside + "-" + architecture
	if _, err := os.Stat(other); err != nil {
		return "", fmt.Errorf("%w: there is no node agent for %s beside imgbuild (%s); make one with `make build-arm64`, or name it with --nodeagent", image.ErrOptions, architecture, other)
	}
	return other, nil
}

// readLock reads a lock; one that cannot be used is the person's to renew.
func readLock(name, recipePath string) (*lock.File, error) {
	f, err := lock.Read(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w (for recipe %s)", image.ErrOptions, err, recipePath)
	}
	return f, nil
}
