package compat

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"gopkg.in/yaml.v3"
)

//go:embed data/*.yaml
var dataFS embed.FS

// Tables is what is known.
type Tables struct {
	Architectures []Architecture
	KernelFloors  []KernelFloor
	Boards        []Board
	Platforms     []Platform
	Branches      []Branch
	Edition       string // of the branch table
	Families      []CUDAFamily
	Toolkits      []Toolkit
	KnownBad      []KnownBad
	MIG           []MIGTable
	Packages      []PackageRow
	DriverSets    []DriverSet
}

// Architecture is a generation of GPUs.
type Architecture struct {
	ID           string   `yaml:"arch"`
	Name         string   `yaml:"name"`
	CC           []string `yaml:"cc"`         // compute capabilities
	FirstCUDA    string   `yaml:"first_cuda"` // toolkit
	LastCUDA     int      `yaml:"last_cuda"`  // major; 0 means no end
	LastBranch   int      `yaml:"last_branch"`
	Open         string   `yaml:"open"`           // open kernel modules: "impossible", "supported", "required"
	GSP          string   `yaml:"gsp"`            // firmware image without ".bin"; "" has no GSP
	MIGInInforom bool     `yaml:"mig_in_inforom"` // MIG mode survives a reboot
	Source       string   `yaml:"source"`
}

// KernelFloor is the lowest kernel of the open modules from a branch on.
type KernelFloor struct {
	FromBranch int    `yaml:"from_branch"`
	Kernel     string `yaml:"kernel"`
	Source     string `yaml:"source"`
}

// Board is a kind of GPU.
type Board struct {
	ID           string   `yaml:"board"`
	Product      string   `yaml:"product"` // as nvidia-smi names it
	Arch         string   `yaml:"arch"`
	PCI          []string `yaml:"pci"` // device ids, four hexadecimal digits, upper case
	MinDriver    string   `yaml:"min_driver"`
	MIGMinDriver string   `yaml:"mig_min_driver"`
	Machine      string   `yaml:"machine"` // architecture of the CPU it is soldered to; "" any
	Coherent     bool     `yaml:"coherent"`
	NVSwitchAt   int      `yaml:"nvswitch_at"`
	Source       string   `yaml:"source"`
}

// Platform is a baseboard or a rack with NVSwitches.
type Platform struct {
	ID     string   `yaml:"platform"`
	Boards []string `yaml:"boards"`
	GPUs   int      `yaml:"gpus"` // per node
	NVLink int      `yaml:"nvlink"`
	Needs  []string `yaml:"needs"`
	Domain bool     `yaml:"domain"` // its nodes move together
	Source string   `yaml:"source"`
}

// Branch is a branch of drivers.
type Branch struct {
	Branch    int    `yaml:"branch"`
	Type      string `yaml:"type"` // "LTSB", "PB", "NFB", "" unknown
	EOL       []EOL  `yaml:"eol"`  // by edition, the newest last
	Ended     string `yaml:"ended"`
	FirstOpen bool   `yaml:"first_open"`
	VGPU      int    `yaml:"vgpu"` // release of NVIDIA vGPU made of it; 0 is none that is known
	Source    string `yaml:"source"`
}

// EOL is what one edition of a page printed.
type EOL struct {
	Edition string `yaml:"edition"`
	Date    string `yaml:"date"` // "2028-06" or "2028-06-30"
	Source  string `yaml:"source"`
}

// Time returns the first moment after the end of life.
func (e EOL) Time() (time.Time, error) {
	if t, err := time.Parse("2006-01", e.Date); err == nil {
		return t.AddDate(0, 1, 0), nil
	}
	t, err := time.Parse(time.DateOnly, e.Date)
	if err != nil {
		return time.Time{}, fmt.Errorf("end of life %q is not a month or a day", e.Date)
	}
	return t.AddDate(0, 0, 1), nil
}

// CUDAFamily is a major version of CUDA.
type CUDAFamily struct {
	Major     int    `yaml:"major"`
	MinBranch int    `yaml:"min_branch"`
	MinDriver string `yaml:"min_driver"` // "" means any of MinBranch
	Source    string `yaml:"source"`
}

// Toolkit is a release of CUDA and the driver it came with.
type Toolkit struct {
	CUDA    string `yaml:"cuda"`
	Release string `yaml:"release"`
	Driver  string `yaml:"driver"`
	Source  string `yaml:"source"`
}

// KnownBad is a combination that does not work; see data/knownbad.yaml.
type KnownBad struct {
	ID           string   `yaml:"id"`
	Branch       int      `yaml:"branch"`
	From         string   `yaml:"from"`
	Before       string   `yaml:"before"`
	Version      string   `yaml:"version"`
	Flavour      string   `yaml:"flavour"`
	Boards       []string `yaml:"boards"`
	KernelFrom   string   `yaml:"kernel_from"`
	KernelBefore string   `yaml:"kernel_before"`
	Kernels      []string `yaml:"kernels"`
	Severity     Severity `yaml:"severity"`
	Text         string   `yaml:"text"`
	Hint         string   `yaml:"hint"`
	Source       string   `yaml:"source"`
}

// MIGTable has the profiles of some boards.
type MIGTable struct {
	ID        string       `yaml:"table"`
	Boards    string       `yaml:"boards"` // in words
	PCI       []string     `yaml:"pci"`
	Compute   int          `yaml:"compute"` // slices
	Memory    int          `yaml:"memory"`  // slices
	MinDriver string       `yaml:"min_driver"`
	Status    string       `yaml:"status"` // how sure the placements are
	Source    string       `yaml:"source"`
	Profiles  []MIGProfile `yaml:"profiles"`
}

// MIGProfile is a kind of instance.
type MIGProfile struct {
	Name    string `yaml:"name"`
	Compute int    `yaml:"compute"`
	Memory  int    `yaml:"memory"`
	Max     int    `yaml:"max"`
	Starts  []int  `yaml:"starts"` // memory slices it can begin at; nil is unknown
	Size    int    `yaml:"size"`   // memory slices it covers from there
	Since   int    `yaml:"since"`  // driver branch; 0 means all
	Source  string `yaml:"source"`
}

// PackageRow says what packages of that name are.
type PackageRow struct {
	Match     string `yaml:"match"` // regular expression, anchored
	Role      string `yaml:"role"`
	Flavour   string `yaml:"flavour"`
	Family    bool   `yaml:"family"`    // of the driver's version
	Companion bool   `yaml:"companion"` // of the driver's branch or an older one
	Source    string `yaml:"source"`

	re *regexp.Regexp
}

// DriverSet names the packages of a driver in a distribution.
type DriverSet struct {
	Distribution string   `yaml:"distribution"`
	Flavour      string   `yaml:"flavour"`
	Image        []string `yaml:"image"` // what the image needs in any case
	Build        []string `yaml:"build"` // sources of the kernel modules
	Source       string   `yaml:"source"`
}

// file is a file of tables; each of data/ has some of the keys.
type file struct {
	Version       int               `yaml:"version"`
	Edition       string            `yaml:"edition"`
	Sources       map[string]string `yaml:"sources"`
	Architectures []Architecture    `yaml:"architectures"`
	KernelFloors  []KernelFloor     `yaml:"open_kernel_floor"`
	Boards        []Board           `yaml:"boards"`
	Platforms     []Platform        `yaml:"platforms"`
	Branches      []Branch          `yaml:"branches"`
	Families      []CUDAFamily      `yaml:"families"`
	Toolkits      []Toolkit         `yaml:"toolkits"`
	KnownBad      []KnownBad        `yaml:"rows"`
	MIG           []MIGTable        `yaml:"tables"`
	Packages      []PackageRow      `yaml:"packages"`
	DriverSets    []DriverSet       `yaml:"driver_sets"`
}

// Default returns the tables this program was built with. They are the
// caller's own: laying rows over them changes nobody else's.
func Default() *Tables {
	t := *embedded()
	t.Architectures, t.KernelFloors, t.Boards = slices.Clone(t.Architectures), slices.Clone(t.KernelFloors), slices.Clone(t.Boards)
	t.Platforms, t.Branches, t.Families = slices.Clone(t.Platforms), slices.Clone(t.Branches), slices.Clone(t.Families)
	t.Toolkits, t.KnownBad, t.MIG = slices.Clone(t.Toolkits), slices.Clone(t.KnownBad), slices.Clone(t.MIG)
	t.Packages, t.DriverSets = slices.Clone(t.Packages), slices.Clone(t.DriverSets)
	return &t
}

var embedded = sync.OnceValue(func() *Tables {
	t := &Tables{}
	names, err := fs.Glob(dataFS, "data/*.yaml")
	for _, name := range names {
		var b []byte
		if b, err = dataFS.ReadFile(name); err == nil {
			err = t.Lay(name, b)
		}
		if err != nil {
			break
		}
	}
	if err != nil {
		panic(err) // a test loads them
	}
	return t
})

// Lay lays the rows of a file over t: a row about the same thing (a branch, a
// board, …) takes the place of the old one, the others stay.
func (t *Tables) Lay(name string, b []byte) error {
	dec := yaml.NewDecoder(strings.NewReader(string(b)))
	dec.KnownFields(true)
	var f file
	if err := dec.Decode(&f); err != nil {
		text := strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "yaml: unmarshal errors:")), " ")
		return fmt.Errorf("compatibility data %s: %s", name, text)
	}
	if err := dec.Decode(new(file)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("compatibility data %s: more than one document", name)
	}
	if f.Version != 1 {
		return fmt.Errorf("compatibility data %s: version %d, this program knows 1", name, f.Version)
	}
	if f.Edition != "" {
		t.Edition = f.Edition
	}
	f.cite()
	t.Architectures = lay(t.Architectures, f.Architectures, func(r Architecture) string { return r.ID })
	t.KernelFloors = lay(t.KernelFloors, f.KernelFloors, func(r KernelFloor) string { return fmt.Sprint(r.FromBranch) })
	t.Boards = lay(t.Boards, f.Boards, func(r Board) string { return r.ID })
	t.Platforms = lay(t.Platforms, f.Platforms, func(r Platform) string { return r.ID })
	t.Branches = lay(t.Branches, f.Branches, func(r Branch) string { return fmt.Sprint(r.Branch) })
	t.Families = lay(t.Families, f.Families, func(r CUDAFamily) string { return fmt.Sprint(r.Major) })
	t.Toolkits = lay(t.Toolkits, f.Toolkits, func(r Toolkit) string { return r.CUDA + " " + r.Release })
	t.KnownBad = lay(t.KnownBad, f.KnownBad, func(r KnownBad) string { return r.ID })
	t.MIG = lay(t.MIG, f.MIG, func(r MIGTable) string { return r.ID })
	t.Packages = lay(t.Packages, f.Packages, func(r PackageRow) string { return r.Match })
	t.DriverSets = lay(t.DriverSets, f.DriverSets, func(r DriverSet) string { return r.Distribution + " " + r.Flavour })
	if err := t.validate(); err != nil {
		return fmt.Errorf("compatibility data %s: %w", name, err)
	}
	return nil
}

func lay[R any](old, rows []R, id func(R) string) []R {
	for _, r := range rows {
		if i := slices.IndexFunc(old, func(o R) bool { return id(o) == id(r) }); i >= 0 {
			old[i] = r
			continue
		}
		old = append(old, r)
	}
	return old
}

// cite replaces the short names of sources in all rows by what they stand for
// in this file.
func (f *file) cite() {
	citeAll(f, f.Architectures, func(r *Architecture) *string { return &r.Source })
	citeAll(f, f.KernelFloors, func(r *KernelFloor) *string { return &r.Source })
	citeAll(f, f.Boards, func(r *Board) *string { return &r.Source })
	citeAll(f, f.Platforms, func(r *Platform) *string { return &r.Source })
	citeAll(f, f.Families, func(r *CUDAFamily) *string { return &r.Source })
	citeAll(f, f.Toolkits, func(r *Toolkit) *string { return &r.Source })
	citeAll(f, f.KnownBad, func(r *KnownBad) *string { return &r.Source })
	citeAll(f, f.Packages, func(r *PackageRow) *string { return &r.Source })
	citeAll(f, f.DriverSets, func(r *DriverSet) *string { return &r.Source })
	citeAll(f, f.MIG, func(r *MIGTable) *string { return &r.Source })
	for i := range f.MIG {
		citeAll(f, f.MIG[i].Profiles, func(r *MIGProfile) *string { return &r.Source })
	}
	citeAll(f, f.Branches, func(r *Branch) *string { return &r.Source })
	for i := range f.Branches {
		citeAll(f, f.Branches[i].EOL, func(r *EOL) *string { return &r.Source })
	}
}

func citeAll[R any](f *file, rows []R, source func(*R) *string) {
	for i := range rows {
		s := source(&rows[i])
		var out []string
		for name := range strings.SplitSeq(*s, ";") {
			name = strings.TrimSpace(name)
			if long, ok := f.Sources[name]; ok {
				name = strings.TrimSpace(long)
			}
			if name != "" {
				out = append(out, name)
			}
		}
		*s = strings.Join(out, "; ")
	}
}
