package cas

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncFilesystem writes out all of the file system that path is on: one call
// for a folder of many files.
func syncFilesystem(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}
