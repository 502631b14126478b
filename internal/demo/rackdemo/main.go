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
	flag.Parse()
	if *only != "" {
		o.Only = strings.Split(*only, ",")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := demo.Run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "rackdemo:", err)
		stop()
		os.Exit(1)
	}
}
