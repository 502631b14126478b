package postgres

import "slices"

// Imports reports whether Import takes a table over.
func Imports(table string) bool { return slices.Contains(importTables, table) }
