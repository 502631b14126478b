package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

func newNodeLabelCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "label NODE… KEY=VALUE… [KEY-…]", Short: "Set labels of nodes, or take them away",
		Long: `Sets labels by which nodes are picked: in lists (node list --selector), in flips
(slot flip --selector) and as stages of rollouts (--stage labels:gpu=h100).
KEY=VALUE sets one, KEY- takes it away. They mean what you say they mean:
nothing else here goes by them.
` + exitCodes,
		Example: "  pxeserver node label n1 n2 gpu=h100 zone=a\n  pxeserver node label n1 zone-",
		Args: func(cmd *cobra.Command, args []string) error {
			_, _, err := labelArgs(cmd, args)
			return err
		},
		ValidArgsFunction: g.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			nodes, req, err := labelArgs(cmd, args)
			if err != nil {
				return err
			}
			return g.act(cmd, nodes, "label", req, "node %s is labelled")
		},
	}
}

// labelArgs tells names of nodes from labels: names have neither = nor a
// hyphen at the end.
func labelArgs(cmd *cobra.Command, args []string) (nodes []string, req api.NodeRequest, err error) {
	var set []string
	for _, a := range args {
		key, takesAway := strings.CutSuffix(a, "-")
		switch {
		case strings.Contains(a, "="):
			set = append(set, a)
		case takesAway:
			if err := fleet.CheckLabel(key, ""); err != nil {
				return nil, req, cli.Usagef(cmd, "%v", err)
			}
			req.Unlabel = append(req.Unlabel, key)
		default:
			nodes = append(nodes, a)
		}
	}
	if req.Labels, err = fleet.ParseLabels(set); err != nil {
		return nil, req, cli.Usagef(cmd, "%v", err)
	}
	if len(nodes) == 0 || len(set)+len(req.Unlabel) == 0 {
		return nil, req, cli.Usagef(cmd, "want nodes and labels: NODE… KEY=VALUE…, KEY- to take one away")
	}
	return nodes, req, nil
}

// selectorFlag adds -l/--selector.
func selectorFlag(cmd *cobra.Command, to *string, what string) {
	cmd.Flags().StringVarP(to, "selector", "l", "", what+" whose labels match: gpu=h100,zone!=b,!canary")
}

// selectorOf reads the flag.
func selectorOf(cmd *cobra.Command, text string) (s fleet.Selector, err error) {
	if text == "" {
		return s, nil
	}
	if s, err = fleet.ParseSelector(text); err != nil {
		return s, cli.Usagef(cmd, "--selector: %v", err)
	}
	return s, nil
}
