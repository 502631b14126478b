package manifest

import (
	"encoding/json"
	"fmt"
)

// TrustPath is where an image, and every initrd made from it, carries its
// Trust. It lies under the verity root and inside the measured UKI.
const TrustPath = "/usr/lib/turnout/trust.json"

// ImagePath is where the root file system says which image it belongs to:
// an Identity as JSON.
const ImagePath = "/usr/lib/turnout/image.json"

// Trust is whom a node believes.
type Trust struct {
	ImageKeys string `json:"imageKeys"`        // PEM public keys that may sign images
	ServerCA  string `json:"serverCA"`         // PEM certificates of the server's CA
	Server    string `json:"server,omitempty"` // https URL of the server; "" means ask DHCP
}

// Identity is the part of a Manifest that is known before the root is
// packed, and so can lie inside it.
type Identity struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Kernel  Kernel `json:"kernel"`
	Health  Health `json:"health"`
	Boot    Boot   `json:"boot"`
	Update  Update `json:"update,omitzero"`
	Inputs  string `json:"inputs"` // "sha256:…" over recipe, lock and tool inputs
}

// DecodeTrust reads a Trust and refuses one that trusts nobody.
func DecodeTrust(b []byte) (*Trust, error) {
	var t Trust
	if err := json.Unmarshal(b, &t); err != nil {
		return nil, fmt.Errorf("trust file: %w", err)
	}
	if _, err := ParsePublicKeys([]byte(t.ImageKeys)); err != nil {
		return nil, fmt.Errorf("trust file: %w", err)
	}
	return &t, nil
}
