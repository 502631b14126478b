package nodereport

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

//go:embed report.html.tmpl
var page string

// what says a fact in words.
var what = func() map[string]string {
	m := map[string]string{}
	for _, i := range IDs {
		m[i.ID] = i.What
	}
	return m
}()

var pageTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	"what": func(id string) string { return what[id] },
	"time": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
	"gib":  func(b uint64) string { return fmt.Sprintf("%.1f GiB", float64(b)/(1<<30)) },
	"gb":   func(b uint64) string { return fmt.Sprintf("%.0f GB", float64(b)/1e9) },
	"class": func(c fleet.CheckResult) string {
		if c.Class == "" {
			return string(fleet.FaultSoftware)
		}
		return string(c.Class)
	},
	"pcr": func(n int) string {
		if n < 0 {
			return ""
		}
		return fmt.Sprint(n)
	},
	"join": strings.Join,
}).Parse(page))

// The signed report is in the page, between these.
const (
	dataOpen  = `<script type="application/json" id="turnout-report">`
	dataClose = `</script>`
)

// HTML shows a report as one page that needs nothing else: it loads and runs
// nothing. The signed report is inside, so that the page can be verified; the
// same report makes the same bytes.
func HTML(s *Signed) ([]byte, error) {
	r, err := s.Read()
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(s) // escapes <, > and &
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, struct {
		*Report
		Key  string
		Data template.HTML
	}{r, s.Key, template.HTML(dataOpen + string(raw) + dataClose)}); err != nil { //nolint:gosec // JSON with <, > and & escaped
		return nil, fmt.Errorf("report: %w", err)
	}
	return b.Bytes(), nil
}

// ErrPage says that a page does not show the report that is inside.
var ErrPage = errors.New("the page does not show the report that is inside it")

// Parse reads a signed report from JSON or from a page. Of a page it also
// says, as ErrPage, whether what it shows is what is inside; the report is
// returned all the same.
func Parse(b []byte) (*Signed, error) {
	text := b
	isPage := !bytes.HasPrefix(bytes.TrimSpace(b), []byte("{"))
	if isPage {
		_, rest, ok := bytes.Cut(b, []byte(dataOpen))
		data, _, ok2 := bytes.Cut(rest, []byte(dataClose))
		if !ok || !ok2 {
			return nil, errors.New("this is no report: neither JSON, nor a page with one inside")
		}
		text = data
	}
	s := &Signed{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	if len(s.Report) == 0 || len(s.Signature) == 0 {
		return nil, errors.New("this is no signed report")
	}
	if !isPage {
		return s, nil
	}
	again, err := HTML(s)
	if err == nil && !bytes.Equal(again, b) {
		err = ErrPage
	}
	return s, err
}
