package console_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/vmtest/redfish"
)

// TestBrowser clicks through the console in a real browser, at all sizes and
// in both themes. Its pictures are kept with `go test -artifacts`.
func TestBrowser(t *testing.T) {
	l := newLab(t)
	was, next := l.publish("1.0.0", "6.1.0-57"), l.publish("1.1.0", "6.1.0-58")
	l.seed(60, next, was)
	b := newBrowser(t)
	b.size(1440, 900, "light")
	b.signIn(l, "operator")
	b.fleetPage(l)
	b.flip(l)
	b.nodePage(l)
	l.startRollout(next)
	b.power(l)
	b.rolloutPages(l)
	b.otherPages(l, next, was)
	b.restart(l)
	b.viewer(l)
	for _, c := range b.complaints() {
		// Asked of a page: who is signed in? And what a restart breaks.
		if !strings.Contains(c, "401") && !strings.Contains(c, "ERR_CONNECTION") && !strings.Contains(c, "ERR_INCOMPLETE") && !strings.Contains(c, "ERR_HTTP2") && !strings.Contains(c, "ERR_EMPTY") {
			t.Errorf("the browser complains: %s", c)
		}
	}
}

func (b *browser) signIn(l *lab, role string) {
	b.t.Helper()
	b.open(l.url + "/")
	b.keys("#token", "turnout_wrong")
	b.click("button.primary")
	b.sees("not known here")
	b.shot("login")
	js[any](b, "document.getElementById('token').value = ''")
	b.keys("#token", l.tokens[role])
	b.click("button.primary")
	b.until("cells", "document.querySelectorAll('.cell').length >= 40")
}

func (b *browser) fleetPage(l *lab) {
	b.shot("fleet-light")
	b.size(1440, 900, "dark")
	b.shot("fleet-dark")
	b.size(390, 844, "light")
	b.open(l.url + "/console/fleet?group=rack")
	b.until("cells", "document.querySelector('.cell')")
	b.shot("fleet-phone")
	b.size(1440, 900, "light")

	// Keys: to the filter, through the cells, and into a node.
	b.keys("body", "/")
	b.keys("#q", "silent")
	b.until("one cell", "document.querySelectorAll('.cell').length === 1 && location.search.includes('q=silent')")
	js[any](b, "const q = document.getElementById('q'); q.value = ''; q.dispatchEvent(new Event('input'))")
	b.until("cells", "document.querySelectorAll('.cell').length >= 40")
	js[any](b, "document.querySelector('.cell[tabindex=\"0\"]').focus()")
	b.keys(".cell:focus", "\uE011") // Home
	b.keys(".cell:focus", "\uE014") // right
	b.keys(".cell:focus", "\uE014")
	b.until("third cell", "document.activeElement.dataset.name === 'r1-n03'")
	b.keys(".cell:focus", "\uE007")
	b.until("node", "location.pathname === '/console/nodes/r1-n03'")
	b.keys("body", "gf")
	b.until("fleet", "location.pathname === '/console/fleet'")

	// A page that was left before its answers came stays away.
	js[any](b, `const real = window.fetch;
window.held = [];
window.fetch = async (...a) => { const x = real(...a); if (String(a[0]).includes('/timeline')) await new Promise((r) => held.push(r)); return x; }`)
	b.until("its cell", "document.querySelector('.cell[data-name=r1-n03]') !== null")
	js[any](b, "document.querySelector('.cell[data-name=r1-n03]').click()")
	b.until("a node that waits", "location.pathname === '/console/nodes/r1-n03' && held.length > 0")
	b.keys("body", "gf")
	b.until("the fleet again", "location.pathname === '/console/fleet' && document.querySelectorAll('.cell').length >= 40")
	js[any](b, "held.forEach((go) => go()); return new Promise((r) => setTimeout(r, 500))")
	b.until("still the fleet", "document.querySelectorAll('.cell').length >= 40")

	// What happens to a node shows without a word to the server.
	b.click("[data-status=quarantined]")
	b.until("one cell", "document.querySelectorAll('.cell').length === 1")
	_, err := store.UpdateNode(ctx, l.o.Store, "r1-n02", func(n *fleet.Node) error { n.State, n.Reason = fleet.NodeQuarantined, "smoke"; return nil })
	l.must(err)
	b.sees("smoke")
}

func (b *browser) flip(l *lab) {
	b.size(1440, 1500, "light")
	b.open(l.url + "/console/nodes/r1-n01")
	b.sees("What happened")
	b.sees("Fell back")
	b.shot("node-light")
	b.click("[data-act=flip]")
	b.sees("reboots once into slot B")
	b.shot("node-flip")
	b.keys("dialog input", "disk is slow")
	b.click("dialog button.danger")
	b.sees("Flip asked for")
	b.sees("disk is slow") // its event
	n, err := l.o.Store.Node(ctx, "r1-n01")
	l.must(err)
	if want := n.Reported.Slots[1].Image; n.Desired.Image != want || n.Desired.Generation != 3 {
		b.t.Errorf("after the flip the node is wanted on %s, generation %d; want %s, 3", n.Desired.Image, n.Desired.Generation, want)
	}
	b.open(l.url + "/console/nodes/r1-n06") // its other slot is fine, but no two flips at once are meant
	b.click("[data-act=cordon]")
	b.keys("dialog input", "replacing a GPU")
	b.click("dialog button.primary")
	b.sees("This node is cordoned: replacing a GPU")
}

// machine is a node's machine, as far as its BMC goes: a switch.
type machine struct{ on, network atomic.Bool }

func (m *machine) Running() bool       { return m.on.Load() }
func (m *machine) PowerOn() error      { m.on.Store(true); return nil }
func (m *machine) PowerOff() error     { m.on.Store(false); return nil }
func (m *machine) Reset() error        { return nil }
func (m *machine) Shutdown() error     { m.on.Store(false); return nil }
func (m *machine) NetworkOnce(is bool) { m.network.Store(is) }

// power switches a machine off, through the server and a real Redfish session.
func (b *browser) power(l *lab) {
	m := &machine{}
	m.on.Store(true)
	front := redfish.New(m, "root", "s3cret", redfish.Manners{})
	ts := httptest.NewUnstartedServer(front)
	ts.Config.ErrorLog = log.New(io.Discard, "", 0)
	ts.StartTLS()
	b.t.Cleanup(ts.Close)
	pin := sha256.Sum256(ts.Certificate().Raw)
	_, err := l.as("admin").SetBMC(ctx, "r1-n02", api.BMCRequest{URL: ts.URL, User: "root", Password: "s3cret", Pin: fmt.Sprintf("%x", pin)})
	l.must(err)
	b.size(1440, 1500, "light")
	b.open(l.url + "/console/nodes/r1-n02")
	b.click("[data-act=bmc-power]")
	b.sees("power on")
	b.click("[data-act=power-off]")
	b.keys("dialog input", "smells of smoke")
	b.click("dialog button.danger")
	b.sees("power off")
	b.click("[data-act=bmc-network]")
	b.click("dialog button.primary")
	b.sees("The next start is from the network")
	if enabled, target := front.Boot(); m.on.Load() || enabled != "Once" || target != "Pxe" {
		b.t.Errorf("machine on: %v, boot override %s %s; want it off, and to boot from the network once", m.on.Load(), enabled, target)
	}
	serial := filepath.Join(l.dir, "r1-n02.log")
	l.must(os.WriteFile(serial, []byte("\x1b[2J\x1b[0mBdsDxe: loading Boot0001\r\n[    0.00] Linux version 6.1\r\n"), 0o600))
	b.click("details:has(.serial) summary")
	b.sees("BdsDxe: loading Boot0001")
	l.must(os.WriteFile(serial, []byte("BdsDxe: loading\r\nKernel panic - not syncing\r\n"), 0o600))
	b.sees("Kernel panic") // by itself
	b.click("[data-act=bmc-sensors]")
	b.until("sensors", "document.querySelector('[aria-label=Sensors] td')")
	b.shot("node-power")

	// A silent node whose BMC says that it is off is told from one that hangs.
	_, err = l.as("admin").SetBMC(ctx, "r1-n08", api.BMCRequest{URL: ts.URL, User: "root", Password: "s3cret", Pin: fmt.Sprintf("%x", pin)})
	l.must(err)
	_, err = l.op.Power(ctx, "r1-n08")
	l.must(err)
	b.open(l.url + "/console/?q=r1-&size=cards")
	b.sees("switched off, silent for")
	b.until("power in the cells", "document.querySelectorAll('.cell .p-on').length > 10 && document.querySelectorAll('.cell .p-off').length === 1")
	b.size(1440, 900, "light")
	b.shot("fleet-power")
}

func (b *browser) nodePage(l *lab) {
	b.open(l.url + "/console/nodes/r1-n07")
	b.sees("PCR 4, event 9")
	b.until("a GPU that is slower than the others", "[...document.querySelectorAll('td.num b')].map((e) => e.innerText).join() === '1,410 ≠'")
	b.size(1440, 1500, "dark")
	b.shot("node-refused-dark")
	b.size(390, 2200, "light")
	b.shot("node-phone")
}

func (b *browser) rolloutPages(l *lab) {
	b.size(1440, 1200, "light")
	b.open(l.url + "/console/rollouts")
	b.element("a[href='/console/rollouts/r1']")
	b.shot("rollouts")
	b.click("a[href='/console/rollouts/r1']")
	b.sees("want 8, saw 7")
	b.shot("rollout-light")
	b.size(1440, 1200, "dark")
	b.shot("rollout-dark")
	b.size(390, 1400, "light")
	b.shot("rollout-phone")
	b.size(1440, 1000, "light")
	b.click("[data-act=pause]")
	b.keys("dialog input", "night")
	b.click("dialog button.primary")
	b.sees("paused: night")

	b.open(l.url + "/console/rollouts/new")
	b.element(".stagelist select")
	js[any](b, "const s = document.querySelector('.stagelist select'); s.value = 'inference'; s.dispatchEvent(new Event('change'))")
	b.click("[data-act=plan]")
	b.sees("4 at a time")
	b.shot("rollout-plan")
	b.click("[data-act=start]")
	b.click("dialog button.danger")
	b.until("new rollout", "location.pathname === '/console/rollouts/r2'")
	b.sees("inference")
}

func (b *browser) otherPages(l *lab, next, was *fleet.Image) {
	b.open(l.url + "/console/events")
	b.sees("slot.condemned")
	b.shot("events")
	l.must(l.o.Store.Update(ctx, func(tx store.Tx) error {
		return tx.AppendEvent(ctx, &fleet.Event{At: time.Now(), Actor: "server", Node: "r1-n02", Kind: "node.lost", Message: "this came later"})
	}))
	b.sees("this came later")
	b.open(l.url + "/console/drift")
	b.sees("Nodes off their pool's image")
	b.until("the node that runs another image, and its driver", "[...document.querySelectorAll('td')].some((e) => e.innerText === 'r1-n01') && document.body.innerText.includes('580.82.07')")
	b.shot("drift")
	b.open(l.url + "/console/drift?pool=inference")
	b.until("the nodes of a pool only", "document.querySelector('#pool')?.value === 'inference' && ![...document.querySelectorAll('td')].some((e) => e.innerText === 'train')")
	b.open(l.url + "/console/images")
	b.sees("6.1.0-58")
	b.shot("images")
	b.open(l.url + "/console/images/" + next.Digest[7:19] + "?against=" + was.Digest[7:19])
	b.sees("only-in-1.0.0")
	b.size(1440, 1800, "light")
	b.shot("image")
	b.size(1440, 900, "light")
}

// restart takes the server away under an open page, and brings it back with
// another fleet.
func (b *browser) restart(l *lab) {
	b.open(l.url + "/console/fleet")
	b.until("live", "document.querySelector('.cell') && document.getElementById('live')?.innerText.includes('live')")
	l.stop()
	b.sees("The connection to the server is lost")
	b.shot("lost")
	_, err := store.UpdateNode(ctx, l.o.Store, "r1-n03", func(n *fleet.Node) error { n.State, n.Reason = fleet.NodeQuarantined, "while away"; return nil })
	l.must(err)
	l.start()
	b.sees("while away")
	b.until("live", "document.getElementById('banner').hidden")
}

// viewer may look and not touch, and is shown so.
func (b *browser) viewer(l *lab) {
	b.click("#top .right button:last-child")
	b.sees("Operator's token")
	b.signIn(l, "viewer")
	b.open(l.url + "/console/nodes/r1-n01")
	b.sees("What happened")
	if js[bool](b, "return [...document.querySelectorAll('[data-act]')].some((e) => !e.disabled)") {
		b.t.Error("a viewer is offered acts")
	}
	b.shot("viewer")
}

// TestBigFleet scrolls through 10,000 nodes.
func TestBigFleet(t *testing.T) {
	l := newLab(t)
	l.seed(10000, l.publish("1.1.0", "6.1.0-58"), l.publish("1.0.0", "6.1.0-57"))
	b := newBrowser(t)
	b.size(1440, 900, "light")
	b.signIn(l, "viewer")
	b.sees("10,000 nodes")
	b.shot("10000-light")
	b.size(1440, 900, "dark")
	b.open(l.url + "/console/fleet?group=rack")
	b.sees("10,000 nodes")
	b.shot("10000-racks-dark")
	b.size(1440, 900, "light")
	wheel := b.scroll(100)
	b.scroll(js[int](b, "return document.scrollingElement.scrollHeight") / 20) // leaps, to the end
	cells := js[int](b, "return document.querySelectorAll('.cell').length")
	if cells > 3000 {
		t.Errorf("%d cells are in the page; want what can be seen, and little more", cells)
	}
	took := js[float64](b, `
		const q = document.getElementById("q"), t = performance.now();
		q.value = "r77-";
		q.dispatchEvent(new Event("input"));
		return performance.now() - t`)
	b.until("20 cells", "document.querySelectorAll('.cell').length === 20")
	t.Logf("scrolling 10,000 nodes by the wheel: median %.1f ms a frame, longest %.1f ms; %d cells in the page; a filter takes %.1f ms", wheel[len(wheel)/2], wheel[len(wheel)-1], cells, took)
}

// scroll goes down 40 steps of so many pixels, one a frame, and returns how
// long the frames took, sorted.
func (b *browser) scroll(by int) []float64 {
	b.t.Helper()
	return js[[]float64](b, `
		const times = [], by = arguments[0];
		return new Promise((done) => {
			const step = (then) => requestAnimationFrame((now) => {
				if (then) times.push(now - then);
				if (times.length === 40) return done(times.sort((a, b) => a - b));
				scrollBy(0, by);
				step(now);
			});
			step(0);
		})`, by)
}
