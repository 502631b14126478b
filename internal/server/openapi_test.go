package server_test

import (
	"crypto/tls"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/server"
)

// TestOpenAPI holds the description against the routes that are registered,
// and its references against what it defines.
func TestOpenAPI(t *testing.T) {
	l := newLab(t)
	if d := cmp.Diff(sorted(l.srv.Patterns()), sorted(server.Described())); d != "" {
		t.Errorf("routes (-registered +described in openapi.go):\n%s", d)
	}
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	resp, err := c.Get(l.url + api.PathOpenAPI)
	l.must(err)
	defer resp.Body.Close()
	var doc struct {
		OpenAPI    string
		Paths      map[string]map[string]struct{ OperationID string }
		Components struct{ Schemas map[string]any }
	}
	var raw json.RawMessage
	l.must(json.NewDecoder(resp.Body).Decode(&raw))
	l.must(json.Unmarshal(raw, &doc))
	if doc.OpenAPI != "3.1.0" || resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("version %q as %q; want 3.1.0 as application/json", doc.OpenAPI, resp.Header.Get("Content-Type"))
	}
	ids := map[string]bool{}
	for path, ops := range doc.Paths {
		for method, o := range ops {
			if o.OperationID == "" || ids[o.OperationID] {
				t.Errorf("%s %s: operation id %q is empty or taken", method, path, o.OperationID)
			}
			ids[o.OperationID] = true
		}
	}
	refs := strings.Split(string(raw), `"$ref":"#/components/schemas/`)[1:]
	if len(refs) < 20 {
		t.Fatalf("only %d references", len(refs))
	}
	for _, r := range refs {
		name, _, _ := strings.Cut(r, `"`)
		if doc.Components.Schemas[name] == nil {
			t.Errorf("schema %q is referred to but not there", name)
		}
	}
	node, _ := doc.Components.Schemas["Node"].(map[string]any)
	props, _ := node["properties"].(map[string]any)
	for field, want := range map[string]string{"lastSeen": `{"format":"date-time","type":"string"}`, "desired": `{"$ref":"#/components/schemas/Desired"}`, "macs": `{"items":{"type":"string"},"type":"array"}`} {
		got, err := json.Marshal(props[field])
		l.must(err)
		if string(got) != want {
			t.Errorf("schema of Node.%s = %s; want %s", field, got, want)
		}
	}
}

func sorted(s []string) []string {
	s = slices.Clone(s)
	slices.Sort(s)
	return s
}
