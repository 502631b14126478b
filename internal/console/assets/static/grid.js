// A grid of cells in groups that keeps only what can be seen in the page:
// 10,000 nodes cost as much as 200.
import { h, fill } from "./dom.js";

// Grid draws groups [{key, head, items}] with cell(item), all cells of one
// size ({width, height}, pixels). Items have a name. It scrolls with the window.
export class Grid {
  constructor({ label, cell, size }) {
    this.cell = cell;
    this.size = size;
    this.groups = [];
    this.lines = []; // {top, height, group, from, to}; head lines have no from
    this.shown = new Map(); // line number -> element
    this.focused = null; // name of the cell that Tab reaches
    this.el = h("div.grid", { role: "group", "aria-label": label, keydown: (e) => this.key(e), focusin: (e) => this.focusin(e) });
    this.draw = this.draw.bind(this);
    this.wake = () => { if (!this.frame) this.frame = requestAnimationFrame(this.draw); };
    this.resized = () => { this.layout(); this.wake(); };
    addEventListener("scroll", this.wake, { passive: true });
    addEventListener("resize", this.resized);
  }

  close() {
    removeEventListener("scroll", this.wake);
    removeEventListener("resize", this.resized);
    cancelAnimationFrame(this.frame);
  }

  set(groups, size) {
    this.groups = groups;
    this.size = size;
    this.stale = true;
    this.layout();
    this.wake();
  }

  layout() {
    const gap = 6, head = 40, width = this.el.clientWidth || innerWidth;
    this.columns = Math.max(1, Math.floor((width + gap) / (this.size.width + gap)));
    this.lines = [];
    this.places = new Map(); // name -> [group number, index]
    let top = 0;
    this.groups.forEach((g, n) => {
      this.lines.push({ top, height: head, group: g });
      top += head;
      for (let i = 0; i < g.items.length; i += this.columns) {
        this.lines.push({ top, height: this.size.height, group: g, from: i, to: Math.min(i + this.columns, g.items.length) });
        top += this.size.height + gap;
      }
      top += 10;
      g.items.forEach((it, i) => this.places.set(it.name, [n, i]));
    });
    if (!this.places.has(this.focused)) this.focused = this.groups.find((g) => g.items.length)?.items[0].name ?? null;
    this.el.style.height = top + "px";
    this.el.style.setProperty("--columns", this.columns);
    this.stale = true;
  }

  // at finds the first line that ends below y.
  at(y) {
    let lo = 0, hi = this.lines.length;
    while (lo < hi) {
      const mid = (lo + hi) >> 1;
      if (this.lines[mid].top + this.lines[mid].height < y) lo = mid + 1;
      else hi = mid;
    }
    return lo;
  }

  draw() {
    this.frame = 0;
    const above = -this.el.getBoundingClientRect().top, spare = 300;
    const first = this.at(above - spare), active = document.activeElement?.dataset?.name;
    const keep = new Map();
    for (let i = first; i < this.lines.length && this.lines[i].top < above + innerHeight + spare; i++) {
      keep.set(i, (!this.stale && this.shown.get(i)) || this.line(i));
    }
    for (const [i, e] of this.shown) if (keep.get(i) !== e) e.remove();
    let before = null;
    for (const [i, e] of keep) {
      if (this.shown.get(i) !== e) before ? before.after(e) : this.el.prepend(e);
      before = e;
    }
    this.shown = keep;
    this.stale = false;
    if (active && this.places.has(active) && document.activeElement === document.body) this.find(active)?.focus({ preventScroll: true });
  }

  line(i) {
    const l = this.lines[i];
    const e = h(l.from === undefined ? "h2.ghead" : "div.grow");
    e.style.top = l.top + "px";
    e.style.height = l.height + "px";
    if (l.from === undefined) fill(e, l.group.head);
    else for (let k = l.from; k < l.to; k++) e.append(this.make(l.group.items[k]));
    return e;
  }

  make(item) {
    const c = this.cell(item);
    c.dataset.name = item.name;
    c.tabIndex = item.name === this.focused ? 0 : -1;
    return c;
  }

  find(name) { return this.el.querySelector(`[data-name="${CSS.escape(name)}"]`); }

  focusin(e) {
    const name = e.target.dataset.name;
    if (!name || name === this.focused) return;
    const old = this.find(this.focused);
    if (old) old.tabIndex = -1;
    e.target.tabIndex = 0;
    this.focused = name;
  }

  // key walks with the arrow keys, Home, End and page keys.
  key(e) {
    const at = this.places.get(e.target.dataset?.name);
    if (!at || e.ctrlKey || e.metaKey || e.altKey) return;
    const page = this.columns * Math.max(1, Math.floor(innerHeight / (this.size.height + 6)) - 1);
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns, PageUp: -page, PageDown: page, Home: -Infinity, End: Infinity }[e.key];
    if (by === undefined) return;
    e.preventDefault();
    this.go(...at, by);
  }

  go(g, i, by) {
    const n = this.groups[g].items.length;
    let to = i + by;
    if (Math.abs(by) === Infinity) to = by < 0 ? 0 : n - 1;
    else if (to < 0 && g > 0) [g, to] = [g - 1, this.groups[g - 1].items.length - 1];
    else if (to >= n && i < n - 1 && Math.abs(by) > 1) to = n - 1;
    else if (to >= n && g < this.groups.length - 1) [g, to] = [g + 1, 0];
    to = Math.min(Math.max(to, 0), this.groups[g].items.length - 1);
    const item = this.groups[g].items[to];
    this.show(g, to);
    this.draw();
    this.find(item.name)?.focus({ preventScroll: true });
  }

  // show scrolls a cell into view.
  show(g, i) {
    const l = this.lines.find((x) => x.group === this.groups[g] && x.from !== undefined && x.from <= i && i < x.to);
    const top = l.top + this.el.getBoundingClientRect().top, room = 110;
    if (top < room) scrollBy(0, top - room);
    else if (top + l.height > innerHeight - 20) scrollBy(0, top + l.height - innerHeight + 20);
  }
}
