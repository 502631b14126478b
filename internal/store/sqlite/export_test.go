package sqlite

import (
	"fmt"
	"testing"
)

// SetVersion marks the file at path as written by another program version.
func SetVersion(t *testing.T, path string, v int) {
	t.Helper()
	db, err := connect(path, "", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(fmt.Sprintf("PRAGMA user_version = %d", v)); err != nil {
		t.Fatal(err)
	}
}
