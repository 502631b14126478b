package server_test

import (
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// Drift knows images from the store and firmware from BMCs, which are asked
// once a day.
func TestDrift(t *testing.T) {
	l := newLab(t, withKeys(t))
	old, image := l.publish("1.0.0"), l.publish("1.1.0")
	_, err := l.op.SetPool(ctx, fleet.Pool{Name: "rack", Image: image})
	l.must(err)
	for i := range 4 {
		m := l.ready(i+1, "rack", image)
		m.report.Inventory = &fleet.Inventory{Vendor: "V", Product: "P", BIOSVersion: "2.0"}
		if i == 3 {
			m.report.Slots[0].Image, m.report.Inventory.BIOSVersion = old, "1.9"
		}
		m.beat()
	}
	b, req := newBMC(t, &powered{})
	req.NoCheck = true
	_, err = l.admin.SetBMC(ctx, "n1", req)
	l.must(err)
	l.must(l.srv.CollectFirmwareOnce(ctx))
	l.must(l.srv.CollectFirmwareOnce(ctx))
	if _, ever := b.Sessions(); ever != 1 {
		t.Errorf("the BMC was asked %d times; want once", ever)
	}
	rec, err := l.store.Record(ctx, "firmware", "n1")
	if err != nil || rec.Node != "n1" {
		t.Errorf("firmware record: %+v, %v", rec, err)
	}
	l.clock.add(25 * time.Hour)
	l.must(l.srv.CollectFirmwareOnce(ctx))
	if _, ever := b.Sessions(); ever != 2 {
		t.Errorf("a day later the BMC was asked %d times; want twice", ever)
	}
	d, err := l.view.Drift(ctx, "rack")
	l.must(err)
	if len(d.OffImage) != 1 || d.OffImage[0].Node != "n4" || d.OffImage[0].Runs != old || d.OffImage[0].Wants != image {
		t.Errorf("off image: %+v", d.OffImage)
	}
	if len(d.Firmware) != 1 || d.Firmware[0].Node != "n4" || d.Firmware[0].Usual != "2.0" {
		t.Errorf("firmware: %+v", d.Firmware)
	}
	if d, err := l.view.Drift(ctx, "other"); err != nil || len(d.OffImage) != 0 {
		t.Errorf("of another pool: %+v, %v", d, err)
	}
}
