package cas

import "sync"

// Progress is how far a Fetch is.
type Progress struct {
	Name        string // item that was finished or moved last
	Items       int    // items in the store by now
	ItemsTotal  int
	Bytes       int64 // bytes in the store by now, those under way included
	BytesTotal  int64
	BytesLoaded int64 // of Bytes, how many came over the network
}

// meter adds up the progress of parallel downloads.
type meter struct {
	mu   sync.Mutex
	p    Progress
	tell func(Progress)
}

func newMeter(items []Item, tell func(Progress)) *meter {
	m := &meter{tell: tell, p: Progress{ItemsTotal: len(items)}}
	for _, it := range items {
		m.p.BytesTotal += it.Size
	}
	return m
}

func (m *meter) update(name string, change func(*Progress)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.p)
	if name != "" {
		m.p.Name = name
	}
	if m.tell != nil {
		m.tell(m.p)
	}
}

func (m *meter) had(it Item) {
	m.update(it.Name, func(p *Progress) { p.Items++; p.Bytes += it.Size })
}

func (m *meter) done(it Item) { m.update(it.Name, func(p *Progress) { p.Items++ }) }

func (m *meter) loaded(it Item, n int64) {
	m.update(it.Name, func(p *Progress) { p.Bytes += n; p.BytesLoaded += n })
}

// lost takes back what a failed attempt had brought.
func (m *meter) lost(n int64) { m.update("", func(p *Progress) { p.Bytes -= n }) }
