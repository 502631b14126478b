package cas

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// keyPath returns where the result of key is or would be.
func (s *Store) keyPath(key string) string {
	h := sha256.Sum256([]byte(key))
	name := hex.EncodeToString(h[:])
	return filepath.Join(s.dir, "keys", name[:2], name)
}

// GetKey returns the path of the result stored under key: a file, or a
// folder. The caller must not change it. Any text may be a key; it must name
// all inputs of the result, the version of the program that makes it too.
func (s *Store) GetKey(key string) (path string, ok bool) {
	path = s.keyPath(key)
	_, err := os.Lstat(path)
	if err == nil {
		touch(path)
	}
	return path, err == nil
}

// PutKey has write make a file or a folder at a path inside the store and
// stores it under key, whole or not at all. If another process was faster,
// its result stays. It returns the path of the result.
func (s *Store) PutKey(key string, write func(path string) error) (string, error) {
	final := s.keyPath(key)
	if err := os.MkdirAll(filepath.Dir(final), 0o755); err != nil {
		return "", fmt.Errorf("store: %w", err)
	}
	work, err := s.scratch()
	if err != nil {
		return "", fmt.Errorf("store: %w", err)
	}
	defer func() { _ = work.Close() }() // ends the lock
	defer func() { _ = os.RemoveAll(work.Name()) }()
	result := filepath.Join(work.Name(), "result")
	if err := write(result); err != nil {
		return "", err
	}
	if err := settle(result); err != nil {
		return "", fmt.Errorf("store: %w", err)
	}
	if _, err := os.Lstat(final); err == nil {
		return final, nil
	}
	err = os.Rename(result, final)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTEMPTY) {
		return final, nil // a folder that another process put there meanwhile
	}
	if err != nil {
		return "", fmt.Errorf("store: %w", err)
	}
	return final, nil
}

// scratchPrefix begins the names of folders in which results are made.
const scratchPrefix = "result-"

// scratch makes a folder for a result and locks it for as long as the file
// that it returns is open. Folders that nobody holds were left by processes
// that were killed: they are removed.
func (s *Store) scratch() (*os.File, error) {
	tmp := filepath.Join(s.dir, "tmp")
	parent, err := os.Open(tmp)
	if err != nil {
		return nil, err
	}
	defer func() { _ = parent.Close() }() // ends the lock: one process at a time makes or removes
	if err := syscall.Flock(int(parent.Fd()), syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("locking %s: %w", tmp, err)
	}
	left, err := filepath.Glob(filepath.Join(tmp, scratchPrefix+"*"))
	if err != nil {
		return nil, err
	}
	for _, dir := range left {
		f, err := os.Open(dir)
		if err != nil {
			continue // its owner removed it meanwhile
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			err = os.RemoveAll(dir)
		}
		_ = f.Close() // a folder
		if err != nil {
			return nil, err
		}
	}
	dir, err := os.MkdirTemp(tmp, scratchPrefix)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", dir, err), f.Close())
	}
	return f, nil
}

// settle makes the bytes of a result durable before its name appears.
func settle(path string) error {
	st, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if st.Mode().IsRegular() {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return f.Sync()
	}
	return syncFilesystem(path)
}
