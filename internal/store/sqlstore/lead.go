package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/turnout-project/turnout/internal/pause"
)

// Lead runs fn whenever this process leads those that share the store, until
// ctx ends. The context of fn ends when it leads no more. A leader that dies
// is replaced within seconds.
func (s *Store) Lead(ctx context.Context, fn func(context.Context)) {
	if !s.b.Shared {
		fn(ctx)
		return
	}
	for ctx.Err() == nil {
		if conn := s.elected(ctx); conn != nil {
			s.reign(ctx, conn, fn)
			// What is closed is the session, and its lock with it.
			conn.Raw(func(any) error { return errDrop }) //nolint:errcheck // it is what we want
			conn.Close()                                 //nolint:errcheck // dropped
		}
		_ = pause.For(ctx, leadEvery) // the loop looks at ctx
	}
}

const (
	leadEvery = time.Second     // how often the lead is asked for, and affirmed
	leadIdle  = 8 * time.Second // a leader that did not affirm it for so long has lost it
	leadIn    = 5 * time.Second // and itself thinks so after this
)

// errDrop makes the pool close a session rather than keep it.
var errDrop = driver.ErrBadConn

// elected returns a session that holds the lead, or nil.
func (s *Store) elected(ctx context.Context) *sql.Conn {
	ctx, cancel := context.WithTimeout(ctx, leadIn)
	defer cancel()
	conn, err := s.b.Write.Conn(ctx)
	if err != nil {
		return nil
	}
	var ok bool
	if err = conn.QueryRowContext(ctx, "SELECT pg_try_advisory_lock($1)", int64(lockLead)).Scan(&ok); err == nil && ok {
		_, err = conn.ExecContext(ctx, fmt.Sprintf("SET idle_session_timeout = %d", leadIdle.Milliseconds()))
		if err == nil {
			return conn
		}
		conn.Raw(func(any) error { return errDrop }) //nolint:errcheck // it may hold the lock
	}
	conn.Close() //nolint:errcheck // nothing was kept in it
	return nil
}

// reign runs fn while the session answers.
func (s *Store) reign(ctx context.Context, conn *sql.Conn, fn func(context.Context)) {
	lead, cancel := context.WithCancel(ctx)
	defer cancel()
	over := make(chan struct{})
	go func() { defer close(over); fn(lead) }()
	defer func() { cancel(); <-over }()
	for {
		select {
		case <-over:
			return
		case <-ctx.Done():
			return
		case <-time.After(leadEvery):
		}
		ping, stop := context.WithTimeout(ctx, leadIn)
		_, err := conn.ExecContext(ping, "SELECT 1")
		stop()
		if err != nil {
			return
		}
	}
}
