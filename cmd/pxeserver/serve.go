package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/bmc"
	"github.com/turnout-project/turnout/internal/buildinfo"
	"github.com/turnout-project/turnout/internal/config"
	"github.com/turnout-project/turnout/internal/hook"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/nodereport"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/rollout"
	"github.com/turnout-project/turnout/internal/server"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/store/postgres"
	"github.com/turnout-project/turnout/internal/store/sqlite"
)

func newServeCommand(g *globals) *cobra.Command {
	var logLevel string
	cmd := &cobra.Command{
		Use: "serve", Short: "Run the server",
		Long: `Serves DHCP, TFTP and HTTP boot, the node API and the operator API, and carries
rollouts on, until it gets SIGTERM or SIGINT.

It may be killed at any moment: what was acknowledged is kept, and rollouts go
on when it is started again. Ports below 1024 and DHCP need root, or
CAP_NET_BIND_SERVICE and CAP_NET_RAW.

SIGHUP (systemctl reload pxeserver) reads the configuration anew: image_keys,
ek_roots, tokens, discovery, attestation, recovery, peers, image_cache.racks,
boot_limits and console_logs change at once; of others the log says that they take a restart. A file that
is not good changes nothing.
` + exitCodes,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var level slog.Level
			if err := level.UnmarshalText([]byte(logLevel)); err != nil {
				return cli.Usagef(cmd, "--log-level %q: want debug, info, warn or error", logLevel)
			}
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
			c, err := g.load()
			if err != nil {
				return err
			}
			return serve(cmd.Context(), g.configFile(), c, log)
		},
	}
	cmd.Flags().StringVar(&logLevel, "log-level", "info", "debug, info, warn or error")
	return cmd
}

func newCheckConfigCommand(g *globals) *cobra.Command {
	var verbose, schema bool
	cmd := &cobra.Command{
		Use: "check-config", Short: "Check the configuration and the files it names",
		Long: "Reads the configuration as `serve` does, with the CA, the tokens, the image keys and\nthe certificates of TPM makers, and says the first thing that is wrong.\n" + exitCodes,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if schema {
				b, err := config.Schema()
				if err == nil {
					_, err = cmd.OutOrStdout().Write(b)
				}
				return err
			}
			c, err := g.load()
			if err != nil {
				return err
			}
			if _, err := options(c); err != nil {
				return &statusError{exitUsage, err.Error()}
			}
			if _, err := bootConfig(c); err != nil {
				return &statusError{exitUsage, err.Error()}
			}
			fmt.Fprintln(cmd.OutOrStdout(), "the configuration is good")
			if verbose {
				fmt.Fprintf(cmd.OutOrStdout(), "API: %s\nCA: %s\ntoken: %s\nfleet state: %s\nimages: %s\n", c.NodeAPI(), c.CAFile(), c.TokenFile(), c.StateName(), c.ImageDir())
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "say where things are")
	cmd.Flags().BoolVar(&schema, "schema", false, "print the JSON Schema of the configuration, for editors")
	return cmd
}

// serve runs everything until ctx ends or a part of it fails.
func serve(ctx context.Context, file string, c *config.Config, log *slog.Logger) error {
	o, err := options(c)
	if err != nil {
		return &statusError{exitUsage, err.Error()}
	}
	unlock, err := lockDir(c.DataDir)
	if err != nil {
		return err
	}
	defer unlock()
	st, err := openStore(ctx, c)
	if err != nil {
		return err
	}
	defer st.Close()
	o.Store, o.Log = st, log
	if o.Images, err = oci.Create(c.ImageDir()); err != nil {
		return err
	}
	if o.BMC, err = bmc.LoadKeys(c.BMCKeyFile()); err != nil {
		return err
	}
	if o.ReportKey, err = nodereport.LoadKey(c.ReportKeyFile()); err != nil {
		return err
	}
	hooks, err := loadHooks(c)
	if err != nil {
		return err
	}
	o.Drains = slices.Sorted(maps.Keys(hooks))
	srv := server.New(*o)
	l, err := listen(srv, c)
	if err != nil {
		return err
	}
	log.Info("API ready", "address", l.Addr().String(), "url", c.NodeAPI(), "version", o.Version)

	forCaches, err := listenForCaches(c)
	if err != nil {
		return err
	}
	boot, err := bootServer(c, srv, st, log)
	if err != nil {
		return err
	}
	srv.Boot = boot
	parts, ctx := errgroup.WithContext(ctx)
	parts.Go(func() error { return serveAPI(ctx, srv, l, log) })
	parts.Go(func() error { return boot.Serve(ctx) })
	if forCaches != nil {
		clients, _ := c.Cache.Prefixes() // checked by config
		log.Info("images for caches", "address", forCaches.Addr().String())
		parts.Go(func() error { return serveHTTP(ctx, "image_cache", srv.ForCaches(clients), forCaches, log) })
	}
	parts.Go(func() error { srv.KeepBoots(ctx); return nil })
	parts.Go(func() error { srv.WatchPower(ctx); return nil })
	parts.Go(func() error { reloadLoop(ctx, file, c, srv, boot, log); return nil })
	parts.Go(func() error {
		store.Lead(ctx, st, func(ctx context.Context) { lead(ctx, c, srv, hooks, log) })
		return nil
	})
	err = parts.Wait()
	if err == nil {
		log.Info("stopped")
	}
	return err
}

// openStore opens the fleet state where the configuration says it is.
func openStore(ctx context.Context, c *config.Config) (store.Store, error) {
	if c.Store == "" {
		return sqlite.Open(ctx, c.StateFile())
	}
	password, err := c.StoreSecret()
	if err != nil {
		return nil, &statusError{exitUsage, err.Error()}
	}
	return postgres.Open(ctx, c.Store, password)
}

// loadHooks reads the secrets of hooks.
func loadHooks(c *config.Config) (hook.Set, error) {
	out := hook.Set{}
	for name, h := range c.Hooks {
		x := hook.Hook{Exec: h.Exec, URL: h.URL, Timeout: h.Timeout}
		if h.Secret != "" {
			b, err := os.ReadFile(h.Secret)
			if err != nil {
				return nil, &statusError{exitUsage, fmt.Sprintf("hooks: %s: %v", name, err)}
			}
			x.Secret = bytes.TrimSpace(b)
		}
		out[name] = x
	}
	return out, nil
}

// lead does what one server does for the fleet, until ctx ends.
func lead(ctx context.Context, c *config.Config, srv *server.Server, hooks hook.Set, log *slog.Logger) {
	log.Info("this server leads: it carries rollouts on and watches the fleet")
	var all sync.WaitGroup
	for _, part := range []func(){
		func() { (&rollout.Executor{Store: srv.Store, Log: log, Wake: srv.Wake(), Drainer: hooks}).Run(ctx) },
		func() { srv.Watch(ctx) },
		func() { srv.WatchPeers(ctx) },
		func() { srv.Recover(ctx) },
		func() { srv.CollectFirmware(ctx) },
		func() { srv.Alert(ctx) },
		func() { srv.CountUsage(ctx) },
		func() { srv.Prune(ctx, c.Events.Keep, c.Events.Most) },
	} {
		all.Go(part)
	}
	all.Wait()
	log.Info("this server leads no more")
}

// options reads the files that the configuration names.
func options(c *config.Config) (*server.Options, error) {
	ca, err := loadCA(c)
	if err != nil {
		return nil, err
	}
	o := &server.Options{CA: ca, Limits: server.DefaultLimits(), Heartbeat: c.Heartbeat, NodeCert: c.NodeCert, AttestEvery: c.Attest.Every, AttestAlarm: c.Attest.Alarm, Baseline: c.Attest.Baseline, Servers: c.Servers(), Caches: c.Cache.Racks, ConsoleLogs: c.Console, Version: buildinfo.Version()}
	if c.Discovery.Enabled {
		o.Discovery = c.Discovery.Pool
	}
	b, err := os.ReadFile(c.Tokens)
	if err != nil {
		return nil, fmt.Errorf("operators' tokens: %w", err)
	}
	if o.Tokens, err = server.ParseTokens(b); err != nil {
		return nil, err
	}
	if o.ImageKeys, err = imageKeys(c.ImageKeys); err != nil {
		return nil, err
	}
	rc := c.Recovery.Config()
	o.Recovery = &rc
	if o.Hooks, err = alertHooks(c); err != nil {
		return nil, err
	}
	var roots [][]byte
	for _, f := range c.EKRoots {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("ek_roots: %w", err)
		}
		roots = append(roots, b)
	}
	trust, err := server.NewTrust(roots, time.Now)
	if err != nil {
		return nil, fmt.Errorf("ek_roots: %w", err)
	}
	trust.Applications = c.Attest.Allow
	o.TPM = trust
	return o, nil
}

func imageKeys(files []string) ([]ed25519.PublicKey, error) {
	var keys []ed25519.PublicKey
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("image_keys: %w; `imgbuild keygen` makes one", err)
		}
		ks, err := manifest.ParsePublicKeys(b)
		if err != nil {
			return nil, fmt.Errorf("image_keys: %s: %w", f, err)
		}
		keys = append(keys, ks...)
	}
	return keys, nil
}

// lockDir keeps a second server from the same state.
func lockDir(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, refusedf("another pxeserver runs on %s", dir)
	}
	return func() { f.Close() }, nil
}

func listen(srv *server.Server, c *config.Config) (net.Listener, error) {
	cert, err := srv.CA.ServerCertificate(append([]string{c.Address, "127.0.0.1", "localhost"}, c.Names...), time.Now())
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", c.Listen.API)
	if err != nil {
		return nil, fmt.Errorf("API: %w", err)
	}
	return tls.NewListener(l, srv.TLS(cert)), nil
}

// serveAPI answers until ctx ends, then lets running requests end.
func serveAPI(ctx context.Context, srv *server.Server, l net.Listener, log *slog.Logger) error {
	return serveHTTP(ctx, "API", srv.Handler(), l, log)
}

// listenForCaches listens for caches, if there are to be any.
func listenForCaches(c *config.Config) (net.Listener, error) {
	if c.Cache.Listen == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", c.Cache.Listen)
	if err != nil {
		return nil, fmt.Errorf("image_cache: %w", err)
	}
	return l, nil
}

// serveHTTP answers until ctx ends, then lets running requests end.
func serveHTTP(ctx context.Context, what string, handler http.Handler, l net.Listener, log *slog.Logger) error {
	// Requests hang on to this context, so that those that wait for events end first.
	base, cancel := context.WithCancel(context.Background())
	defer cancel()
	h := &http.Server{
		Handler: handler, ReadHeaderTimeout: 15 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return base },
		ErrorLog:    slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	done := make(chan error, 1)
	go func() { done <- h.Serve(l) }()
	select {
	case err := <-done:
		return fmt.Errorf("%s: %w", what, err)
	case <-ctx.Done():
	}
	cancel()
	grace, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	if err := h.Shutdown(grace); err != nil {
		return errors.Join(h.Close())
	}
	return nil
}
