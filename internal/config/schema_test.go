package config

import (
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/pxeserver.schema.json anew")

const schemaFile = "../../docs/pxeserver.schema.json"

func TestSchema(t *testing.T) {
	got, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(schemaFile, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(schemaFile)
	if err != nil || string(want) != string(got) {
		t.Errorf("%s is not what the type and the template give (%v); run: go test ./internal/config -update", schemaFile, err)
	}
	var s struct {
		Properties map[string]struct {
			Type        any
			Description string
			Properties  map[string]struct {
				Description string
				Enum        []string
			}
		}
		AdditionalProperties any
	}
	if err := json.Unmarshal(got, &s); err != nil {
		t.Fatal(err)
	}
	if s.AdditionalProperties != false || len(s.Properties) < 15 {
		t.Errorf("%d keys, others: %v", len(s.Properties), s.AdditionalProperties)
	}
	if d := s.Properties["image_keys"].Description; !strings.Contains(d, "may sign images") {
		t.Errorf("image_keys: %q", d)
	}
	if d := s.Properties["listen"].Properties["tftp"].Description; !strings.Contains(d, "69") {
		t.Errorf("listen.tftp: %q", d)
	}
	if e := s.Properties["dhcp"].Properties["mode"].Enum; len(e) != 3 {
		t.Errorf("dhcp.mode: %q", e)
	}
	for key, p := range s.Properties {
		if p.Description == "" && len(p.Properties) == 0 {
			t.Errorf("%s is not explained in the file that init writes", key)
		}
	}
}
