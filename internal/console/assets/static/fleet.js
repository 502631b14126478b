// The fleet page: every node a cell, filtered and grouped.
import { h, fill, icon, count, short } from "./dom.js";
import { fleet, on } from "./live.js";
import { statuses, statusNames, statusOf, detail, sentence } from "./status.js";
import { Grid } from "./grid.js";

const groupings = {
  pool: { label: "pool", of: (r) => r.pool },
  rack: { label: "rack", of: (r) => r.rack || "no rack in the name" },
  image: { label: "image", of: (r) => r.imageName || "no image" },
  status: { label: "status", of: (r) => statuses[r.status].text },
  power: { label: "power", of: (r) => (r.power ? "power " + r.power : "power not known") },
  driver: { label: "driver version", of: (r) => (r.driver ? "driver " + r.driver : "no driver") },
  kernel: { label: "kernel", of: (r) => r.kernel || "no kernel" },
};

const sizes = { get cards() { return { width: innerWidth < 640 ? 165 : 216, height: 74 }; }, tiles: { width: 46, height: 32 } };
const tilesFrom = 400; // nodes from which tiles are shown unless asked otherwise

// marks are health, attestation and power, each a shape that speaks.
function marks(r) {
  const one = (key, shape, label) => h("span.mark", { class: key }, icon(shape, label));
  return [
    r.health && r.health !== "unknown" && one("h-" + r.health, r.health === "healthy" ? "healthy" : "unhealthy", "health: " + r.health),
    r.attest && one("a-" + r.attest.replace(" ", "-"), { accepted: "proven", refused: "disproven" }[r.attest] ?? "unproved", "attestation: " + r.attest),
    r.power && one("p-" + r.power, r.power === "on" ? "power" : "unplug", "power: " + r.power),
  ];
}

function card(r) {
  const s = statuses[r.status];
  return h("a.cell.card", { href: "/console/nodes/" + encodeURIComponent(r.name), class: "t-" + s.tone, title: sentence(r, r.status) },
    h("span.c1", null, icon(s.shape), h("b", null, r.name), marks(r), r.slot && h("span.slot", { class: "s-" + r.slotState }, r.slot)),
    h("span.c2", null, r.imageName || (r.image ? short(r.image) : "no image")),
    h("span.c3", null, detail(r, r.status)));
}

const tileOf = {}; // by status: a copy is much cheaper than a new one

function tile(r) {
  const s = statuses[r.status];
  const e = (tileOf[r.status] ??= h("a.cell.tile", { class: "t-" + s.tone }, icon(s.shape), h("span.slot"))).cloneNode(true);
  e.href = "/console/nodes/" + encodeURIComponent(r.name);
  e.title = sentence(r, r.status);
  e.setAttribute("aria-label", e.title);
  e.lastChild.textContent = r.slot || "–";
  return e;
}

// byName puts n2 before n10.
const order = new Intl.Collator("en", { numeric: true }).compare;

export function show(main, { query, setQuery }) {
  const want = { q: query.get("q") ?? "", group: groupings[query.get("group")] ? query.get("group") : "pool", size: query.get("size") ?? "", status: query.get("status") ?? "" };
  const chips = h("div.chips", { role: "group", "aria-label": "Filter by status" });
  const grid = new Grid({ label: "Nodes", cell: (r) => (sizeNow() === "tiles" ? tile(r) : card(r)), size: sizes.cards });
  const note = h("p.empty", { hidden: true });
  const total = h("span.muted", { role: "status" });

  const sizeNow = () => want.size || (fleet.rows.size >= tilesFrom ? "tiles" : "cards");
  const change = (k) => (e) => { want[k] = e.target.value; setQuery(want, { group: "pool" }); update(); };
  const search = h("input", { type: "search", id: "q", value: want.q, placeholder: "name, pool, image, reason…", input: change("q"), autocomplete: "off" });
  const group = h("select", { id: "group", change: change("group") }, Object.entries(groupings).map(([k, g]) => h("option", { value: k, selected: k === want.group }, g.label)));
  const size = h("select", { id: "size", change: change("size") }, [["", "automatic"], ["cards", "cards"], ["tiles", "tiles"]].map(([k, t]) => h("option", { value: k, selected: k === want.size }, t)));

  fill(main,
    h("div.head", null, h("h1", null, "Fleet"), total),
    h("div.bar", null,
      h("label", { for: "q" }, "Filter"), search,
      h("label", { for: "group" }, "Group by"), group,
      h("label", { for: "size" }, "Show as"), size),
    chips, note, grid.el);

  function matches(r, words) {
    if (!words.length) return true;
    const text = (r.name + " " + r.pool + " " + (r.imageName ?? "") + " " + short(r.image) + " " + detail(r, r.status) + " " + (r.kernel ?? "") + " " + (r.driver ?? "") + " " + (r.rollout ?? "") + (r.power ? " power " + r.power : "")).toLowerCase();
    return words.every((w) => text.includes(w));
  }

  function update() {
    const words = want.q.toLowerCase().split(/\s+/).filter(Boolean);
    const tally = Object.fromEntries(statusNames.map((s) => [s, 0]));
    const groups = new Map();
    let shown = 0;
    for (const r of fleet.rows.values()) {
      r.status = statusOf(r);
      if (!matches(r, words)) continue;
      tally[r.status]++;
      if (want.status && r.status !== want.status) continue;
      shown++;
      const key = groupings[want.group].of(r);
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(r);
    }
    drawChips(tally);
    const list = [...groups].sort((a, b) => order(a[0], b[0])).map(([key, items]) => {
      items.sort((a, b) => order(a.name, b.name));
      return { key, items, head: [h("span", null, key), h("span.muted", null, " " + count(items.length, "node") + sumUp(items))] };
    });
    note.hidden = shown > 0;
    note.textContent = !fleet.whole ? "Loading the fleet…" : fleet.rows.size ? "No node matches the filter." : "No node has been seen yet. Machines that boot from the network show up here and wait for approval.";
    total.textContent = shown === fleet.rows.size ? count(shown, "node") : shown.toLocaleString() + " of " + count(fleet.rows.size, "node");
    grid.set(list, sizes[sizeNow()]);
  }

  function sumUp(items) {
    const bad = items.filter((r) => statuses[r.status].tone === "bad").length;
    return bad ? ", " + bad + " in trouble" : "";
  }

  function drawChips(tally) {
    const active = document.activeElement?.dataset?.status;
    fill(chips, statusNames.filter((s) => tally[s] || s === want.status).map((s) =>
      h("button.chip", { type: "button", class: "t-" + statuses[s].tone, "aria-pressed": want.status === s ? "true" : "false", "data-status": s,
        click: () => { want.status = want.status === s ? "" : s; setQuery(want, { group: "pool" }); update(); } },
      icon(statuses[s].shape), statuses[s].text, h("b", null, tally[s].toLocaleString()))));
    if (active) chips.querySelector(`[data-status="${active}"]`)?.focus();
  }

  let due = 0;
  const off = on("rows", () => { due ||= setTimeout(() => { due = 0; update(); }, fleet.rows.size > 2000 ? 1000 : 100); });
  update();
  return () => { off(); clearTimeout(due); grid.close(); };
}
