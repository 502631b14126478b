package abslot

import (
	"context"
	"io"

	"github.com/turnout-project/turnout/internal/fleet"
)

// File is one file of a folder of the ESP.
type File struct {
	Name      string // base name in the case it was written
	SizeBytes int64
}

// ReadAtCloser is an open file.
type ReadAtCloser interface {
	io.ReaderAt
	io.Closer
}

// ESP is where slot states are kept: the files of an EFI system partition.
// Paths are relative, with forward slashes ("EFI/Linux/x.efi"). Each call
// that changes something is durable when it returns nil. Carriers report a
// missing file as ErrNotExist, a full partition as ErrNoSpace and one that
// cannot be written as ErrReadOnly. They need not be safe for concurrent use.
type ESP interface {
	// List returns the plain files of a folder in directory order; a folder
	// that does not exist is empty.
	List(ctx context.Context, dir string) ([]File, error)
	// Open opens a file for reading.
	Open(ctx context.Context, path string) (ReadAtCloser, int64, error)
	// Put writes a whole file of exactly size bytes. The path shows the old
	// content (or nothing) until the new one is on the disk. While it runs
	// there may be a file with tempSuffix beside it.
	Put(ctx context.Context, path string, r io.Reader, size int64) error
	// Rename gives a file a new name in its folder; the name must be free
	// (ErrExist). It is the one step that changes a slot's state.
	Rename(ctx context.Context, oldPath, newPath string) error
	// Remove deletes a file; one that does not exist is no error.
	Remove(ctx context.Context, path string) error
}

// Locker is implemented by carriers that can keep other processes out. Lock
// does not wait: it returns ErrBusy when somebody else holds the lock.
type Locker interface {
	Lock(ctx context.Context) (unlock func(), err error)
}

// BootPath says how the running system was started.
type BootPath string

// The boot paths, as in api.AttestRequest.Path.
const (
	PathDisk      BootPath = "disk"      // through the loader on the ESP
	PathNetwork   BootPath = "network"   // the slot's UKI came over the network: not counted
	PathInstaller BootPath = "installer" // no slot is booted
)

// Evidence is what independent witnesses say of the running system. All
// fields but BootID and Path may be empty.
type Evidence struct {
	BootID    string     // /proc/sys/kernel/random/boot_id
	Path      BootPath   // see there
	Entry     string     // EFI variable LoaderEntrySelected: "g000007-0123456789ab.efi"
	CountPath string     // EFI variable LoaderBootCountPath: `\EFI\Linux\g000007-0123456789ab+1-1.efi`; "" when the loader did not count
	RootHash  string     // roothash= of the kernel command line, hex
	Backing   fleet.Slot // slot whose partitions back the root file system
	Kexec     bool       // the kernel was started by another kernel
}

// Config is what a Machine works with. ESP, Booted, SlotHash and UKIHash are
// required.
type Config struct {
	ESP ESP
	// Booted gathers the evidence.
	Booted func(ctx context.Context) (Evidence, error)
	// SlotHash returns the root hash (hex) of the verity tree in the slot's
	// partition, computed from its top block, and "" when there is none. An
	// error means the partition could not be read.
	SlotHash func(ctx context.Context, s fleet.Slot) (string, error)
	// UKIHash returns the value of roothash= in the .cmdline section of a
	// UKI of size bytes.
	UKIHash func(r io.ReaderAt, size int64) (string, error)
	// Log gets one line per transition; nil is quiet.
	Log func(format string, args ...any)
}
