package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/secureboot"
)

func newSBKeysCommand() *cobra.Command {
	var out, owner, vars string
	cmd := &cobra.Command{
		Use:   "sbkeys",
		Short: "Make the keys of Secure Boot",
		Long: `Makes the platform key (PK), the key exchange key (KEK) and the key that signs boot
programs (db): for each a private key, a certificate, and NAME.auth, which firmware
in setup mode takes. Build with --secureboot-key OUT/db.key; keep PK.key and KEK.key
away from build hosts. Keys that exist are never overwritten.

A machine becomes yours when its firmware is put into setup mode and given db.auth,
KEK.auth and PK.auth, in this order: in the setup menu, or by systemd-boot from the
folder \loader\keys\auto of the ESP. A virtual machine becomes yours with
OVMF_VARS.fd, written if --ovmf-vars names a file without keys.
` + exitCodes,
		Example: "  imgbuild sbkeys --out keys/secureboot --owner \"Example Corp\" --ovmf-vars /usr/share/OVMF/OVMF_VARS_4M.fd",
		Args:    cli.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runSBKeys(cmd, out, owner, vars) },
	}
	f := cmd.Flags()
	f.StringVar(&out, "out", "keys/secureboot", "folder to write to")
	f.StringVar(&owner, "owner", "Turnout", "whose keys the certificates say they are")
	f.StringVar(&vars, "ovmf-vars", "", "variable file of OVMF without keys, to enrol into")
	return cmd
}

func runSBKeys(cmd *cobra.Command, out, owner, vars string) error {
	keys, err := secureboot.Generate(owner)
	if err != nil {
		return err
	}
	files, err := keyFiles(keys)
	if err != nil {
		return err
	}
	if vars != "" {
		b, err := os.ReadFile(vars)
		if err != nil {
			return fmt.Errorf("OVMF variables: %w", err)
		}
		if b, err = keys.EnrolOVMF(b); err != nil {
			return fmt.Errorf("%s: %w", vars, err)
		}
		files = append(files, keyFile{"OVMF_VARS.fd", b, 0o644})
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return fmt.Errorf("keys of Secure Boot: %w", err)
	}
	for _, f := range files { // all or nothing: a mixed set of keys locks machines out
		if _, err := os.Stat(filepath.Join(out, f.name)); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s exists and is kept: machines may trust it; choose another --out", filepath.Join(out, f.name))
		}
	}
	for _, f := range files {
		name := filepath.Join(out, f.name)
		if err := writeNew(name, f.data, f.mode); err != nil {
			return err
		}
		fmt.Fprintln(cmd.OutOrStdout(), name)
	}
	return nil
}

type keyFile struct {
	name string
	data []byte
	mode fs.FileMode
}

func keyFiles(keys *secureboot.Keys) ([]keyFile, error) {
	var files []keyFile
	for _, x := range []struct {
		name string
		s    *secureboot.Signer
	}{{"PK", keys.PK}, {"KEK", keys.KEK}, {"db", keys.DB}} {
		key, cert, err := x.s.PEM()
		if err != nil {
			return nil, err
		}
		files = append(files, keyFile{x.name + ".key", key, 0o600}, keyFile{x.name + ".crt", cert, 0o644})
	}
	list, err := keys.Variables()
	if err != nil {
		return nil, err
	}
	for _, v := range list {
		files = append(files, keyFile{v.Name + ".auth", v.Auth, 0o644})
	}
	return files, nil
}
