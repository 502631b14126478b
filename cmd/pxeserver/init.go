package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/config"
	"github.com/turnout-project/turnout/internal/server"
)

type initOptions struct {
	dir       string
	c         config.Config
	imageKeys []string
	ekRoots   []string
	dataDir   string
	ask       bool
	unit      string
}

func newInitCommand() *cobra.Command {
	o := &initOptions{c: config.Default()}
	cmd := &cobra.Command{
		Use: "init", Short: "Make a server: configuration, CA and operator's token",
		Long: `Writes into a folder what a server needs:

  pxeserver.yaml   configuration, every key explained
  ca.pem           the server's CA; build images with it: imgbuild build --server-ca ca.pem
  data/ca.key      its private key
  operator.token   a token with role admin, for the commands here
  tokens           who may operate: name, role, hash of the token

A folder that has a pxeserver.yaml is left alone. A CA or token that is there
already is kept. Without --address, on a terminal, it asks.

Under /etc the data folder is /var/lib/turnout. Where the user turnout exists
(the Debian package makes it), it gets the data folder, for the server of the
unit pxeserver.service.
` + exitCodes,
		Example: "  pxeserver init --dir /etc/turnout --address 10.77.0.1 --subnet 10.77.0.0/24 --interface rack0 --image-key keys/image.pub",
		Args:    cli.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runInit(cmd, o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.dir, "dir", ".", "folder to write to")
	f.StringVar(&o.dataDir, "data-dir", "", "folder for fleet state, images and the CA's key (default: data in --dir; /var/lib/turnout where --dir is under /etc)")
	f.StringVar(&o.unit, "unit", "", "write a systemd unit for this program, such as /etc/systemd/system/pxeserver.service, and make its user; not needed with the Debian package")
	f.BoolVar(&o.ask, "ask", false, "ask for what flags do not say")
	f.StringVar(&o.c.Address, "address", "", "IPv4 address under which nodes reach this server (needed)")
	f.StringVar(&o.c.Interface, "interface", "", "network interface for DHCP; none: all with an address in the subnet")
	f.StringVar(&o.c.DHCP.Mode, "dhcp", "server", "server, proxy (beside another DHCP server) or off")
	f.StringVar(&o.c.DHCP.Subnet, "subnet", "", "IPv4 network to lease from, such as 10.77.0.0/24 (for --dhcp server)")
	f.StringVar(&o.c.DHCP.Range, "range", "", "addresses to lease, FIRST-LAST; none: the upper half of the subnet")
	f.StringVar(&o.c.Listen.API, "listen", o.c.Listen.API, "address and port of the API")
	f.StringArrayVar(&o.c.Names, "name", nil, "one more name or address of this server (repeat)")
	f.StringArrayVar(&o.imageKeys, "image-key", nil, "public key that may sign images, PEM (repeat)")
	f.StringArrayVar(&o.ekRoots, "ek-root", nil, "CA certificates of a TPM maker, PEM (repeat); none: TPMs are pinned when approved")
	f.DurationVar(&o.c.Heartbeat, "heartbeat", o.c.Heartbeat, "how often nodes report")
	f.StringVar(&o.c.Discovery.Pool, "pool", o.c.Discovery.Pool, "pool in which new machines wait for approval")
	return cmd
}

func runInit(cmd *cobra.Command, o *initOptions) error {
	file := filepath.Join(o.dir, "pxeserver.yaml")
	if _, err := os.Stat(file); err == nil {
		return refusedf("%s exists; nothing was changed\n  edit it, or choose another --dir", file)
	}
	if wantsQuestions(cmd, o) {
		if err := askInit(cmd, o); err != nil {
			return err
		}
	}
	if _, err := netip.ParseAddr(o.c.Address); err != nil {
		return cli.Usagef(cmd, "--address %q: want the IPv4 address under which nodes reach this server", o.c.Address)
	}
	var err error
	if o.c.ImageKeys, err = absolute(o.imageKeys); err != nil {
		return err
	}
	if o.c.EKRoots, err = absolute(o.ekRoots); err != nil {
		return err
	}
	if o.c.DataDir, err = dataDir(o); err != nil {
		return err
	}
	text, err := config.Write(&o.c)
	if err != nil {
		return err
	}
	c, err := config.Parse(file, text) // before anything is written
	if err != nil {
		return cli.Usagef(cmd, "%v", err)
	}
	if err := errors.Join(os.MkdirAll(c.DataDir, 0o700), os.MkdirAll(o.dir, 0o755)); err != nil {
		return err
	}
	if err := errors.Join(makeCA(c), makeToken(c)); err != nil {
		return err
	}
	if err := create(file, text, 0o644); err != nil {
		return err
	}
	if o.unit != "" {
		if err := writeUnit(o.unit, file, c); err != nil {
			return err
		}
	}
	given, err := giveToService(c)
	if err != nil {
		return err
	}
	start := "pxeserver serve --config " + file
	if o.unit != "" {
		start = "systemctl daemon-reload && systemctl enable --now " + filepath.Base(o.unit)
	} else if given && file == "/etc/turnout/pxeserver.yaml" {
		start = "systemctl enable --now pxeserver"
	}
	fmt.Fprintf(cmd.OutOrStdout(), "wrote %s\nbuild images with:  imgbuild build … --server-ca %s\nstart the server:   %s\n", file, c.CAFile(), start)
	return nil
}

// dataDir is where the state goes: what was said, else "data" beside the
// configuration, but for one in /etc, where state has no place.
func dataDir(o *initOptions) (string, error) {
	if o.dataDir != "" {
		return filepath.Abs(o.dataDir)
	}
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return "", err
	}
	if strings.HasPrefix(dir, "/etc/") {
		return "/var/lib/turnout", nil
	}
	return o.c.DataDir, nil
}

func absolute(files []string) ([]string, error) {
	out := make([]string, len(files))
	for i, f := range files {
		a, err := filepath.Abs(f)
		if err != nil {
			return nil, err
		}
		out[i] = a
	}
	return out, nil
}

// makeCA makes the CA unless it is there.
func makeCA(c *config.Config) error {
	if _, err := loadCA(c); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, cert, key, err := server.NewCA(time.Now())
	if err != nil {
		return err
	}
	if err := os.Remove(c.CAKeyFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // half a CA of an interrupted run is of no use to anybody
	}
	return errors.Join(create(c.CAKeyFile(), key, 0o600), create(c.CAFile(), cert, 0o644))
}

func loadCA(c *config.Config) (*server.CA, error) {
	cert, err := os.ReadFile(c.CAFile())
	if err != nil {
		return nil, fmt.Errorf("server CA: %w; `pxeserver init` makes one", err)
	}
	key, err := os.ReadFile(c.CAKeyFile())
	if err != nil {
		return nil, fmt.Errorf("server CA: %w; restore it from a backup: nodes trust this CA and no other", err)
	}
	return server.ParseCA(cert, key)
}

// makeToken makes the first operator's token unless there is a token file.
// The file is written last: without it a token is nobody's.
func makeToken(c *config.Config) error {
	if _, err := os.Stat(c.Tokens); err == nil {
		return nil
	}
	token, line := server.NewToken("operator", "admin")
	if err := os.Remove(c.TokenFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return errors.Join(create(c.TokenFile(), []byte(token+"\n"), 0o600), create(c.Tokens, []byte(line), 0o600))
}

// create writes a new file, whole or not at all, and never over another.
func create(name string, b []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(b)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), name); err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return nil
}
