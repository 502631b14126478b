package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/rollout"
)

func newRolloutCommand(g *globals) *cobra.Command {
	return group("rollout", "Move pools of nodes to an image, carefully",
		newRolloutPlanCommand(g), newRolloutStartCommand(g), newRolloutStatusCommand(g), newRolloutListCommand(g),
		newRolloutActCommand(g, "pause", "Start no more nodes; those on the move go on"),
		newRolloutActCommand(g, "resume", "Go on with a paused or halted rollout"),
		newRolloutAbortCommand(g), newRolloutUndoCommand(g))
}

// rolloutFlags are those of plan and start.
type rolloutFlags struct {
	image                  string
	stages, windows        []string
	maxUnavailable, budget string
	p                      fleet.Policy
	yes                    bool
}

func (o *rolloutFlags) add(cmd *cobra.Command, g *globals) {
	f := cmd.Flags()
	f.StringVar(&o.image, "image", "", `image: digest, its first digits, or "name version" (needed)`)
	f.StringArrayVar(&o.stages, "stage", nil, "a pool (rack), nodes by their labels (labels:gpu=h100,zone!=b), a part of either (rack:10%), or nodes (nodes:n1,n2); repeat in order, the canary first, the most critical last (needed)")
	f.StringVar(&o.maxUnavailable, "max-unavailable", "1", "nodes of a stage on the move at once, a number or a percentage; rounded down, at least 1")
	f.StringVar(&o.budget, "failure-budget", "0", "failed nodes tolerated before it halts, a number or a percentage of all; rounded down")
	f.DurationVar(&o.p.Bake, "bake", 10*time.Minute, "wait after each stage but the last")
	f.DurationVar(&o.p.Timeout, "timeout", 30*time.Minute, "a node that takes longer counts as failed")
	f.IntVar(&o.p.Tries, "tries", fleet.DefaultTries, "trial boots granted to a node")
	f.BoolVar(&o.p.FlipBack, "flip-back", false, "when it halts, return the nodes that it had moved")
	f.StringArrayVar(&o.windows, "window", nil, "when nodes may be started, [DAYS] FROM-TO [ZONE]; repeat for more; none: at any time")
	f.BoolVar(&o.p.ByDomain, "by-domain", false, "start the nodes of one failure domain together (see pxeserver node domain)")
	f.BoolVar(&o.p.Retry, "retry", false, "try it on nodes where the image is banned, too: your word that it may work now")
	f.StringVar(&o.p.Drain, "drain", "", "hook of the server's configuration that takes each node out of its scheduler first, and gives it back")
	f.DurationVar(&o.p.DrainWait, "drain-wait", rollout.DefaultDrainWait, "with --drain: how long a node's jobs may go on; one that is not free then is left out")
	must(cmd.RegisterFlagCompletionFunc("image", g.completeImages))
	must(cmd.RegisterFlagCompletionFunc("stage", g.completePools))
}

func (o *rolloutFlags) request(cmd *cobra.Command) (api.RolloutRequest, error) {
	r := api.RolloutRequest{Image: o.image, Policy: o.p}
	if o.image == "" || len(o.stages) == 0 {
		return r, cli.Usagef(cmd, "say what goes where: --image IMAGE --stage POOL [--stage POOL …]")
	}
	for _, s := range o.stages {
		st, err := fleet.ParseStage(s)
		if err != nil {
			return r, cli.Usagef(cmd, "--stage: %v", err)
		}
		r.Policy.Stages = append(r.Policy.Stages, st)
	}
	for _, s := range o.windows {
		w, err := fleet.ParseWindow(s)
		if err != nil {
			return r, cli.Usagef(cmd, "--window: %v", err)
		}
		r.Policy.Windows = append(r.Policy.Windows, w)
	}
	var err error
	if r.Policy.MaxUnavailable, err = fleet.ParseAmount(o.maxUnavailable); err != nil {
		return r, cli.Usagef(cmd, "--max-unavailable: %v", err)
	}
	if r.Policy.FailureBudget, err = fleet.ParseAmount(o.budget); err != nil {
		return r, cli.Usagef(cmd, "--failure-budget: %v", err)
	}
	return r, nil
}

func newRolloutPlanCommand(g *globals) *cobra.Command {
	o := &rolloutFlags{}
	cmd := &cobra.Command{
		Use: "plan", Short: "Say what a rollout would do",
		Long: "Prints the stages of a rollout, who is in each, who would be left out and why, in how\nmany waves they go, and how long that takes if each node takes as long as in the last\nrollout. Nothing is changed.\n" + exitCodes,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			req, err := o.request(cmd)
			if err != nil {
				return err
			}
			req.DryRun = true
			r, err := c.StartRollout(cmd.Context(), req)
			if err != nil {
				return err
			}
			ns := imageNames(cmd, c)
			return g.print(cmd, r, func(t *tabwriter.Writer) { showDraft(t, r, ns, paceOf(cmd, c)) })
		},
	}
	o.add(cmd, g)
	return cmd
}

func newRolloutStartCommand(g *globals) *cobra.Command {
	o := &rolloutFlags{}
	cmd := &cobra.Command{
		Use: "start", Short: "Start a rollout",
		Long: `Moves the nodes of pools to an image, pool after pool. A stage begins when the
one before is complete, has baked and is healthy. More failures than the budget
halt it: waiting nodes are not touched, failed ones are back on what they ran,
and the image is banned on them.

It goes on while the server runs, also after a crash. See
` + "`pxeserver rollout status --watch`" + `.
` + exitCodes,
		Example: `  pxeserver rollout start --image "rack-base 1.1.0" --stage canary --stage rack --max-unavailable 25%
  pxeserver rollout start --image "rack-base 1.1.0" --stage nodes:n1,n2 --stage training:10% --stage training --stage inference --drain slurm`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			req, err := o.request(cmd)
			if err != nil {
				return err
			}
			if !o.yes {
				if err := askRollout(cmd, c, req); err != nil {
					return err
				}
			}
			r, err := c.StartRollout(cmd.Context(), req)
			if err != nil {
				return err
			}
			return g.done(cmd, r, nil, "rollout %s started, %d nodes in %d stages\nwatch it: pxeserver rollout status %s --watch", r.ID, len(r.Nodes), len(r.Policy.Stages), r.ID)
		},
	}
	o.add(cmd, g)
	cmd.Flags().BoolVar(&o.yes, "yes", false, "do not ask")
	return cmd
}

// askRollout shows what a rollout would do and asks.
func askRollout(cmd *cobra.Command, c *api.Client, req api.RolloutRequest) error {
	req.DryRun = true
	r, err := c.StartRollout(cmd.Context(), req)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(cmd.ErrOrStderr(), 0, 0, 2, ' ', 0)
	showDraft(t, r, imageNames(cmd, c), paceOf(cmd, c))
	if err := t.Flush(); err != nil {
		return err
	}
	return confirm(cmd, false, "")
}

func showDraft(t *tabwriter.Writer, r *fleet.Rollout, ns names, p pace) {
	fmt.Fprintf(t, "%s to %d nodes; at most %s failed before it halts\n", ns.of(r.Image), len(r.Nodes), r.Policy.FailureBudget)
	showWindows(t, &r.Policy)
	if d := r.Policy.Drain; d != "" {
		fmt.Fprintf(t, "each node is drained by %s first; its jobs have %s\n", d, r.Policy.DrainWait)
	}
	fmt.Fprintln(t, p.expect(r))
	waves, _ := wavesOf(r)
	for i, s := range r.Policy.Stages {
		total := 0
		for _, m := range r.Nodes {
			if m.Stage == i {
				total++
			}
		}
		after := ""
		if i < len(r.Policy.Stages)-1 {
			after = ", then bake " + r.Policy.Bake.String()
		}
		fmt.Fprintf(t, "stage %d: %s, %d nodes, %d at once%s\n", i+1, stageText(s), total, r.Policy.MaxUnavailable.AtLeastOne(total), after)
		for _, m := range r.Nodes {
			if m.Stage == i {
				moves := "moves"
				if !r.Policy.ByDomain {
					moves = fmt.Sprintf("moves in wave %d", waves[m.Node])
				}
				row(t, "  "+m.Node, or(m.Reason, moves))
			}
		}
	}
}

// stageText says who is in a stage.
func stageText(s fleet.RolloutStage) string {
	switch {
	case len(s.Nodes) > 0:
		return "nodes by name"
	}
	whole := "pool " + s.Pool
	if s.Labels != "" {
		whole = "nodes with " + s.Labels
	}
	if s.Percent > 0 {
		return fmt.Sprintf("%d %% of %s", s.Percent, whole)
	}
	return whole
}

func newRolloutListCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls", "history"}, Short: "List rollouts",
		Long: "Lists all rollouts, oldest first, with how many nodes of each stage stand where. rollout status\nhas the nodes.\n" + exitCodes,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			rs, err := c.RolloutSummaries(cmd.Context()) // all their nodes would be a million lines
			if err != nil {
				return err
			}
			ns := imageNames(cmd, c)
			return g.print(cmd, rs, func(t *tabwriter.Writer) {
				row(t, "ID", "IMAGE", "STATE", "DONE", "FAILED", "NODES", "BY", "STARTED", "WHY")
				for i := range rs {
					r := &rs[i]
					done, failed, nodes := 0, 0, 0
					for _, stage := range r.Counts {
						done, failed = done+stage[fleet.MoveDone], failed+stage[fleet.MoveFailed]
						for _, n := range stage {
							nodes += n
						}
					}
					row(t, r.ID, ns.of(r.Image), string(r.State), fmt.Sprint(done), fmt.Sprint(failed), fmt.Sprint(nodes), r.By, ago(r.Created), r.Reason)
				}
			})
		},
	}
}

func newRolloutActCommand(g *globals, act, short string) *cobra.Command {
	var req api.ReasonRequest
	long := short + ".\n"
	if act == "resume" {
		long = "Goes on with a paused rollout. Resuming one that halted is your word that it may go on in\nspite of what failed: the failure budget counts from here, and skipped nodes of the current\nstage get another chance.\n"
	}
	cmd := &cobra.Command{
		Use: act + " ROLLOUT", Short: short, Long: long + exitCodes,
		Args: cli.OneArg("a rollout"), ValidArgsFunction: g.completeRollouts,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			r, err := c.RolloutAct(cmd.Context(), args[0], act, req)
			if err != nil {
				return err
			}
			return g.done(cmd, r, nil, "rollout %s is %s", r.ID, r.State)
		},
	}
	cmd.Flags().StringVar(&req.Reason, "reason", "", "why, for the history")
	return cmd
}

func newRolloutAbortCommand(g *globals) *cobra.Command {
	var req api.ReasonRequest
	cmd := newRolloutActCommand(g, "abort", "End a rollout")
	cmd.Long = "Ends a rollout. Nodes on the move finish by themselves. With --flip-back every node that it\nhas moved goes back to what it ran, and no other.\n" + exitCodes
	cmd.Flags().BoolVar(&req.FlipBack, "flip-back", false, "return what the rollout changed")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := g.client()
		if err != nil {
			return err
		}
		req.Reason, _ = cmd.Flags().GetString("reason")
		r, err := c.RolloutAct(cmd.Context(), args[0], "abort", req)
		if err != nil {
			return err
		}
		return g.done(cmd, r, nil, "rollout %s is %s", r.ID, r.State)
	}
	return cmd
}

func count(r *fleet.Rollout) map[fleet.MoveState]int {
	n := map[fleet.MoveState]int{}
	for _, m := range r.Nodes {
		n[m.State]++
	}
	return n
}
