package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// RemoveBlob deletes a blob. Whoever reads it goes on reading. Removing what
// is not there is no error; that nothing refers to it is the caller's care.
func (l *Layout) RemoveBlob(digest string) error {
	path, err := l.blobPath(digest)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing blob %s: %w", digest, err)
	}
	return nil
}
