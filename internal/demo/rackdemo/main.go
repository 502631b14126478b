// Command rackdemo plays Turnout's main job on a virtual rack; `make demo`
// runs it. It is not shipped.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/turnout-project/turnout/internal/demo"
)

func main() {
	o := demo.Options{Out: os.Stdout}
	flag.StringVar(&o.Dir, "dir", "out/demo", "folder for logs, consoles, disks and images; emptied first")
	flag.StringVar(&o.Cache, "cache", ".cache", "folder for packages and build results; kept")
	flag.StringVar(&o.Bin, "bin", "bin", "folder of the built programs")
	flag.StringVar(&o.Recipes, "recipes", "recipes", "folder of the recipes")
	flag.StringVar(&o.Accel, "accel", "", "QEMU accelerator; empty means software emulation, kvm where it works")
	only := flag.String("only", "", "comma-separated steps: "+strings.Join(demo.Steps(), ","))
	stay := flag.Bool("stay", false, "bring the rack up and leave it to you, with its console in your browser, until Ctrl-C")
	console := flag.String("console", "127.0.0.1:8443", "with -stay: address of this machine for the console and the API")
	flag.Parse()
	if *only != "" {
		o.Only = strings.Split(*only, ",")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	play := func() error { return demo.Run(ctx, o) }
	if *stay {
		play = func() error { return demo.Stay(ctx, o, *console) }
	}
	if err := play(); err != nil {
		fmt.Fprintln(os.Stderr, "rackdemo:", err)
		stop()
		os.Exit(1)
	}
}
