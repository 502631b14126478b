package install

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/turnout-project/turnout/internal/pause"
)

// Pace bounds what an installation takes from a system that works beside it,
// in bytes a second; 0 is no bound.
type Pace struct {
	Fetch int64 // from the network
	Disk  int64 // read from and written to disks, together
}

// pacer spreads bytes over time. It starts without savings: a second of
// silence does not allow a burst. nil never waits.
type pacer struct {
	perSecond int64

	mu   sync.Mutex
	next time.Time // when the bytes that were asked for are through
}

func newPacer(perSecond int64) *pacer {
	if perSecond <= 0 {
		return nil
	}
	return &pacer{perSecond: perSecond}
}

// wait returns when n more bytes may have passed, or ctx ends.
func (p *pacer) wait(ctx context.Context, n int) error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(time.Duration(float64(n) / float64(p.perSecond) * float64(time.Second)))
	d := p.next.Sub(now)
	p.mu.Unlock()
	return pause.For(ctx, d)
}

// pacedReader reads at a pace.
type pacedReader struct {
	io.ReaderAt
	ctx context.Context
	p   *pacer
}

func (r pacedReader) ReadAt(b []byte, off int64) (int, error) {
	if err := r.p.wait(r.ctx, len(b)); err != nil {
		return 0, err
	}
	return r.ReaderAt.ReadAt(b, off)
}

// pacedDevice is a partition that is read and written at a pace.
type pacedDevice struct {
	Device
	ctx context.Context
	p   *pacer
}

func paced(ctx context.Context, d Device, p *pacer) Device {
	if p == nil {
		return d
	}
	return pacedDevice{d, ctx, p}
}

func (d pacedDevice) ReadAt(b []byte, off int64) (int, error) {
	return pacedReader{d.Device, d.ctx, d.p}.ReadAt(b, off)
}

func (d pacedDevice) WriteAt(b []byte, off int64) (int, error) {
	if err := d.p.wait(d.ctx, len(b)); err != nil {
		return 0, err
	}
	return d.Device.WriteAt(b, off)
}

// isDirect: see partition.
func (d pacedDevice) isDirect() bool {
	x, ok := d.Device.(interface{ isDirect() bool })
	return ok && x.isDirect()
}
