package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReportStory writes a report, verifies it with and without the server,
// and finds out a forged one.
func TestReportStory(t *testing.T) {
	l := newLab(t)
	l.start()
	l.must("node", "add", "r7-n1", "--pool", "rack", "--mac", "52:54:00:77:00:01")
	dir := t.TempDir()
	page, doc, pub := filepath.Join(dir, "r7.html"), filepath.Join(dir, "r7.json"), filepath.Join(dir, "report.pub")
	r := l.do("node", "report", "r7-n1")
	if r.code != exitRefused || !strings.Contains(r.out, "no TPM is enrolled") || !strings.Contains(r.errOut, "node r7-n1 is not accepted") {
		t.Errorf("report of a node that never came: %+v", r)
	}
	if r := l.do("node", "report", "r7-n1", "--require", "firmware-pins", "-o", "json", "--file", doc); r.code != exitRefused {
		t.Errorf("what is not known is no pass: %+v", r)
	}
	if r := l.do("node", "report", "--rack", "r7", "-o", "html", "--file", page); r.code != exitRefused {
		t.Errorf("report of the rack: %+v", r)
	}
	if err := os.WriteFile(pub, []byte(l.must("report", "key")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{page, doc} {
		if out := l.must("report", "verify", f); !strings.Contains(out, "genuine") {
			t.Errorf("verify %s: %s", f, out)
		}
	}
	l.kill()
	if out := l.must("report", "verify", page, "--key", pub); !strings.Contains(out, "rack r7, not accepted: r7-n1") {
		t.Errorf("verify without the server: %s", out)
	}
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for what, forged := range map[string]string{
		"what is shown":  strings.Replace(string(b), "Not accepted", "Accepted", 1),
		"what is signed": strings.Replace(string(b), `"accepted":false`, `"accepted":true`, 1),
	} {
		if err := os.WriteFile(page, []byte(forged), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := l.do("report", "verify", page, "--key", pub); r.code != exitRefused {
			t.Errorf("%s was changed: %+v", what, r)
		}
	}
}
