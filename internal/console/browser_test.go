package console_test

import (
	"strings"
	"testing"
)

// TestBrowser clicks through the console in a real browser. Its pictures are
// kept with `go test -artifacts`.
func TestBrowser(t *testing.T) {
	l := newLab(t)
	was, next := l.publish("1.0.0", "6.1.0-57"), l.publish("1.1.0", "6.1.0-58")
	l.seed(60, next, was)
	b := newBrowser(t)
	b.size(1440, 900, "light")

	b.open(l.url + "/")
	b.keys("#token", "turnout_wrong")
	b.click("button.primary")
	b.sees("not known here")
	b.shot("login")
	js[any](b, "document.getElementById('token').value = ''")
	b.keys("#token", l.tokens["operator"])
	b.click("button.primary")
	b.until("60 nodes", "document.querySelectorAll('.cell').length >= 40")
	b.shot("fleet-light")
	b.size(1440, 900, "dark")
	b.shot("fleet-dark")
	b.size(390, 844, "light")
	b.shot("fleet-phone")
	b.size(1440, 1500, "light")
	b.click("a[href='/console/nodes/r1-n01']")
	b.sees("What happened")
	b.shot("node-light")
	b.click("[data-act=flip]")
	b.sees("reboots once into slot B")
	b.shot("node-flip")
	b.click("dialog button.danger")
	b.sees("Flip asked for")
	b.open(l.url + "/console/nodes/r1-n07")
	b.sees("What happened")
	b.size(1440, 1500, "dark")
	b.shot("node-refused-dark")
	b.size(390, 2200, "light")
	b.shot("node-phone")
	b.size(1440, 900, "light")
	b.open(l.url + "/console/events")
	b.sees("slot.condemned")
	b.shot("events")

	l.startRollout(next)
	b.open(l.url + "/console/rollouts")
	b.click("a[href='/console/rollouts/r1']")
	b.sees("want 8, saw 7")
	b.size(1440, 1200, "light")
	b.shot("rollout-light")
	b.size(1440, 1200, "dark")
	b.shot("rollout-dark")
	b.size(390, 1400, "light")
	b.shot("rollout-phone")
	b.size(1440, 1000, "light")
	b.open(l.url + "/console/rollouts/new")
	b.element(".stagelist select")
	js[any](b, "const s = document.querySelector('.stagelist select'); s.value = 'inference'; s.dispatchEvent(new Event('change'))")
	b.click("[data-act=plan]")
	b.sees("The plan")
	b.shot("rollout-plan")
	b.open(l.url + "/console/images")
	b.sees("6.1.0-58")
	b.shot("images")
	b.open(l.url + "/console/images/" + next.Digest[7:19] + "?against=" + was.Digest[7:19])
	b.sees("only-in-1.0.0")
	b.size(1440, 1800, "light")
	b.shot("image")
	for _, c := range b.complaints() {
		if !strings.Contains(c, "401") { // the first question of a page: who is signed in?
			t.Errorf("the browser complains: %s", c)
		}
	}
}
