package api

import (
	"errors"
	"io"
	"strings"
	"testing"
)

func TestReadStream(t *testing.T) {
	const stream = ": a comment\n\n" +
		"event: hello\ndata: {\"version\":\"1\",\"heartbeat\":10}\n\n" +
		"event: rows\ndata: {\"reset\":true,\ndata: \"rows\":[{\"name\":\"n1\"}]}\n\n" +
		"event: of-a-newer-server\ndata: {}\n\n" +
		"id: 7\nevent: events\ndata: [{\"id\":7,\"kind\":\"node.booted\"}]\n\n" +
		"event: rows\ndata: {\"rows\":[{\"name\":\"cut off\"}"
	var hello, rows, events int
	err := readStream(strings.NewReader(stream), func(n News) error {
		switch {
		case n.Hello != nil && n.Hello.Heartbeat == 10:
			hello++
		case n.Rows != nil && n.Rows.Reset && n.Rows.Rows[0].Name == "n1":
			rows++
		case len(n.Events) == 1 && n.Events[0].ID == 7:
			events++
		}
		return nil
	})
	if !errors.Is(err, io.ErrUnexpectedEOF) || hello != 1 || rows != 1 || events != 1 {
		t.Errorf("%v; %d hello, %d rows, %d events", err, hello, rows, events)
	}
}

func TestReadStreamBroken(t *testing.T) {
	never := func(News) error { t.Error("taken"); return nil }
	for name, stream := range map[string]string{
		"no JSON":  "event: rows\ndata: {\n\n",
		"too long": "event: rows\ndata: " + strings.Repeat("x", maxNews+1) + "\n\n",
	} {
		if err := readStream(strings.NewReader(stream), never); err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
	stop := errors.New("stop")
	if err := readStream(strings.NewReader("event: hello\ndata: {}\n\n"), func(News) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("%v; want what take returned", err)
	}
}
