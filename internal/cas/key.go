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
	work, err := os.MkdirTemp(filepath.Join(s.dir, "tmp"), "key-")
	if err != nil {
		return "", fmt.Errorf("store: %w", err)
	}
	defer os.RemoveAll(work)
	result := filepath.Join(work, "result")
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
