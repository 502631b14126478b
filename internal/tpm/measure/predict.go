package measure

import (
	"encoding/hex"
	"fmt"

	"github.com/turnout-project/turnout/internal/manifest"
)

// Strings and bytes that the firmware measures around boot applications
// (TCG PC Client Platform Firmware Profile section 10.4.4).
const (
	ActionCalling   = "Calling EFI Application from Boot Option"
	ActionReturning = "Returning from EFI Application from Boot Option"
	Separator       = "\x00\x00\x00\x00"
)

// Words that nodeagent, as PID 1 of the initrd, extends into PCR 11 in every
// active bank (without a zero byte, like systemd-pcrphase).
const (
	WordEnterInitrd = "enter-initrd"
	WordLeaveInitrd = "leave-initrd"
)

// Phases are the boot phases for which PCR 11 is predicted; each is its
// words joined by colons.
var Phases = []string{"", WordEnterInitrd, WordEnterInitrd + ":" + WordLeaveInitrd}

// Boot paths of Predict.
const (
	PathDisk      = "disk"      // firmware, systemd-boot, UKI
	PathNetwork   = "network"   // firmware, UKI
	PathInstaller = "installer" // firmware, installer UKI
)

// Names of boot applications.
const (
	AppLoader    = "systemd-boot"
	AppUKI       = "UKI"
	AppInstaller = "installer UKI"
	AppKernel    = "kernel inside the UKI"
)

// Input is what an image boots from. All three are needed.
type Input struct {
	UKI       []byte // boots a slot
	Installer []byte // boots the installer
	Loader    []byte // systemd-boot
}

// Predict returns the measurements of the finished boot files of an image.
func Predict(in Input) (manifest.Measurements, error) {
	var m manifest.Measurements
	uki, err := ReadUKI(in.UKI)
	if err != nil {
		return m, fmt.Errorf("UKI: %w", err)
	}
	installer, err := ReadUKI(in.Installer)
	if err != nil {
		return m, fmt.Errorf("installer UKI: %w", err)
	}
	if uki.StubVersion != installer.StubVersion {
		return m, fmt.Errorf("UKI has systemd-stub %s, installer UKI has %s: make both from one stub", uki.StubVersion, installer.StubVersion)
	}
	loader, err := application(AppLoader, in.Loader)
	if err != nil {
		return m, err
	}
	cmdline, err := uki.cmdlineEvent()
	if err != nil {
		return m, fmt.Errorf("UKI: %w", err)
	}
	slotApps, err := uki.applications(AppUKI)
	if err != nil {
		return m, err
	}
	installerApps, err := installer.applications(AppInstaller)
	if err != nil {
		return m, err
	}
	return manifest.Measurements{
		StubVersion: uki.StubVersion,
		Paths: []manifest.BootPath{
			path(PathDisk, append([]manifest.Application{loader}, slotApps...)),
			path(PathNetwork, slotApps),
			path(PathInstaller, installerApps),
		},
		PCR11:             uki.PCR11(),
		Installer11:       installer.PCR11(),
		Sections:          uki.digests(),
		SectionsInstaller: installer.digests(),
		Zero:              []int{12, 13},
		Cmdline:           cmdline,
	}, nil
}

func application(name string, pe []byte) (manifest.Application, error) {
	d, err := Authenticode(pe)
	if err != nil {
		return manifest.Application{}, fmt.Errorf("%s: %w", name, err)
	}
	return manifest.Application{Name: name, Authenticode: d}, nil
}

// applications returns what the firmware measures when it starts u: the file
// and, where the stub starts the kernel with LoadImage, the kernel in it.
// With Secure Boot on the stub keeps the firmware from checking, and so from
// measuring, that kernel; hence it is optional. Nothing is lost by that: the
// kernel is part of what was hashed for the file.
func (u *UKI) applications(name string) ([]manifest.Application, error) {
	d, err := u.im.authenticode()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	apps := []manifest.Application{{Name: name, Authenticode: d}}
	if !u.rule.kernel {
		return apps, nil
	}
	k, err := u.kernel()
	if err != nil {
		return nil, err
	}
	kernel, err := application(AppKernel, k)
	if err != nil {
		return nil, err
	}
	kernel.Optional = true
	return append(apps, kernel), nil
}

func path(name string, apps []manifest.Application) manifest.BootPath {
	p := manifest.BootPath{Name: name, Applications: apps, PCR4: manifest.Digests{}}
	for _, bank := range Banks {
		v := NewPCR(bank)
		v.Measure([]byte(ActionCalling))
		v.Measure([]byte(Separator))
		for _, a := range apps {
			if err := v.extendHex(a.Authenticode[bank]); err != nil {
				panic(err) // the digests were made by this package
			}
		}
		p.PCR4[bank] = v.Hex()
	}
	return p
}

// PCR11 returns the value of PCR 11 in each of Phases.
func (u *UKI) PCR11() []manifest.PhaseValue {
	base := map[string]*PCR{}
	for _, bank := range Banks {
		v := NewPCR(bank)
		for _, s := range u.Sections {
			name, contents := s.digests(bank)
			v.Extend(name)
			v.Extend(contents)
		}
		base[bank] = v
	}
	var out []manifest.PhaseValue
	for _, phase := range Phases {
		d := manifest.Digests{}
		for bank, v := range base {
			c := v.Clone()
			c.MeasurePhase(phase)
			d[bank] = c.Hex()
		}
		out = append(out, manifest.PhaseValue{Phase: phase, PCR: d})
	}
	return out
}

// digests returns the digests of the contents of the measured sections.
func (u *UKI) digests() []manifest.UKISection {
	var out []manifest.UKISection
	for _, s := range u.Sections {
		d := manifest.Digests{}
		for _, bank := range Banks {
			_, contents := s.digests(bank)
			d[bank] = hex.EncodeToString(contents)
		}
		out = append(out, manifest.UKISection{Name: s.Name, Digest: d})
	}
	return out
}
