package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"gopkg.in/yaml.v3"
)

// outputs are what --output takes.
var outputs = []string{"table", "wide", "json", "yaml"}

// isWide reports whether a table is to have all its columns.
func (g *globals) isWide() bool { return g.output == "wide" }

// writeYAML writes what JSON would say, in the same order, as YAML.
func writeYAML(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil { // JSON is YAML
		return fmt.Errorf("as YAML: %w", err)
	}
	plain(&doc)
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(&doc); err != nil {
		return fmt.Errorf("as YAML: %w", err)
	}
	_, err = w.Write(out.Bytes())
	return err
}

// plain takes JSON's braces and quotes away; empty lists and maps keep them.
func plain(n *yaml.Node) {
	if len(n.Content) > 0 || n.Kind == yaml.ScalarNode {
		n.Style = 0
	}
	for _, c := range n.Content {
		plain(c)
	}
}
