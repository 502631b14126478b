package main

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/apt"
	"github.com/turnout-project/turnout/internal/cas"
	"github.com/turnout-project/turnout/internal/image"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci/registry"
	"github.com/turnout-project/turnout/internal/progress"
	"github.com/turnout-project/turnout/internal/recipe"
)

// commonOptions are the flags of every command.
type commonOptions struct{ progress string }

func (o *commonOptions) addFlags(cmd *cobra.Command) {
	cmd.PersistentFlags().StringVar(&o.progress, "progress", "auto",
		"how to show progress: live, plain, json, none, or auto (live on a terminal, else plain)")
}

// reporter returns the reporter that was asked for, on standard error; nil for
// none.
func (o *commonOptions) reporter(cmd *cobra.Command) (*progress.Reporter, error) {
	w := cmd.ErrOrStderr()
	switch o.progress {
	case "auto":
		return progress.New(w, progress.Auto), nil
	case "live":
		return progress.New(w, progress.Live), nil
	case "plain":
		return progress.New(w, progress.Plain), nil
	case "json":
		return progress.New(w, progress.JSON), nil
	case "none":
		return nil, nil
	}
	return nil, cli.Usagef(cmd, "--progress %q: want auto, live, plain, json or none", o.progress)
}

// defaultStore is where downloaded packages and built parts are kept.
func defaultStore() string {
	if d := os.Getenv("XDG_CACHE_HOME"); d != "" {
		return filepath.Join(d, "turnout")
	}
	return "/var/cache/turnout"
}

func addStoreFlag(cmd *cobra.Command, store *string) {
	cmd.Flags().StringVar(store, "store", defaultStore(), "folder of downloaded packages and built parts")
}

// defaultLock is the lock file of a recipe: beside it, with another suffix.
func defaultLock(recipe string) string {
	return strings.TrimSuffix(recipe, filepath.Ext(recipe)) + ".lock.json"
}

// readKeys reads every file as PEM public keys and returns them with their
// text.
func readKeys(files []string) ([]ed25519.PublicKey, string, error) {
	var keys []ed25519.PublicKey
	var text strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, "", fmt.Errorf("image public key: %w; make one with `imgbuild keygen`", err)
		}
		ks, err := manifest.ParsePublicKeys(b)
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", f, err)
		}
		keys = append(keys, ks...)
		text.Write(b)
	}
	return keys, text.String(), nil
}

// publicKey returns the public half of a key.
func publicKey(k ed25519.PrivateKey) ed25519.PublicKey {
	return ed25519.PublicKey(k[ed25519.PublicKeySize:])
}

// splitImage splits FOLDER@DIGEST; the digest may be missing, and be written
// with or without "sha256:".
func splitImage(arg string) (dir, ref string) {
	if at := strings.LastIndex(arg, "@"); at > 0 && !strings.Contains(arg[at:], "/") {
		return arg[:at], arg[at+1:]
	}
	return arg, ""
}

// mirrorOptions are the flags that say where packages are that the archive
// has dropped.
type mirrorOptions struct {
	mirrors   []string
	plainHTTP bool
}

func (o *mirrorOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&o.mirrors, "mirror", nil, "store of another build host (address or folder) or what vendor sent to a registry (oci://HOST/NAME:TAG), to ask for packages the archive has dropped; may be given again")
	f.BoolVar(&o.plainHTTP, "plain-http", false, "speak HTTP without TLS to registries")
}

// inRegistry is how a registry is named where a folder may be.
const inRegistry = "oci://"

// set makes store ask the mirrors that the command line names.
func (o *mirrorOptions) set(store *cas.Store) error {
	var folders []string
	for _, m := range o.mirrors {
		ref, ok := strings.CutPrefix(m, inRegistry)
		if !ok {
			folders = append(folders, m)
			continue
		}
		b, err := registry.OpenBlobs(ref, registry.Options{PlainHTTP: o.plainHTTP})
		if err != nil {
			return fmt.Errorf("%w: --mirror %s: %w", image.ErrOptions, m, err)
		}
		store.Sources = append(store.Sources, b)
	}
	var err error
	store.Mirrors, err = absoluteMirrors(folders)
	return err
}

// readLock reads a lock, from a registry too; one that cannot be used is the
// person's to renew.
func (o *mirrorOptions) readLock(ctx context.Context, name, recipePath string) (*lock.File, error) {
	ref, ok := strings.CutPrefix(name, inRegistry)
	if !ok {
		return readLock(name, recipePath)
	}
	raw, err := registry.ReadLock(ctx, ref, registry.Options{PlainHTTP: o.plainHTTP})
	if errors.Is(err, registry.ErrReference) {
		err = fmt.Errorf("%w: %w", image.ErrOptions, err)
	}
	if err != nil {
		return nil, err
	}
	f, err := lock.Decode(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: lock %s: %w", image.ErrOptions, name, err)
	}
	return f, nil
}

// explainGone adds to the error of a package that is gone from every source
// what there is in its place, and what to do. Other errors stay as they are.
func explainGone(ctx context.Context, r *recipe.Recipe, store *cas.Store, err error) error {
	var gone *cas.GoneError
	if !errors.As(err, &gone) {
		return err
	}
	name, _, _ := strings.Cut(gone.Item.Name, " ")
	const kept = "name a store that kept it with --mirror"
	if store.Offline { // what the archives have cannot be asked
		return fmt.Errorf("%w; the archives were not asked (--offline): %s", err, kept)
	}
	versions, verr := apt.Versions(ctx, r, name, apt.Options{CacheDir: filepath.Join(store.Dir(), "apt")})
	switch {
	case verr != nil:
		return fmt.Errorf("%w; which versions the archives have cannot be told: %w; %s", err, verr, kept)
	case len(versions) == 0:
		return fmt.Errorf("%w; the archives have no package %s any more: %s, or make the lock anew with `imgbuild lock %s --update`", err, name, kept, r.Path)
	}
	return fmt.Errorf("%w; the archives have %s %s: `imgbuild lock %s --update %s` moves it alone, or %s", err, name, strings.Join(versions, ", "), r.Path, name, kept)
}

// writeJSON writes v for a script.
func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// absoluteMirrors makes the mirrors that are folders absolute.
func absoluteMirrors(mirrors []string) ([]string, error) {
	var all []string
	for _, m := range mirrors {
		if !strings.Contains(m, "://") {
			abs, err := filepath.Abs(m)
			if err != nil {
				return nil, err
			}
			m = abs
		}
		all = append(all, m)
	}
	return all, nil
}
