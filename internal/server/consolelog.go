package server

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/turnout-project/turnout/internal/api"
)

// Bounds of a node's console log as it is shown, in bytes.
const (
	consoleUsual = 16 << 10
	consoleMost  = 1 << 20
)

// consoleLog answers with the end of a node's serial console, as the site's
// console server (conserver, ipmitool, a BMC's own) keeps it in a file.
func (s *Server) consoleLog(_ http.ResponseWriter, r *http.Request, _ string) (any, error) {
	n, err := s.Store.Node(r.Context(), r.PathValue("node"))
	if err != nil {
		return nil, err
	}
	want := consoleUsual
	if q := r.URL.Query().Get("bytes"); q != "" {
		if want, err = strconv.Atoi(q); err != nil || want < 1 || want > consoleMost {
			return nil, problem(http.StatusBadRequest, "", "bytes %q: want 1 to %d", q, consoleMost)
		}
	}
	if s.live().ConsoleLogs == "" {
		return nil, problem(http.StatusNotFound, "name the files of your console server in console_logs of the configuration", "no console logs are kept here")
	}
	path := strings.ReplaceAll(s.live().ConsoleLogs, "{node}", n.Name)
	out, err := tail(path, int64(want))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, problem(http.StatusNotFound, "does the console server write there? is the node's console connected?", "there is no console log of %s", n.Name)
	}
	return out, err
}

// tail reads the end of a file, beginning with a whole line, as text. It
// opens only below the folder, so that neither a name nor a link leads out.
func tail(path string, most int64) (*api.ConsoleLog, error) {
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.Open(filepath.Base(path))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fs.ErrNotExist
	}
	from := max(st.Size()-most, 0)
	b, err := io.ReadAll(io.NewSectionReader(f, from, most))
	if err != nil {
		return nil, err
	}
	text := consoleText(b)
	if i := strings.IndexByte(text, '\n'); from > 0 && i >= 0 {
		text = text[i+1:]
	}
	return &api.ConsoleLog{Text: text, Size: st.Size(), Changed: st.ModTime()}, nil
}

// sequences are commands to a terminal (ECMA-48): firmware draws its menus
// with them.
var sequences = regexp.MustCompile("\x1b(\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(\x07|\x1b\\\\)?|[ -/]*[0-~])")

// consoleText makes lines of text out of what went over a serial line.
func consoleText(b []byte) string {
	s := sequences.ReplaceAllString(string(b), "")
	s = strings.ReplaceAll(s, "\r\n", "\n")
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r == '\r':
			return '\n'
		case r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == utf8.RuneError:
			return -1
		}
		return r
	}, s)
}
