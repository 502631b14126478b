package server_test

import (
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/netboot"
)

// A node whose only good slot has rotted gets the slot's UKI over the network
// until it has shown for long enough that nothing comes of it; then the
// installer. A sign of life makes it a node like any other again.
func TestSilentNodeGetsInstaller(t *testing.T) {
	l := newLab(t)
	m := l.ready(1, "rack", l.publish("1"))
	ask := func() netboot.Answer {
		t.Helper()
		a, err := l.srv.Decide(ctx, netboot.Client{MAC: m.mac, Arch: netboot.ArchX64, HasArch: true, Kind: netboot.KindUEFIPXE})
		l.must(err)
		return a
	}
	boot := func(a netboot.Answer) { l.srv.BootEvent("tftp.sent", m.mac, a.File+", 18144768 bytes in 4.3 s") }
	want := func(when string, kind netboot.AnswerKind) netboot.Answer {
		t.Helper()
		a := ask()
		if a.Kind != kind {
			t.Fatalf("%s: %s (%s), want %s", when, a.Kind, a.Reason, kind)
		}
		return a
	}
	boot(want("at first", netboot.AnswerSlot))
	l.clock.add(20 * time.Minute)
	boot(want("after one long silence: it may run, and not reach the server", netboot.AnswerSlot))
	if a := want("after the second", netboot.AnswerInstaller); !strings.Contains(a.Reason, "was not heard of") {
		t.Errorf("reason: %s", a.Reason)
	}
	boot(ask())
	want("the installer was loaded, and has not reported yet", netboot.AnswerInstaller)
	m.beat()
	boot(want("after a heartbeat", netboot.AnswerSlot))
	boot(ask())
	boot(ask())
	want("three quick ones: somebody restarts it by hand", netboot.AnswerSlot)
	l.clock.add(6 * time.Minute)
	want("and six minutes of silence", netboot.AnswerInstaller)
	m.beat()
	want("it was slow", netboot.AnswerSlot)
}

// Without a slot of its own, and for other machines, nothing changes.
func TestSilenceOfOthers(t *testing.T) {
	l := newLab(t)
	m := l.ready(1, "rack", l.publish("1"))
	for range 3 {
		l.srv.BootEvent("http.sent", "52:54:00:99:99:99", "b/0123456789ab/slot.efi, 1 bytes in 0.1 s")
		l.srv.BootEvent("tftp.sent", m.mac, "b/0123456789ab/installer.efi, 1 bytes in 0.1 s")
		l.clock.add(time.Hour)
	}
	if a, err := l.srv.Decide(ctx, netboot.Client{MAC: m.mac, Arch: netboot.ArchX64, HasArch: true, Kind: netboot.KindUEFIPXE}); err != nil || a.Kind != netboot.AnswerSlot {
		t.Errorf("%+v, %v", a, err)
	}
}
