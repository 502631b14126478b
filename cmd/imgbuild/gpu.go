package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/compat"
	"github.com/turnout-project/turnout/internal/egress"
	"github.com/turnout-project/turnout/internal/gpu"
	"github.com/turnout-project/turnout/internal/recipe"
)

func newGPUCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gpu",
		Short: "Render what comes of the GPU section of a recipe",
		Long: `The GPU section of a recipe becomes files that NVIDIA's own tools read, units
that apply settings at boot, and health checks. An image has them without any of
these commands; they are for a look at them, and for the cluster's side.
` + exitCodes,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.SuggestionsMinimumDistance = 2
	cmd.AddCommand(newGPURenderCommand(), newGPUQuotaCommand())
	return cmd
}

type renderOptions struct {
	out  string
	data []string
}

func newGPURenderCommand() *cobra.Command {
	var o renderOptions
	cmd := &cobra.Command{
		Use:   "render RECIPE",
		Short: "Write the files an image gets for its GPUs into a folder",
		Long: `Writes the configuration of mig-parted and of the device plugin, module options,
units and the agent's own file below a folder, at the paths they have in an image.
Without --out it prints them. A recipe whose layouts do not fit is refused.
` + exitCodes,
		Example: `  imgbuild gpu render recipes/mig-h100.yaml
  imgbuild gpu render recipes/mig-h100.yaml --out rendered`,
		Args: cli.OneArg("a recipe"),
		RunE: func(cmd *cobra.Command, args []string) error { return runRender(cmd, o, args[0]) },
	}
	cmd.Flags().StringVar(&o.out, "out", "", "folder to write below (default: print)")
	addDataFlag(cmd, &o.data)
	return cmd
}

// loadFitting loads a recipe whose GPU section holds.
func loadFitting(data []string, path string) (*compat.Tables, *recipe.Recipe, error) {
	r, err := recipe.Load(path)
	if err != nil {
		return nil, nil, err
	}
	t, err := readTables(data)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range gpu.Lint(t, r) {
		if f.Severity == compat.Error {
			return nil, nil, r.Errorf(f.Field, f.Hint, "%s", f.Message)
		}
	}
	return t, r, nil
}

func runRender(cmd *cobra.Command, o renderOptions, path string) error {
	t, r, err := loadFitting(o.data, path)
	if err != nil {
		return err
	}
	files, err := gpu.Files(t, r)
	if err != nil {
		return err
	}
	files = append(files, egress.Files(r)...)
	if len(files) == 0 {
		return r.Errorf("", "add the sections driver and gpu", "the recipe says nothing of GPUs")
	}
	for _, f := range files {
		if o.out == "" {
			fmt.Fprintf(cmd.OutOrStdout(), "==> %s\n%s\n", f.Path, f.Content)
			continue
		}
		name := filepath.Join(o.out, f.Path)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, []byte(f.Content), 0o644); err != nil {
			return err
		}
		fmt.Fprintln(cmd.OutOrStdout(), name)
	}
	return nil
}

type quotaOptions struct {
	gpu.QuotaOptions
	data []string
}

func newGPUQuotaCommand() *cobra.Command {
	var o quotaOptions
	cmd := &cobra.Command{
		Use:   "quota RECIPE",
		Short: "Print a ResourceQuota and a LimitRange for the GPUs a pool offers",
		Long: `Counts the devices that the device plugin offers on each node of the recipe (MIG
instances, shared replicas, whole GPUs), multiplies them by the number of nodes,
and prints a ResourceQuota over all or a part of them, and a LimitRange for what
one container can have. What the nodes do not offer whole gets a quota of 0.
` + exitCodes,
		Example: `  imgbuild gpu quota recipes/mig-h100.yaml --nodes 16 --namespace team-a --percent 50 | kubectl apply -f -`,
		Args:    cli.OneArg("a recipe"),
		RunE:    func(cmd *cobra.Command, args []string) error { return runQuota(cmd, o, args[0]) },
	}
	f := cmd.Flags()
	f.IntVar(&o.Nodes, "nodes", 1, "nodes in the pool")
	f.StringVar(&o.Namespace, "namespace", "", "namespace of the objects (default: none, kubectl's)")
	f.IntVar(&o.Percent, "percent", 100, "part of the pool")
	f.IntVar(&o.PerContainer, "per-container", 1, "most devices of a kind in one container")
	addDataFlag(cmd, &o.data)
	return cmd
}

func runQuota(cmd *cobra.Command, o quotaOptions, path string) error {
	t, r, err := loadFitting(o.data, path)
	if err != nil {
		return err
	}
	text, err := gpu.Quota(t, r, o.QuotaOptions)
	if errors.Is(err, gpu.ErrQuota) {
		return &cli.UsageError{Msg: err.Error()}
	}
	if err != nil {
		return err
	}
	fmt.Fprint(cmd.OutOrStdout(), text)
	return nil
}
