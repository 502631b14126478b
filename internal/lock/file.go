// Package lock holds the lock file: every byte an image is made of, by name,
// version, size and SHA-256. It is written by `imgbuild lock` and read by
// `imgbuild build`. This package is pure; resolving is internal/apt's work.
package lock

// Version is the version of lock files this package writes.
const Version = 1

// File is one lock file.
type File struct {
	Version         int       `json:"version"`
	Recipe          string    `json:"recipe"` // digest of the recipe it answers to
	Name            string    `json:"name"`   // recipe's name, for people
	Architecture    string    `json:"architecture"`
	SourceDateEpoch int64     `json:"sourceDateEpoch"` // newest Release date of the indexes, Unix seconds
	Indexes         []Index   `json:"indexes"`
	Packages        []Package `json:"packages"` // the root file system, sorted by name
	Tools           []Package `json:"tools"`    // build inputs that are not installed: systemd-boot-efi (stub, loader)
}

// Index is a signed InRelease file that the packages were resolved from.
type Index struct {
	URI    string `json:"uri"`
	Suite  string `json:"suite"`
	Date   string `json:"date"` // Date field of the Release file
	SHA256 string `json:"sha256"`
	Key    string `json:"key"` // fingerprint of the signing key
}

// Package is one .deb.
type Package struct {
	Name         string `json:"name"`
	Version      string `json:"version"`
	Architecture string `json:"architecture"` // "amd64" or "all"
	Source       string `json:"source,omitempty"`
	Essential    bool   `json:"essential,omitempty"` // essential or pre-depended upon by essential packages
	URI          string `json:"uri"`                 // full address
	SizeBytes    int64  `json:"size"`
	SHA256       string `json:"sha256"` // hex
}

// Find returns the package of that name in ps.
func Find(ps []Package, name string) (Package, bool) {
	for _, p := range ps {
		if p.Name == name {
			return p, true
		}
	}
	return Package{}, false
}
