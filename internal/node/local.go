package node

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// localFile is the agent's memory on the state partition.
const localFile = "agent.json"

// local is what the agent remembers over reboots. It may be lost: the
// generations on the ESP say what was acted on, and an arming of unknown
// origin is cancelled.
type local struct {
	Acted     uint64 `json:"acted,omitempty"`     // highest desired generation acted on
	ArmedBoot string `json:"armedBoot,omitempty"` // id of the boot whose agent armed the other slot
	Refused   string `json:"refused,omitempty"`   // why the wish of generation Acted was not carried out
}

// readLocal returns an empty memory for one that is missing or damaged.
func readLocal(dir string) local {
	var l local
	b, err := os.ReadFile(filepath.Join(dir, localFile))
	if err != nil || json.Unmarshal(b, &l) != nil {
		return local{}
	}
	return l
}

// write stores the memory durably.
func (l local) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(dir, localFile), b, 0o644)
}
