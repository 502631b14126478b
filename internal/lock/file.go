// Package lock holds the lock file: every byte an image is made of, by name,
// version, size and SHA-256. It is written by `imgbuild lock` and read by
// `imgbuild build`. Nothing is resolved here; that is internal/apt's work.
package lock

// Version is the version of lock files this package writes.
const Version = 1

// The numbers that Accounts may give.
const AccountFirst, AccountLast = 600, 899

// File is one lock file.
type File struct {
	Version         int       `json:"version"`
	Recipe          string    `json:"recipe"` // Request of the recipe it answers (recipe.Recipe.Request)
	Name            string    `json:"name"`   // recipe's name, for people
	Architecture    string    `json:"architecture"`
	SourceDateEpoch int64     `json:"sourceDateEpoch"` // newest Release date of the indexes, Unix seconds
	Indexes         []Index   `json:"indexes"`
	Kernel          string    `json:"kernel"`   // name of the kernel's package, one of Packages
	Packages        []Package `json:"packages"` // the root file system, sorted by name
	Tools           []Package `json:"tools"`    // build inputs that are not installed, sorted by name: systemd-boot-efi (stub, loader)
	// Build is the root in which the driver's kernel modules are compiled,
	// with their sources, sorted by name; nothing of it is in the image.
	Build []Package `json:"build,omitempty"`
	// Accounts gives system accounts (users and groups of that name) of the
	// image their numbers, AccountFirst to AccountLast. Only names that would
	// else get the number of another need an entry. A person writes it; a new lock
	// takes it over.
	Accounts map[string]int `json:"accounts,omitempty"`
}

// Index is a signed InRelease file that the packages were resolved from.
type Index struct {
	URI    string `json:"uri"`
	Suite  string `json:"suite"`
	Date   string `json:"date"` // Date field of the Release file
	SHA256 string `json:"sha256"`
	Key    string `json:"key"` // fingerprints of the keys that signed it and are in the keyring, sorted, joined by ","
}

// Package is one .deb.
type Package struct {
	Name         string `json:"name"`
	Version      string `json:"version"`
	Architecture string `json:"architecture"` // "amd64" or "all"
	Source       string `json:"source,omitempty"`
	// SourceVersion is the version of Source where it is not Version: "" in
	// locks of older imgbuilds too.
	SourceVersion string `json:"sourceVersion,omitempty"`
	Essential     bool   `json:"essential,omitempty"` // essential or pre-depended upon by essential packages
	URI           string `json:"uri"`                 // full address; "+" and "~" stand for themselves
	SizeBytes     int64  `json:"size"`
	SHA256        string `json:"sha256"` // hex
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
