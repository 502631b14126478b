// Package manifest holds the description of a built image: what it contains,
// the measurements it must boot with, the health checks it must pass. The
// builder writes it, the server judges by it, the node installs by it, so
// this package is pure and imports neither of them.
//
// An image is an OCI image: its OCI manifest's digest is the image digest,
// the Manifest of this package is its config blob, and its files (root file
// system, verity tree, UKIs, loader, SBOM) are its layers. A detached
// signature (see Sign) is over the image digest.
package manifest

import (
	"encoding/json"
	"fmt"
	"time"
)

// Media types of the blobs of an image.
const (
	ArtifactType     = "application/vnd.turnout.image.v1"
	MediaConfig      = "application/vnd.turnout.image.config.v1+json"
	MediaRoot        = "application/vnd.turnout.root.v1.squashfs"
	MediaVerity      = "application/vnd.turnout.verity.v1"
	MediaUKI         = "application/vnd.turnout.uki.v1"           // boots a slot
	MediaInstaller   = "application/vnd.turnout.installer.v1"     // boots the installer
	MediaLoader      = "application/vnd.turnout.loader.v1"        // systemd-boot
	MediaChunkIndex  = "application/vnd.turnout.chunks.v1"        // content-defined chunks of another blob (see AnnotationChunksOf), internal/cdc
	MediaSBOM        = "application/spdx+json"                    // SPDX 2.3
	MediaSignature   = "application/vnd.turnout.signature.v1"     // ed25519 over the image digest
	MediaPackageList = "application/vnd.turnout.packages.v1+json" // the lock's packages
)

// AnnotationChunksOf names, at a layer of MediaChunkIndex, the digest of the
// blob whose chunks it lists. Nodes that know the index fetch only chunks that
// they do not have; others fetch the whole blob.
const AnnotationChunksOf = "org.turnout.chunks.of"

// Version is the SchemaVersion of manifests this package writes and reads.
const Version = 1

// Manifest describes one image. It is encoded as JSON with fields in the
// order of this struct and map keys sorted, so equal images give equal bytes.
type Manifest struct {
	SchemaVersion   int          `json:"schemaVersion"`
	Name            string       `json:"name"`         // the recipe's name
	Version         string       `json:"version"`      // the recipe's version, for people
	Architecture    string       `json:"architecture"` // "amd64", "arm64"
	RecipeDigest    string       `json:"recipeDigest"` // "sha256:…" of the recipe with what it extends
	LockDigest      string       `json:"lockDigest"`   // "sha256:…" of the lock file
	SourceDateEpoch int64        `json:"sourceDateEpoch"`
	Kernel          Kernel       `json:"kernel"`
	Root            Blob         `json:"root"`
	Verity          Verity       `json:"verity"`
	UKI             Blob         `json:"uki"`
	Installer       Blob         `json:"installer"`
	Loader          Blob         `json:"loader"`
	Measurements    Measurements `json:"measurements"`
	Health          Health       `json:"health"`
	Boot            Boot         `json:"boot"`
	Disk            Disk         `json:"disk,omitzero"`
	// Tools are the versions of programs of the build host that may change the
	// bytes of an image of the same lock: "mksquashfs", "imgbuild", "go".
	Tools map[string]string `json:"tools,omitempty"`
}

// Kernel is the one kernel of an image.
type Kernel struct {
	Release string `json:"release"` // uname -r
	Package string `json:"package"`
	Version string `json:"version"` // of the package
}

// Blob is one file of an image.
type Blob struct {
	Digest    string   `json:"digest"` // "sha256:…"
	SizeBytes int64    `json:"size"`
	ChunkSize int64    `json:"chunkSize,omitempty"` // bytes per chunk but for the last; 0 means the file is one piece
	Chunks    []string `json:"chunks,omitempty"`    // SHA-256 of each chunk in order, hex
}

// Verity is the dm-verity tree of the root (hash format 1, as veritysetup).
// The tree starts with a superblock at offset 0 of its own partition.
type Verity struct {
	Blob
	RootHash      string `json:"rootHash"`      // hex
	Salt          string `json:"salt"`          // hex
	HashAlgorithm string `json:"hashAlgorithm"` // "sha256"
	BlockSize     int    `json:"blockSize"`     // data and hash blocks, 4096
	DataBlocks    uint64 `json:"dataBlocks"`
	UUID          string `json:"uuid"`
}

// Health is what a booted image must show before it is confirmed.
type Health struct {
	Soak   Duration `json:"soak"` // all checks must go on passing for this long
	Checks []Check  `json:"checks"`
	// ConfirmOffline lets a node confirm a healthy slot without attestation
	// when no server was reached in its boot.
	ConfirmOffline bool `json:"confirm_offline,omitempty"`
	// AgentSilence is how long the agent may give no sign of life in a trial
	// boot before the machine is reset; 0 means ten minutes.
	AgentSilence Duration `json:"agent_silence,omitempty"`
}

// Check is one health check; exactly one of the fields from Exec to File
// (or a bare Kernel) says what is done.
type Check struct {
	Name     string   `json:"name"`
	Class    string   `json:"class,omitempty"`    // "software" (default), "hardware", "environment"
	Advisory bool     `json:"advisory,omitempty"` // reported, does not gate the confirm
	Timeout  Duration `json:"timeout,omitempty"`  // 0 means 30 s
	Exec     []string `json:"exec,omitempty"`     // exit status 0 passes
	Unit     string   `json:"unit,omitempty"`     // systemd unit that must be active
	Units    string   `json:"units,omitempty"`    // "no-failed": no unit may have failed
	Module   string   `json:"module,omitempty"`   // kernel module that must be loaded
	File     string   `json:"file,omitempty"`     // path that must exist
	Kernel   string   `json:"kernel,omitempty"`   // "pinned": uname -r equals Manifest.Kernel.Release
}

// Boot is how the image wants to be started and watched.
type Boot struct {
	Watchdog Duration `json:"watchdog"`          // hardware watchdog time-out from the initrd on; 0 means none
	Verify   string   `json:"verify"`            // "full": the initrd reads the whole root against the tree; "lazy": blocks are checked when read
	Modules  []string `json:"modules,omitempty"` // extra kernel modules the initrd loads
}

// Update is what an update of a system that works may take from it, in units
// of 10^6 bytes a second; 0 is no bound.
type Update struct {
	FetchMB int `json:"fetch_mb,omitempty"` // from the network
	DiskMB  int `json:"disk_mb,omitempty"`  // read from and written to the disk, together
}

// Disk says on which disk of a node an image is installed: one for which all
// that is set holds. The zero value takes any. Patterns are those of
// path.Match.
type Disk struct {
	ByID   string `json:"by_id,omitempty"`  // pattern of a name as below /dev/disk/by-id: "nvme-SAMSUNG_MZ1L2*"
	Model  string `json:"model,omitempty"`  // pattern
	Serial string `json:"serial,omitempty"` // pattern
	MinGB  int    `json:"min_gb,omitempty"` // at least so many 10^9 bytes
	MaxGB  int    `json:"max_gb,omitempty"` // at most
	// Bus lists the kinds of disk that count, the best first: "nvme", "scsi"
	// (SATA and SAS), "virtio". nil is all of them in that order.
	Bus []string `json:"bus,omitempty"`
	// Erase allows to erase what others left on a disk so described.
	Erase bool `json:"erase,omitempty"`
}

// Measurements are the values the image must show when it boots, computed
// from its finished files.
type Measurements struct {
	StubVersion       string       `json:"stubVersion"` // of the systemd stub inside the UKIs, "252.39-1~deb12u1"
	Paths             []BootPath   `json:"paths"`
	PCR11             []PhaseValue `json:"pcr11"` // slot UKI
	Installer11       []PhaseValue `json:"pcr11Installer"`
	Sections          []UKISection `json:"sections,omitempty"`          // of the slot UKI, in the order measured; to explain a wrong PCR 11 with
	SectionsInstaller []UKISection `json:"sectionsInstaller,omitempty"` // of the installer UKI
	Zero              []int        `json:"zero"`                        // PCRs that must never be extended, but for Cmdline: 12, 13
	Cmdline           Digests      `json:"cmdline,omitempty"`           // event that systemd-boot 252 and 254 measure into PCR 12, once or twice: the slot UKI's own command line
}

// BootPath is one way to start the image: the boot applications that PCR 4
// must show, in order.
type BootPath struct {
	Name         string        `json:"name"` // "disk", "network", "installer"
	Applications []Application `json:"applications"`
	PCR4         Digests       `json:"pcr4"` // value after exactly Calling, separator, all the applications
}

// Application is one PE image the firmware measures into PCR 4.
type Application struct {
	Name         string  `json:"name"` // "systemd-boot", "UKI", "kernel inside the UKI"
	Authenticode Digests `json:"authenticode"`
	Optional     bool    `json:"optional,omitempty"` // may be absent from the log: the stub hides its kernel from the firmware when Secure Boot is on
}

// UKISection is one section that the stub measures into PCR 11: first its
// name with a zero byte, then its contents.
type UKISection struct {
	Name   string  `json:"name"`   // ".linux"
	Digest Digests `json:"digest"` // of the contents
}

// PhaseValue is the value of PCR 11 once the given boot phases were measured.
type PhaseValue struct {
	Phase string  `json:"phase"` // "" before userspace, then "enter-initrd", "enter-initrd:leave-initrd"
	PCR   Digests `json:"pcr"`
}

// Digests maps a bank ("sha256", "sha384") to a value in hex.
type Digests map[string]string

// Duration is a time.Duration written as text ("30s") in JSON.
type Duration time.Duration

// MarshalText writes the duration as time.Duration.String does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads what time.ParseDuration reads.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil {
		return fmt.Errorf("duration %q: want a number with a unit such as 30s or 5m", b)
	}
	*d = Duration(v)
	return nil
}

// Encode returns the canonical bytes of m.
func (m *Manifest) Encode() ([]byte, error) { return json.MarshalIndent(m, "", " ") }

// Decode reads a manifest and refuses schema versions it does not know.
func Decode(b []byte) (*Manifest, error) {
	var m Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("image manifest: %w", err)
	}
	if m.SchemaVersion != Version {
		return nil, fmt.Errorf("image manifest: schema version %d, this program knows %d", m.SchemaVersion, Version)
	}
	return &m, nil
}

// Label returns "name version", as people call the image.
func (m *Manifest) Label() string { return m.Name + " " + m.Version }

// Path returns the boot path of that name.
func (m *Measurements) Path(name string) (BootPath, bool) {
	for _, p := range m.Paths {
		if p.Name == name {
			return p, true
		}
	}
	return BootPath{}, false
}
