package bmc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/stmcginnis/gofish"
	"github.com/stmcginnis/gofish/common"
	"github.com/stmcginnis/gofish/redfish"
)

// Session is an open conversation with a BMC. One goroutine at a time. It
// must be closed: BMCs allow few sessions.
type Session struct {
	target Target
	ctx    context.Context
	c      *gofish.APIClient
	system *redfish.ComputerSystem
	quirks quirks
	http   *http.Client
}

// Open logs in and finds the machine. ctx bounds the whole session but for
// its end.
func Open(ctx context.Context, t Target) (*Session, error) {
	hc, err := t.httpClient(ctx)
	if err != nil {
		return nil, err
	}
	s := &Session{target: t, ctx: ctx, http: hc}
	conf := gofish.ClientConfig{Endpoint: t.URL, Username: t.User, Password: t.Password, HTTPClient: hc}
	s.c, err = gofish.ConnectContext(context.WithoutCancel(ctx), conf)
	if st := statusOf(err); st == http.StatusNotFound || st == http.StatusMethodNotAllowed || st == http.StatusNotImplemented {
		conf.BasicAuth = true // a service without sessions
		s.c, err = gofish.ConnectContext(context.WithoutCancel(ctx), conf)
	}
	if err != nil {
		hc.CloseIdleConnections()
		return nil, s.explain("logging in", err)
	}
	if err := s.findSystem(); err != nil {
		s.Close()
		return nil, err
	}
	s.quirks = quirksOf(Kind{Vendor: s.system.Manufacturer, Service: s.c.Service.Vendor, Model: s.system.Model, Product: s.c.Service.Product})
	return s, nil
}

// Close ends the session on the BMC.
func (s *Session) Close() {
	if auth, err := s.c.GetSession(); err == nil && auth.ID != "" {
		s.c.Logout()
	}
	s.http.CloseIdleConnections()
}

// findSystem picks the machine: the one that was named, else the only one
// that is a computer of its own. Baseboards and DPUs are systems too.
func (s *Session) findSystem() error {
	all, err := s.c.Service.Systems()
	if len(all) == 0 {
		if err == nil {
			err = errors.New("it has none")
		}
		return s.explain("listing systems", err)
	}
	var ids []string
	var fit []*redfish.ComputerSystem
	for _, x := range all {
		ids = append(ids, x.ID)
		if x.ID == s.target.System {
			s.system = x
			return nil
		}
		if !isPart(x.ID, string(x.SystemType)) {
			fit = append(fit, x)
		}
	}
	if s.target.System != "" || len(fit) != 1 {
		what := "it has several systems"
		if s.target.System != "" {
			what = fmt.Sprintf("it has no system %q", s.target.System)
		}
		return fmt.Errorf("BMC %s: %s: %s; say which with `pxeserver bmc set --system`", s.target.URL, what, strings.Join(ids, ", "))
	}
	s.system = fit[0]
	return nil
}

// explain says what went wrong to a person.
func (s *Session) explain(doing string, err error) error {
	if err == nil {
		return nil
	}
	var unknown *UnknownCertificateError
	if errors.As(err, &unknown) {
		return unknown
	}
	if s.ctx.Err() != nil {
		return fmt.Errorf("BMC %s: %s: %w", s.target.URL, doing, s.ctx.Err())
	}
	var e *common.Error
	if errors.As(err, &e) {
		msg := e.Message
		for _, i := range e.ExtendedInfos {
			if i.Message != "" {
				msg = i.Message
				break
			}
		}
		if e.HTTPReturnedStatusCode == http.StatusUnauthorized || e.HTTPReturnedStatusCode == http.StatusForbidden {
			msg = "user or password refused"
		}
		return &Error{s.target.URL, doing, e.HTTPReturnedStatusCode, oneLine(msg)}
	}
	return fmt.Errorf("BMC %s: %s: %w", s.target.URL, doing, err)
}

// Error is a refusal by a BMC.
type Error struct {
	URL, Doing string
	Status     int    // of HTTP
	Message    string // the BMC's, untrusted
}

func (e *Error) Error() string {
	return fmt.Sprintf("BMC %s: %s: %d %s: %s", e.URL, e.Doing, e.Status, http.StatusText(e.Status), e.Message)
}

func statusOf(err error) int {
	var e *common.Error
	if errors.As(err, &e) {
		return e.HTTPReturnedStatusCode
	}
	return 0
}

// oneLine makes a BMC's text safe to print.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	return strings.TrimSpace(s)
}

// get reads a resource into v.
func (s *Session) get(path string, v any) (etag string, err error) {
	resp, err := s.c.Get(path)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return resp.Header.Get("ETag"), nil
}

type link struct {
	ID string `json:"@odata.id"`
}

type collection struct {
	Members []link
	Next    string `json:"Members@odata.nextLink"`
}

// maxMembers bounds how much of a collection is read.
const maxMembers = 2000

// members lists the links of a collection, over all its pages.
func (s *Session) members(path string) ([]string, error) {
	var out []string
	for path != "" && len(out) < maxMembers {
		var c collection
		if _, err := s.get(path, &c); err != nil {
			return out, err
		}
		for _, m := range c.Members {
			if strings.HasPrefix(m.ID, "/") && !slices.Contains(out, m.ID) {
				out = append(out, m.ID)
			}
		}
		if path = c.Next; len(c.Members) == 0 {
			break
		}
	}
	return out, nil
}
