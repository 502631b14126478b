// Package attempts counts starts of an image that never came to local health.
// It catches what the loader cannot: a confirmed slot whose system hangs or
// crashes again and again before its agent can speak. The initrd counts up,
// the service counts down; the file lies on the state partition and may be
// lost, which only starts the count anew.
package attempts

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// Limit is how many starts in a row without local health a slot may have.
// The start after that condemns it, if the other slot is good.
const Limit = 3

// Name is the file's name in the agent's folder of /var/lib.
const Name = "attempts.json"

// Ledger is the count.
type Ledger struct {
	RootHash string `json:"rootHash"` // of the image that was started last
	Starts   int    `json:"starts"`   // in a row without local health
}

// Start returns the ledger with one more start of an image.
func (l Ledger) Start(rootHash string) Ledger {
	if l.RootHash != rootHash {
		return Ledger{RootHash: rootHash, Starts: 1}
	}
	return Ledger{RootHash: rootHash, Starts: l.Starts + 1}
}

// Exhausted reports whether the start that was just counted is one too many.
func (l Ledger) Exhausted() bool { return l.Starts > Limit }

// Healthy returns the ledger once an image came to local health.
func (l Ledger) Healthy(rootHash string) Ledger { return Ledger{RootHash: rootHash} }

// Read loads the ledger from a folder. One that is missing or damaged is an
// empty one.
func Read(dir string) (Ledger, error) {
	b, err := os.ReadFile(filepath.Join(dir, Name))
	if errors.Is(err, os.ErrNotExist) {
		return Ledger{}, nil
	}
	if err != nil {
		return Ledger{}, err
	}
	var l Ledger
	if json.Unmarshal(b, &l) != nil || l.Starts < 0 {
		return Ledger{}, nil
	}
	return l, nil
}

// Write stores the ledger in a folder, which it makes, and flushes it: a
// count that a power cut takes back counts nothing.
func Write(dir string, l Ledger) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(dir, Name), b, 0o644)
}
