package bmc

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"

	"github.com/stmcginnis/gofish/common"

	"github.com/turnout-project/turnout/internal/fleet"
)

// updateDoc is the part of UpdateService that says how files are pushed
// (DSP0266, "Multipart HTTP push updates").
type updateDoc struct {
	Multipart string `json:"MultipartHttpPushUri"`
	Plain     string `json:"HttpPushUri"`
}

// Update pushes a firmware file of a size to the BMC, which installs it by
// itself: ask Task how it goes. targets are Redfish paths of firmware to
// update, none to leave that to the BMC.
//
// Firmware is not part of an image: no slot flip takes an update back.
func (s *Session) Update(name string, file io.Reader, size int64, targets []string) (*fleet.BMCTask, error) {
	var u updateDoc
	if _, err := s.get("/redfish/v1/UpdateService", &u); err != nil {
		return nil, s.explain("reading its update service", err)
	}
	var body io.Reader
	kind, path := "application/octet-stream", u.Plain
	if u.Multipart != "" {
		head, tail, contentType, err := wrap(name, targets)
		if err != nil {
			return nil, err
		}
		path, kind = u.Multipart, contentType
		body, size = io.MultiReader(bytes.NewReader(head), file, bytes.NewReader(tail)), int64(len(head))+size+int64(len(tail))
	} else {
		body = file
	}
	switch {
	case path == "":
		return nil, fmt.Errorf("BMC %s: it takes no pushed firmware (neither MultipartHttpPushUri nor HttpPushUri); use its maker's tool", s.target.URL)
	case u.Multipart == "" && len(targets) > 0:
		return nil, fmt.Errorf("BMC %s: it cannot be told which firmware to update", s.target.URL)
	}
	return s.push(path, kind, body, size)
}

// wrap makes what comes before and behind the file in the multipart body.
func wrap(name string, targets []string) (head, tail []byte, contentType string, err error) {
	var b bytes.Buffer
	m := multipart.NewWriter(&b)
	params, err := json.Marshal(map[string]any{"Targets": append([]string{}, targets...)})
	if err != nil {
		return nil, nil, "", err
	}
	w, err := m.CreatePart(textproto.MIMEHeader{"Content-Disposition": {`form-data; name="UpdateParameters"`}, "Content-Type": {"application/json"}})
	if err == nil {
		_, err = w.Write(params)
	}
	if err != nil {
		return nil, nil, "", err
	}
	safe := strings.Map(func(r rune) rune {
		if r == '"' || r == '\\' || r < ' ' || r > '~' {
			return '_'
		}
		return r
	}, name)
	_, err = m.CreatePart(textproto.MIMEHeader{"Content-Disposition": {`form-data; name="UpdateFile"; filename="` + safe + `"`}, "Content-Type": {"application/octet-stream"}})
	if err != nil {
		return nil, nil, "", err
	}
	split := b.Len()
	if err := m.Close(); err != nil {
		return nil, nil, "", err
	}
	return bytes.Clone(b.Bytes()[:split]), bytes.Clone(b.Bytes()[split:]), m.FormDataContentType(), nil
}

// push sends the body once, with its length: BMCs do not take chunks.
func (s *Session) push(path, kind string, body io.Reader, size int64) (*fleet.BMCTask, error) {
	to, err := s.onBMC(path)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(s.ctx, http.MethodPost, to, body)
	if err != nil {
		return nil, err
	}
	req.ContentLength = size
	req.Header.Set("Content-Type", kind)
	if auth, err := s.c.GetSession(); err == nil && auth.Token != "" {
		req.Header.Set("X-Auth-Token", auth.Token)
	} else {
		req.SetBasicAuth(s.target.User, s.target.Password)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, s.explain("sending the firmware", err)
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if resp.StatusCode/100 != 2 {
		return nil, s.explain("sending the firmware", common.ConstructError(resp.StatusCode, answer))
	}
	var t link
	_ = json.Unmarshal(answer, &t) // a task, or nothing
	where := cmp.Or(resp.Header.Get("Location"), t.ID)
	if u, err := url.Parse(where); err == nil {
		where = u.Path
	}
	return &fleet.BMCTask{Path: where, State: "New"}, nil
}

// onBMC makes a URL of a path or URL that a BMC names; it must not lead
// elsewhere.
func (s *Session) onBMC(path string) (string, error) {
	base, err := url.Parse(s.target.URL)
	if err != nil {
		return "", err
	}
	u, err := base.Parse(path)
	if err != nil || u.Scheme != base.Scheme || u.Host != base.Host {
		return "", fmt.Errorf("BMC %s: it names %q for uploads, which is not its own", s.target.URL, oneLine(path))
	}
	return u.String(), nil
}

// Task asks how a task goes. path is one that Update returned.
func (s *Session) Task(path string) (*fleet.BMCTask, error) {
	if !strings.HasPrefix(path, "/redfish/v1/") || strings.Contains(path, "..") {
		return nil, fmt.Errorf("task %q: want a path below /redfish/v1/", path)
	}
	var d struct {
		TaskState, TaskStatus string
		PercentComplete       *int
		Messages              []struct{ Message string }
	}
	if _, err := s.get(path, &d); err != nil {
		return nil, s.explain("asking for the task", err)
	}
	t := &fleet.BMCTask{Path: path, State: d.TaskState}
	if d.PercentComplete != nil {
		t.Percent = *d.PercentComplete
	}
	if n := len(d.Messages); n > 0 {
		t.Message = oneLine(d.Messages[n-1].Message)
	}
	switch d.TaskState {
	case "Completed":
		t.Done, t.Failed = true, d.TaskStatus == "Critical" || d.TaskStatus == "Warning"
	case "Exception", "Killed", "Cancelled", "Interrupted":
		t.Done, t.Failed = true, true
	}
	return t, nil
}
