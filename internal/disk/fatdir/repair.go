package fatdir

import (
	"errors"
	"fmt"
	"io"
)

// Device is a block device or an image of one.
type Device interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
}

// Dedupe deletes names of a folder that share their first cluster with
// another file of it, until one is left: what a power cut in the middle of a
// rename leaves when the new name is on the disk and the old one still is.
// better reports whether a is to be kept rather than b. Only directory slots
// are written, so the content stays. The volume must not be mounted: a mounted
// file system can only delete a name together with its content. It returns
// the names it deleted. A folder that does not exist is no error.
func Dedupe(dev Device, start int64, dir string, better func(a, b string) bool) ([]string, error) {
	v, err := Open(dev, start)
	if err != nil {
		return nil, err
	}
	entries, err := v.List(dir)
	if errors.Is(err, errNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading folder %s: %w", dir, err)
	}
	var deleted []string
	kept := map[uint32]Entry{}
	for _, e := range entries {
		if e.IsDir || e.Cluster == 0 {
			continue
		}
		o, clash := kept[e.Cluster]
		if !clash {
			kept[e.Cluster] = e
			continue
		}
		if better(e.Name, o.Name) {
			kept[e.Cluster], e = e, o
		}
		if err := remove(dev, e); err != nil {
			return deleted, fmt.Errorf("deleting the name %s: %w", e.Name, err)
		}
		deleted = append(deleted, e.Name)
	}
	return deleted, nil
}

// remove marks the slots of an entry free. The long slots go last: until the
// short one is gone they still give it its full name.
func remove(dev Device, e Entry) error {
	for i := len(e.Slots) - 1; i >= 0; i-- {
		if _, err := dev.WriteAt([]byte{slotFree}, e.Slots[i]); err != nil {
			return err
		}
	}
	return dev.Sync()
}
