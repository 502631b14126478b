// Package docs carries the documents that programs print or check themselves
// against.
package docs

import _ "embed"

// Recipe is the reference of recipes, recipe.md.
//
//go:embed recipe.md
var Recipe []byte

// RecipeSchema is the JSON Schema of recipes, as internal/recipe/schema makes
// it from the recipe's type and from Recipe.
//
//go:embed recipe.schema.json
var RecipeSchema []byte
