package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/turnout-project/turnout/internal/fleet"
)

// News is one message of a watch; one of its fields is set.
type News struct {
	Hello  *Hello
	Rows   *Rows
	Events []fleet.Event
}

// maxNews bounds one message: 500 rows or events.
const maxNews = 16 << 20

// Watch reads the fleet's news until ctx ends, the connection does, or take
// returns an error, and returns why. A watch does not come back by itself: a
// new one begins with the whole fleet.
func (c *Client) Watch(ctx context.Context, take func(News) error) error {
	resp, err := c.t.do(ctx, http.MethodGet, PathWatch+"?rows=1", nil, c.header)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	err = readStream(resp.Body, take)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: the watch ended", ErrUnreachable)
	}
	return err
}

// readStream parses server-sent events
// (https://html.spec.whatwg.org/multipage/server-sent-events.html).
// The end of the stream is io.ErrUnexpectedEOF.
func readStream(r io.Reader, take func(News) error) error {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 64<<10), maxNews)
	name, data := "", []byte(nil)
	for s.Scan() {
		line := s.Bytes()
		key, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch {
		case len(line) > 0 && string(key) == "event":
			name = string(value)
		case len(line) > 0 && string(key) == "data":
			data = append(data, value...)
		case len(line) == 0 && data != nil:
			n, err := decodeNews(name, data)
			if err == nil {
				err = take(n)
			}
			if err != nil {
				return err
			}
			name, data = "", nil
		}
	}
	if err := s.Err(); errors.Is(err, bufio.ErrTooLong) {
		return errors.New("watch: a message is too long")
	}
	return io.ErrUnexpectedEOF
}

func decodeNews(name string, data []byte) (n News, err error) {
	switch name {
	case WatchHello:
		err = json.Unmarshal(data, &n.Hello)
	case WatchRows:
		err = json.Unmarshal(data, &n.Rows)
	case WatchEvents:
		err = json.Unmarshal(data, &n.Events)
	} // others are of a newer server
	if err != nil {
		return n, fmt.Errorf("watch: %s: %w", name, err)
	}
	return n, nil
}
