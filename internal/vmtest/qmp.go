package vmtest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// qmpLog counts what QEMU's machine protocol reports of a node. It is kept
// over power cycles.
type qmpLog struct {
	mu       sync.Mutex
	resets   int
	watchdog int
	conn     net.Conn // of the running QEMU
}

func (q *qmpLog) counts() (resets, watchdog int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.resets, q.watchdog
}

func (q *qmpLog) add(event string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch event {
	case "RESET":
		q.resets++
	case "WATCHDOG":
		q.watchdog++
	}
}

// followQMP connects to a starting QEMU, and counts its events into prev (a
// new log when nil) until QEMU ends.
func followQMP(path string, ended <-chan struct{}, prev *qmpLog) (*qmpLog, error) {
	q := prev
	if q == nil {
		q = &qmpLog{}
	}
	conn, err := dialUntil(path, ended)
	if err != nil {
		return q, err
	}
	if _, err := conn.Write([]byte(`{"execute":"qmp_capabilities"}` + "\n")); err != nil {
		return q, err
	}
	q.mu.Lock()
	q.conn = conn
	q.mu.Unlock()
	go func() {
		defer conn.Close()
		lines := bufio.NewScanner(conn)
		for lines.Scan() {
			var m struct {
				Event string `json:"event"`
			}
			if json.Unmarshal(lines.Bytes(), &m) == nil && m.Event != "" {
				q.add(m.Event)
			}
		}
	}()
	return q, nil
}

func dialUntil(path string, ended <-chan struct{}) (net.Conn, error) {
	for range 400 {
		if conn, err := net.Dial("unix", path); err == nil {
			return conn, nil
		}
		select {
		case <-ended:
			return nil, errors.New("qemu ended at once")
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil, fmt.Errorf("qemu did not open %q", path)
}
