package server_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/alert"
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/server"
)

func TestAlerts(t *testing.T) {
	secret := []byte("0123456789abcdef")
	var mu sync.Mutex
	var got []alert.Message
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if err := alert.Verify(secret, r.Header, body, time.Now(), time.Hour); err != nil {
			t.Error(err)
		}
		var m alert.Message
		if err := json.Unmarshal(body, &m); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		got = append(got, m)
	}))
	defer ts.Close()
	l := newLab(t, func(o *server.Options) {
		o.Hooks = []alert.Hook{{Name: "pager", URL: ts.URL + "/token-in-path", Secret: secret, Kinds: []string{"node.added"}}}
	})
	_, err := l.view.TestWebhook(ctx, "pager")
	wantStatus(t, "a test by a viewer", err, http.StatusForbidden)
	_, err = l.op.TestWebhook(ctx, "nobody")
	wantStatus(t, "a webhook that is none", err, http.StatusNotFound)
	_, err = l.op.TestWebhook(ctx, "pager")
	l.must(err)
	c, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() { l.srv.Alert(c); close(done) }()
	until := func(what string, ok func() bool) {
		for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("waited in vain for %s", what)
			}
		}
	}
	until("the sender", func() bool { _, err := l.store.Record(ctx, alert.Kind, "pager"); return err == nil })
	_, err = l.op.AddNode(ctx, api.NodeRequest{Name: "n1", Pool: "rack", MACs: []string{"52:54:00:00:00:01"}})
	l.must(err)
	var hooks []api.Webhook
	until("the delivery", func() bool {
		hooks, err = l.view.Webhooks(ctx)
		l.must(err)
		return !hooks[0].Last.IsZero()
	})
	cancel()
	<-done
	if text, _ := json.Marshal(hooks); strings.Contains(string(text), "token-in-path") || strings.Contains(string(text), string(secret)) {
		t.Errorf("a key is shown: %s", text)
	}
	if len(got) != 2 || !got[0].Test || got[1].Test || got[1].Events[0].Node != "n1" {
		t.Errorf("deliveries: %+v", got)
	}
}
