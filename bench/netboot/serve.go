package main

import (
	"context"
	"io"
	"log/slog"
	"net/netip"
	"os"

	"github.com/turnout-project/turnout/internal/netboot"
	"github.com/turnout-project/turnout/internal/server"
	"github.com/turnout-project/turnout/internal/store/sqlite"
)

// serve is our side, with the ports of the real world, for all machines alike.
func serve(o options) error {
	st, err := os.Stat(o.file)
	if err != nil {
		return err
	}
	cfg := netboot.DefaultConfig()
	cfg.BlockSize, cfg.Ports.HTTP = 1468, 80
	cfg.Subnets = []netboot.Subnet{{
		Prefix: netip.MustParsePrefix("10.78.0.0/16"),
		Pools:  []netboot.Range{{First: netip.MustParseAddr("10.78.16.0"), Last: netip.MustParseAddr("10.78.255.254")}},
	}}
	if o.clients > 1 { // a storm: addresses that the generator has
		cfg.Subnets[0].Pools[0].Last = netip.MustParseAddr("10.78.31.254")
	}
	ans := netboot.Answer{
		Kind: netboot.AnswerInstaller, Reason: "bench", File: bootFile, Size: st.Size(),
		Open: func() (io.ReadSeekCloser, error) { return os.Open(o.file) },
	}
	s := &netboot.Server{
		Config: cfg,
		Policy: netboot.PolicyFunc(func(context.Context, netboot.Client) (netboot.Answer, error) { return ans, nil }),
		Log:    slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	}
	if o.leases != "" {
		db, err := sqlite.Open(context.Background(), o.leases)
		if err != nil {
			return err
		}
		defer db.Close()
		s.Leases = server.Leases{Store: db}
	}
	return s.Serve(context.Background())
}
