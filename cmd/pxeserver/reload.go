package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"reflect"
	"strings"
	"syscall"

	"github.com/turnout-project/turnout/internal/config"
	"github.com/turnout-project/turnout/internal/netboot"
	"github.com/turnout-project/turnout/internal/server"
)

// reloadKeys are the keys of the configuration that a running server takes
// over; of others a change waits for a restart.
var reloadKeys = map[string]bool{"image_keys": true, "ek_roots": true, "tokens": true, "discovery": true, "attestation": true, "console_logs": true, "recovery": true, "peers": true}

// reloadLoop reads the configuration anew with each SIGHUP. One that is not
// good changes nothing.
func reloadLoop(ctx context.Context, file string, began *config.Config, srv *server.Server, boot *netboot.Server, log *slog.Logger) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
		}
		next, err := config.Load(file)
		var o *server.Options
		if err == nil {
			o, err = options(next)
		}
		if err != nil {
			log.Error("the configuration was not reloaded; the server goes on with the one it has", "err", err)
			continue
		}
		srv.Reload(*o)
		if err := boot.SetLimits(bootLimits(next)); err != nil {
			log.Error("boot_limits were not taken over", "err", err)
		}
		log.Info("configuration reloaded", "file", file)
		if waits := waiting(began, next); len(waits) > 0 {
			log.Warn("changes that take a restart", "keys", strings.Join(waits, ", "))
		}
	}
}

// waiting names the keys that differ and are not taken over.
func waiting(began, next *config.Config) []string {
	var out []string
	kept := *next
	kept.Cache.Racks = began.Cache.Racks // the rest of image_cache is about a listener
	old, now := reflect.ValueOf(*began), reflect.ValueOf(kept)
	for i := range old.NumField() {
		key, _, _ := strings.Cut(old.Type().Field(i).Tag.Get("yaml"), ",")
		if !reloadKeys[key] && !reflect.DeepEqual(old.Field(i).Interface(), now.Field(i).Interface()) {
			out = append(out, key)
		}
	}
	return out
}
