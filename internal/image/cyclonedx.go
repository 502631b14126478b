package image

import (
	"encoding/json"
	"time"

	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/manifest"
)

// The part of CycloneDX 1.5's JSON form that an image needs.
type cdxDocument struct {
	BOMFormat    string          `json:"bomFormat"`
	SpecVersion  string          `json:"specVersion"`
	SerialNumber string          `json:"serialNumber"`
	Version      int             `json:"version"`
	Metadata     cdxMetadata     `json:"metadata"`
	Components   []cdxComponent  `json:"components"`
	Dependencies []cdxDependency `json:"dependencies"`
}

type cdxMetadata struct {
	Timestamp string       `json:"timestamp"`
	Tools     cdxTools     `json:"tools"`
	Component cdxComponent `json:"component"`
}

type cdxTools struct {
	Components []cdxComponent `json:"components"`
}

type cdxComponent struct {
	Type       string        `json:"type"`
	Ref        string        `json:"bom-ref,omitempty"`
	Name       string        `json:"name"`
	Version    string        `json:"version"`
	Hashes     []cdxHash     `json:"hashes,omitempty"`
	PURL       string        `json:"purl,omitempty"`
	Properties []cdxProperty `json:"properties,omitempty"`
}

type cdxHash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type cdxProperty struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type cdxDependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn"`
}

// CycloneDX returns a software bill of materials of an image as CycloneDX 1.5
// JSON. The same image gives the same bytes.
func CycloneDX(digest string, m *manifest.Manifest, packages []lock.Package) ([]byte, error) {
	const imageRef = "image"
	doc := cdxDocument{
		BOMFormat: "CycloneDX", SpecVersion: "1.5", Version: 1,
		SerialNumber: "urn:uuid:" + uuidString(derivedUUID("CycloneDX", digest)),
		Metadata: cdxMetadata{
			Timestamp: time.Unix(m.SourceDateEpoch, 0).UTC().Format(time.RFC3339),
			Tools:     cdxTools{[]cdxComponent{{Type: "application", Name: "imgbuild", Version: m.Tools["imgbuild"]}}},
			Component: cdxComponent{Type: "operating-system", Ref: imageRef, Name: m.Name, Version: m.Version,
				Properties: []cdxProperty{{"turnout:image", digest}, {"turnout:root", m.Root.Digest}, {"turnout:kernel", m.Kernel.Release}}},
		},
		Components: []cdxComponent{},
	}
	contains := cdxDependency{Ref: imageRef, DependsOn: []string{}}
	for _, p := range packages {
		c := cdxComponent{Type: "library", Ref: purl(p), Name: p.Name, Version: p.Version, PURL: purl(p), Hashes: []cdxHash{{"SHA-256", p.SHA256}}}
		if p.Source != "" {
			c.Properties = []cdxProperty{{"turnout:source", p.Source}}
		}
		doc.Components = append(doc.Components, c)
		contains.DependsOn = append(contains.DependsOn, c.Ref)
	}
	doc.Dependencies = []cdxDependency{contains}
	b, err := json.MarshalIndent(doc, "", " ")
	return append(b, '\n'), err
}
