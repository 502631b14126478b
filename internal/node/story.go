package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"
)

// The story is kept on the node, too, for a technician without a server: the
// newest part of it, a JSON object a line.
const (
	storyFile = "story.jsonl"
	storyMost = 256 << 10 // bytes, then the older half goes
)

// StoryLine is one thing that the agent did or found.
type StoryLine struct {
	At      time.Time `json:"at"` // the node's clock
	BootID  string    `json:"bootID"`
	Kind    string    `json:"kind"`
	Message string    `json:"message"`
}

// writeStory appends a line. It is only told: nothing rests on it, and what
// cannot be written is left out.
func (a *Agent) writeStory(kind, message string) error {
	b, err := json.Marshal(StoryLine{time.Now().UTC(), a.cfg.Info.BootID, kind, message})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(a.cfg.Dir, 0o755); err != nil {
		return err
	}
	path := filepath.Join(a.cfg.Dir, storyFile)
	if err := shorten(path); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	return errors.Join(err, f.Close())
}

// shorten keeps the newer half of a story that has grown too long.
func shorten(path string) error {
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && st.Size() < storyMost {
		return nil
	}
	if err != nil {
		return err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	b = b[len(b)/2:]
	return renameio.WriteFile(path, b[bytes.IndexByte(b, '\n')+1:], 0o644)
}

// ReadStory returns the newest lines of the story in the agent's folder; a
// line that a power cut left half is passed over.
func ReadStory(dir string, most int) ([]StoryLine, error) {
	b, err := os.ReadFile(filepath.Join(dir, storyFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []StoryLine
	for _, line := range bytes.Split(b, []byte("\n")) {
		var l StoryLine
		if json.Unmarshal(line, &l) == nil && l.Kind != "" {
			out = append(out, l)
		}
	}
	if most > 0 && len(out) > most {
		out = out[len(out)-most:]
	}
	return out, nil
}
