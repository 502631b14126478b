package main

import (
	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/docs"
)

func newSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of recipes, for the completion of editors",
		Long: `Prints the JSON Schema (draft 2020-12) of recipes. An editor with the YAML
language server completes and checks recipes that begin with

  # yaml-language-server: $schema=recipe.schema.json

The checks of imgbuild itself go further: see docs/recipe.md.
` + exitCodes,
		Example: "  imgbuild schema > recipe.schema.json",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(docs.RecipeSchema)
			return err
		},
	}
}
