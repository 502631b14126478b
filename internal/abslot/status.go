package abslot

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/turnout-project/turnout/internal/fleet"
)

// SlotStatus is one slot as its files show it.
type SlotStatus struct {
	Slot       fleet.Slot
	State      fleet.SlotState
	Short      string // short digest of the image, "" when not known
	Generation uint64 // 0 unless a bootable UKI has one
	RootHash   string // of the verity tree in the partition, "" when there is none
	TriesLeft  int    // as in the file name
	TriesDone  int
	File       string // path on the ESP, "" when there is no UKI
	Reason     string // why it is bad, where the journal knows
}

// Status is what a node knows of its slots. It can be had in every state of
// the disk that can be read at all; whether the slots may be written is
// another matter, told by Problem.
type Status struct {
	Evidence Evidence
	// Booted is the slot that runs, by the root hash and the backing
	// partition; NoSlot in the installer.
	Booted fleet.Slot
	// BootedFile is the path of the UKI the loader started, "" when the boot
	// came over the network or the file is gone.
	BootedFile string
	// Counted is true when the loader counted this boot against BootedFile.
	Counted bool
	Slots   [2]SlotStatus // A, B
	// Strays are bootable files that belong to neither slot.
	Strays []string
	// NextGeneration is one more than any generation seen on the ESP.
	NextGeneration uint64
	// Problem is nil when all evidence agrees. While it is not, every
	// transition is refused with it; it wraps ErrEvidence or ErrTorn.
	Problem error
}

// Slot returns the status of one slot. It panics on NoSlot, as
// fleet.Slot.Index does.
func (s *Status) Slot(x fleet.Slot) *SlotStatus { return &s.Slots[x.Index()] }

// Report returns the slots as a heartbeat carries them; image digests and
// names are left to the caller, who has the manifests.
func (s *Status) Report() []fleet.SlotReport {
	var out []fleet.SlotReport
	for _, x := range s.Slots {
		out = append(out, fleet.SlotReport{
			Slot: x.Slot, State: x.State, Generation: x.Generation, RootHash: x.RootHash,
			TriesLeft: x.TriesLeft, TriesDone: x.TriesDone, Reason: x.Reason,
		})
	}
	return out
}

// Status reads slots and evidence. An error means that the ESP or the
// evidence could not be read at all; disagreement, and a slot partition that
// cannot be read, are not errors but Status.Problem.
func (m *Machine) Status(ctx context.Context) (Status, error) {
	v, err := m.look(ctx)
	if err != nil {
		return Status{}, err
	}
	return v.Status, nil
}

// view is a Status with what the transitions need beside it.
type view struct {
	Status
	journal  journal
	boot     [2][]Name   // bootable names per slot
	staged   [2][]string // paths of staged UKIs per slot
	leftover []File      // files in LinuxDir that no loader starts and no slot needs
	all      []Name      // every bootable name in our grammar
	unread   error       // slot partitions that could not be read
}

// look gathers everything. It changes nothing.
func (m *Machine) look(ctx context.Context) (*view, error) {
	v := &view{journal: m.readJournal(ctx)}
	for i, s := range fleet.Slots {
		h, err := m.cfg.SlotHash(ctx, s)
		if err != nil {
			v.unread = errors.Join(v.unread, fmt.Errorf("%w: verity tree of slot %s: %w", ErrEvidence, s, err))
		}
		v.Slots[i] = SlotStatus{Slot: s, State: fleet.SlotEmpty, RootHash: strings.ToLower(h)}
	}
	var err error
	if v.Evidence, err = m.cfg.Booted(ctx); err != nil {
		return nil, fmt.Errorf("reading evidence of the booted slot: %w", err)
	}
	v.Evidence.RootHash = strings.ToLower(v.Evidence.RootHash)
	files, err := m.cfg.ESP.List(ctx, LinuxDir)
	if err != nil {
		return nil, fmt.Errorf("listing UKIs: %w", err)
	}
	v.NextGeneration = 1
	for _, f := range files {
		m.sort(ctx, v, f)
	}
	for i := range v.Slots {
		v.derive(i)
	}
	v.Problem = errors.Join(v.unread, v.agree(), v.torn())
	if v.Problem == nil {
		v.trial()
	}
	return v, nil
}

// sort puts one file of LinuxDir where it belongs.
func (m *Machine) sort(ctx context.Context, v *view, f File) {
	path := LinuxDir + "/" + f.Name
	short, isStaged := strings.CutSuffix(f.Name, stagedSuffix)
	if !isBootable(f.Name) && (!isStaged || CheckShort(short) != nil) {
		v.leftover = append(v.leftover, f)
		return
	}
	n, err := ParseName(f.Name)
	if err == nil {
		short = n.Short
		v.all = append(v.all, n)
		v.NextGeneration = max(v.NextGeneration, n.Generation+1)
	} else if !isStaged {
		v.Strays = append(v.Strays, path)
		return
	}
	i := v.holder(m.hashOf(ctx, path, short))
	switch {
	case i >= 0 && isStaged:
		v.staged[i] = append(v.staged[i], path)
	case i >= 0:
		v.boot[i] = append(v.boot[i], n)
	case isStaged:
		v.leftover = append(v.leftover, f)
	default:
		v.Strays = append(v.Strays, path)
	}
}

// holder returns the index of the slot that holds a root hash, or -1. Where
// both do, it is the booted one: the other then has no UKI, and cannot get
// one before it is written anew.
func (v *view) holder(hash string) int {
	found := -1
	for i, s := range v.Slots {
		if hash != "" && s.RootHash == hash && (found < 0 || s.Slot == v.Evidence.Backing) {
			found = i
		}
	}
	return found
}

// hashOf returns the root hash a UKI boots, read from the UKI itself, else
// from the manifest copy of that name, else "".
func (m *Machine) hashOf(ctx context.Context, path, short string) string {
	f, size, err := m.cfg.ESP.Open(ctx, path)
	if err == nil {
		defer f.Close()
		if h, err := m.cfg.UKIHash(f, size); err == nil && h != "" {
			return strings.ToLower(h)
		}
	}
	b, err := m.readFile(ctx, manifestPath(short))
	if err != nil {
		return ""
	}
	return rootHashIn(b)
}

// derive sets the state of slot i from its files. Of several bootable names
// (an interrupted rename) the one that promises least counts.
func (v *view) derive(i int) {
	s := &v.Slots[i]
	switch {
	case len(v.boot[i]) > 0:
		n := v.boot[i][0]
		for _, o := range v.boot[i][1:] {
			if promise(o) < promise(n) {
				n = o
			}
		}
		s.State, s.Short, s.Generation = stateOf(n), n.Short, n.Generation
		s.TriesLeft, s.TriesDone, s.File = n.Left, n.Done, LinuxDir+"/"+n.String()
	case len(v.staged[i]) > 0:
		s.State, s.File = fleet.SlotStaged, v.staged[i][0]
		s.Short = strings.TrimSuffix(s.File[len(LinuxDir)+1:], stagedSuffix)
	case v.journal.Slots[s.Slot].Writing:
		s.State = fleet.SlotWriting
	}
	if s.State == fleet.SlotBad {
		s.Reason = v.journal.reason(s.Short, s.TriesDone)
	}
}

// promise orders names from "never start" to "confirmed".
func promise(n Name) int {
	switch stateOf(n) {
	case fleet.SlotBad:
		return 0
	case fleet.SlotTrying:
		return 1
	case fleet.SlotArmed:
		return 2
	default:
		return 3
	}
}

// lastTrial tells the last granted trial boot, whose file name already reads
// +0-k, from a boot of a slot that had no tries left to begin with.
func (v *view) lastTrial(i int) bool {
	s := v.Slots[i]
	if s.State != fleet.SlotBad || s.TriesDone == 0 || s.TriesDone >= condemnedDone || !v.Counted || v.Booted != s.Slot {
		return false
	}
	// The loader puts names without tries last. Where it had another choice
	// and still took this one, it had tries.
	for _, n := range v.all {
		if n.Stem() != v.boot[i][0].Stem() && (!n.Counted || n.Left > 0) {
			return true
		}
	}
	// No other choice: only the journal knows how many were granted.
	return v.journal.Slots[s.Slot].Granted == s.TriesDone
}

// trial marks a booted slot on its last trial as trying.
func (v *view) trial() {
	if v.Booted == fleet.NoSlot {
		return
	}
	if i := v.Booted.Index(); v.lastTrial(i) {
		v.Slots[i].State, v.Slots[i].Reason = fleet.SlotTrying, ""
	}
}

// OpenUKI opens the UKI of a slot for reading, as one to compare with. A slot
// that has none is ErrNotExist. It changes nothing, and takes no lock: the
// caller sees to it that the slot is not written meanwhile.
func (m *Machine) OpenUKI(ctx context.Context, s fleet.Slot) (ReadAtCloser, int64, error) {
	st, err := m.Status(ctx)
	if err != nil {
		return nil, 0, err
	}
	path := st.Slot(s).File
	if path == "" {
		return nil, 0, fmt.Errorf("UKI of slot %s: %w", s, ErrNotExist)
	}
	return m.cfg.ESP.Open(ctx, path)
}
