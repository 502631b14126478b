package image

import (
	"encoding/json"
	"net/url"
	"regexp"
	"time"

	"github.com/turnout-project/turnout/internal/lock"
)

// The part of SPDX 2.3's JSON form that an image needs.
type spdxDocument struct {
	SPDXVersion       string             `json:"spdxVersion"`
	DataLicense       string             `json:"dataLicense"`
	SPDXID            string             `json:"SPDXID"`
	Name              string             `json:"name"`
	DocumentNamespace string             `json:"documentNamespace"`
	CreationInfo      spdxCreation       `json:"creationInfo"`
	Packages          []spdxPackage      `json:"packages"`
	Relationships     []spdxRelationship `json:"relationships"`
}

type spdxCreation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	Name             string         `json:"name"`
	SPDXID           string         `json:"SPDXID"`
	VersionInfo      string         `json:"versionInfo"`
	SourceInfo       string         `json:"sourceInfo,omitempty"`
	DownloadLocation string         `json:"downloadLocation"`
	FilesAnalyzed    bool           `json:"filesAnalyzed"`
	LicenseConcluded string         `json:"licenseConcluded"`
	LicenseDeclared  string         `json:"licenseDeclared"`
	CopyrightText    string         `json:"copyrightText"`
	Checksums        []spdxChecksum `json:"checksums,omitempty"`
	ExternalRefs     []spdxRef      `json:"externalRefs,omitempty"`
}

type spdxChecksum struct {
	Algorithm     string `json:"algorithm"`
	ChecksumValue string `json:"checksumValue"`
}

type spdxRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type spdxRelationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

const noAssertion = "NOASSERTION"

// sbom returns the software bill of materials of an image as SPDX 2.3 JSON.
// inputs is the image's inputs digest, which makes the document's name unique.
func sbom(f *lock.File, version, inputs string) ([]byte, error) {
	const imageID = "SPDXRef-Image"
	doc := spdxDocument{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT", Name: f.Name + "-" + version,
		DocumentNamespace: "https://spdx.org/spdxdocs/" + url.PathEscape(f.Name+"-"+version) + "-" + uuidString(derivedUUID("sbom", inputs)),
		CreationInfo: spdxCreation{
			Created:  time.Unix(f.SourceDateEpoch, 0).UTC().Format(time.RFC3339),
			Creators: []string{"Tool: imgbuild"},
		},
		Packages: []spdxPackage{{
			Name: f.Name, SPDXID: imageID, VersionInfo: version, DownloadLocation: noAssertion,
			LicenseConcluded: noAssertion, LicenseDeclared: noAssertion, CopyrightText: noAssertion,
		}},
		Relationships: []spdxRelationship{{"SPDXRef-DOCUMENT", "DESCRIBES", imageID}},
	}
	for _, p := range f.Packages {
		sp := spdxOf(p, "Package")
		doc.Packages = append(doc.Packages, sp)
		doc.Relationships = append(doc.Relationships, spdxRelationship{imageID, "CONTAINS", sp.SPDXID})
	}
	for _, p := range f.Tools {
		sp := spdxOf(p, "Tool")
		doc.Packages = append(doc.Packages, sp)
		doc.Relationships = append(doc.Relationships, spdxRelationship{sp.SPDXID, "BUILD_TOOL_OF", imageID})
	}
	return json.MarshalIndent(doc, "", " ")
}

var spdxUnsafe = regexp.MustCompile(`[^A-Za-z0-9.-]`)

func spdxOf(p lock.Package, kind string) spdxPackage {
	sp := spdxPackage{
		Name:        p.Name,
		SPDXID:      "SPDXRef-" + kind + "-" + spdxUnsafe.ReplaceAllString(p.Name+"-"+p.Architecture, "-"),
		VersionInfo: p.Version, DownloadLocation: p.URI,
		LicenseConcluded: noAssertion, LicenseDeclared: noAssertion, CopyrightText: noAssertion,
		Checksums:    []spdxChecksum{{"SHA256", p.SHA256}},
		ExternalRefs: []spdxRef{{"PACKAGE-MANAGER", "purl", purl(p)}},
	}
	if p.URI == "" {
		sp.DownloadLocation = noAssertion // made by the build itself
	}
	if p.Source != "" {
		sp.SourceInfo = "built from Debian source package " + p.Source
	}
	return sp
}

// purl is the package URL of a Debian package
// (github.com/package-url/purl-spec, type deb).
func purl(p lock.Package) string {
	return "pkg:deb/debian/" + url.QueryEscape(p.Name) + "@" + url.QueryEscape(p.Version) + "?arch=" + p.Architecture
}
