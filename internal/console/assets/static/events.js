// The events page: the fleet's history, as it happens.
import { h, fill, clockTime, nodeLink } from "./dom.js";
import { get } from "./api.js";
import { on } from "./live.js";

const bad = /(failed|refused|condemned|banned|slot-bad|halted|lost|foreign|conflict|loop|unhealthy|exhausted)/;
const good = /(confirmed|accepted|passed|done|healthy|slot-good|back)$/;

// tone says how an event is to be seen: "bad", "ok" or "".
export const tone = (kind) => (bad.test(kind) ? "bad" : good.test(kind) ? "ok" : "");

export function eventRow(e, withNode = true) {
  const t = tone(e.kind);
  return h("tr", { class: t && "e-" + t },
    h("td.nowrap", null, clockTime(e.at)),
    withNode && h("td.nowrap", null, e.node ? nodeLink(e.node) : ""),
    h("td.nowrap.mono", null, t === "bad" ? "▲ " : "", e.kind), h("td.wide", null, e.message), h("td.nowrap.muted", null, e.actor));
}

const maxShown = 2000;

export function show(main, { query, setQuery }) {
  const want = { node: query.get("node") ?? "", kind: query.get("kind") ?? "", q: query.get("q") ?? "" };
  let all = [], newest = 0, limit = 300, paused = false, closed = false;
  const body = h("tbody");
  const older = h("button", { type: "button", click: () => { limit = Math.min(limit * 4, 10000); load(); } }, "Show older ones");
  const hold = h("button", { type: "button", "aria-pressed": "false", click: () => { paused = !paused; hold.setAttribute("aria-pressed", paused); hold.textContent = paused ? "Go on" : "Hold"; if (!paused) draw(); } }, "Hold");
  const input = (k, label, hint) => [h("label", { for: "f" + k }, label), h("input", { id: "f" + k, type: "search", value: want[k], placeholder: hint, autocomplete: "off",
    change: (e) => { want[k] = e.target.value.trim(); setQuery(want, {}); load(); } })];
  fill(main,
    h("div.head", null, h("h1", null, "Events"), h("span.muted", null, "newest first, as they happen")),
    h("div.bar", null, input("node", "Node", "n1"), input("kind", "Kind begins with", "attest."), input("q", "Text", "any word"), hold),
    h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Events" },
      h("table.events", null, h("thead", null, h("tr", null, ["Time", "Node", "Kind", "What happened", "By"].map((t) => h("th", { scope: "col" }, t)))), body)),
    h("p", null, older));

  const fits = (e) => (!want.node || e.node === want.node) && e.kind.startsWith(want.kind) && (!want.q || (e.message + " " + e.actor).toLowerCase().includes(want.q.toLowerCase()));

  async function load() {
    const q = new URLSearchParams({ last: "1", limit });
    if (want.node) q.set("node", want.node);
    if (want.kind) q.set("kind", want.kind);
    const got = await get("/v1/events?" + q);
    if (closed) return;
    older.hidden = got.length < limit || limit >= 10000;
    all = got.filter(fits).reverse();
    newest = got.at(-1)?.id ?? newest;
    draw();
  }

  function draw() {
    fill(body, all.length ? all.slice(0, maxShown).map((e) => eventRow(e)) : h("tr", null, h("td.empty", { colspan: 5 }, "Nothing that fits has happened.")));
  }

  const off = on("events", (list) => {
    const fresh = list.filter((e) => e.id > newest && fits(e)).reverse();
    newest = Math.max(newest, ...list.map((e) => e.id));
    if (!fresh.length) return;
    all = [...fresh, ...all].slice(0, maxShown);
    if (paused) { hold.textContent = "Go on"; return; }
    if (body.querySelector(".empty")) body.replaceChildren();
    body.prepend(...fresh.map((e) => eventRow(e)));
    while (body.childElementCount > maxShown) body.lastElementChild.remove();
  });
  load().catch((e) => fill(body, h("tr", null, h("td.error", { colspan: 5 }, e.message))));
  return () => { closed = true; off(); };
}
