package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/config"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/store/sqlite"
)

func newBackupCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "backup FILE", Short: "Copy what a server must not lose into one file",
		Long: `Writes a tar file with the fleet state, the CA with its key, the tokens' hashes
and the configuration, on the machine of the server and while it runs. The
state in it is of one moment. Images are not in it: they can be published again.

The file holds the CA's private key: whoever has it can speak to nodes as this
server. It is made readable for its owner only; keep it so.
` + exitCodes,
		Example: "  pxeserver backup /srv/backup/turnout-$(date +%F).tar",
		Args:    cli.OneArg("the file to write"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.load()
			if err != nil {
				return err
			}
			if _, err := os.Stat(args[0]); err == nil {
				return refusedf("%s is there already; backups are not overwritten", args[0])
			}
			if err := backup(cmd.Context(), g, c, args[0]); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "wrote "+args[0])
			return nil
		},
	}
}

// The names in a backup.
const (
	backupState  = "fleet.db"
	backupCA     = "ca.pem"
	backupKey    = "ca.key"
	backupTokens = "tokens"
	backupConfig = "pxeserver.yaml"
)

// inDatabase says what to do where the fleet state is in a database.
func inDatabase(c *config.Config, instead string) error {
	if c.Store == "" {
		return nil
	}
	return refusedf("the fleet state is in %s: %s; keep copies of %s, %s and %s too, they are the same on all servers", c.Store, instead, c.CAFile(), c.CAKeyFile(), c.BMCKeyFile())
}

func backup(ctx context.Context, g *globals, c *config.Config, to string) error {
	if err := inDatabase(c, "back it up with pg_dump"); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(to), ".backup-")
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	defer os.RemoveAll(dir)
	state := filepath.Join(dir, backupState)
	if err := sqlite.Backup(ctx, c.StateFile(), state); err != nil {
		return err
	}
	out, err := renameio.NewPendingFile(to, renameio.WithPermissions(0o600))
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	defer out.Cleanup() //nolint:errcheck // no-op once it is in place
	w := tar.NewWriter(out)
	for _, f := range []struct{ name, path string }{
		{backupState, state}, {backupCA, c.CAFile()}, {backupKey, c.CAKeyFile()}, {backupTokens, c.Tokens}, {backupConfig, g.configFile()},
	} {
		if err := addFile(w, f.name, f.path); err != nil {
			return fmt.Errorf("backup: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	if err := out.CloseAtomicallyReplace(); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	return nil
}

func addFile(w *tar.Writer, name, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: st.Size(), ModTime: st.ModTime(), Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}

func newRestoreCommand(g *globals) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "restore FILE", Short: "Put a backup in place",
		Long: `Puts the fleet state, the CA and the tokens of a backup where the configuration
says they belong. The server must not run. State that is there is replaced with
--force only, and kept beside it as fleet.db.before-restore. The configuration
itself is not touched; where it is lost too, take it from the backup first:
tar -xf FILE pxeserver.yaml.

The fleet is then as of the backup. Nodes report what they run, so wishes get
numbers above all that a node has seen; nodes and rollouts that are newer than
the backup are gone, and nodes enrol again by themselves where needed.
` + exitCodes,
		Args: cli.OneArg("a backup"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.load()
			if err != nil {
				return err
			}
			if err := restore(cmd.Context(), c, args[0], force); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "restored; start the server, and publish the images again if they are lost: pxeserver image publish DIR")
			return nil
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace the state that is there")
	return cmd
}

func restore(ctx context.Context, c *config.Config, from string, force bool) error {
	if err := inDatabase(c, "restore it with pg_restore while no server runs"); err != nil {
		return err
	}
	unlock, err := lockDir(c.DataDir)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(c.StateFile()); err == nil && !force {
		return refusedf("there is fleet state in %s already; --force replaces it", c.DataDir)
	}
	dir, err := os.MkdirTemp(c.DataDir, ".restore-")
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := unpack(from, dir); err != nil {
		return fmt.Errorf("backup %s: %w", from, err)
	}
	if err := sqlite.Check(ctx, filepath.Join(dir, backupState)); err != nil {
		return fmt.Errorf("backup %s: %w", from, err)
	}
	if err := setAside(c.StateFile()); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	for _, f := range []struct {
		name, path string
		mode       os.FileMode
	}{{backupKey, c.CAKeyFile(), 0o600}, {backupCA, c.CAFile(), 0o644}, {backupTokens, c.Tokens, 0o600}} {
		b, err := os.ReadFile(filepath.Join(dir, f.name))
		if err == nil {
			err = renameio.WriteFile(f.path, b, f.mode)
		}
		if err != nil {
			return fmt.Errorf("restore: %w", err)
		}
	}
	if err := os.Rename(filepath.Join(dir, backupState), c.StateFile()); err != nil { // last: until then nothing is half restored that starts
		return fmt.Errorf("restore: %w", err)
	}
	if err := noteRestored(ctx, c.StateFile(), from); err != nil {
		return err
	}
	return keepOwner(c)
}

// unpack takes the files that a backup has, and nothing else, out of it.
func unpack(from, dir string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	missing := map[string]bool{backupState: true, backupCA: true, backupKey: true, backupTokens: true}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if !missing[h.Name] || h.Typeflag != tar.TypeReg {
			continue
		}
		delete(missing, h.Name)
		out, err := os.OpenFile(filepath.Join(dir, h.Name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, r)
		if err = errors.Join(err, out.Sync(), out.Close()); err != nil {
			return err
		}
	}
	for name := range missing {
		return fmt.Errorf("%s is missing in it: it is not one of `pxeserver backup`, or is cut off", name)
	}
	return nil
}

// setAside keeps the state that is there, with its log, under other names.
func setAside(state string) error {
	for _, s := range []string{"-shm", "-wal", ""} {
		to := state + ".before-restore" + s
		if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Rename(state+s, to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func noteRestored(ctx context.Context, state, from string) error {
	st, err := sqlite.Open(ctx, state)
	if err != nil {
		return err
	}
	err = st.Update(ctx, func(tx store.Tx) error {
		return tx.AppendEvent(ctx, &fleet.Event{At: time.Now(), Actor: "server", Kind: "server.restored", Message: "fleet state of the backup " + filepath.Base(from)})
	})
	return errors.Join(err, st.Close())
}
