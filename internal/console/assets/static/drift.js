// The drift page: where the fleet is not as it should be, or soon will not be.
import { h, fill, icon, ago, short, imageLink, nodeLink, table, count } from "./dom.js";
import { get } from "./api.js";
import { fleet } from "./live.js";

const states = { supported: ["ok", "ok", "supported"], ending: ["half", "warn", "ends soon"], ended: ["fail", "bad", "ended"], unknown: ["open", "off", "not known"] };

export async function show(main, { query, setQuery }) {
  const want = { pool: query.get("pool") ?? "" };
  let closed = false;
  const pools = [...new Set([...fleet.rows.values()].map((r) => r.pool)), want.pool].filter(Boolean);
  const box = h("div", { role: "status" });
  const select = h("select", { id: "pool", change: (e) => { want.pool = e.target.value; setQuery(want, {}); load(); } },
    h("option", { value: "" }, "all pools"), [...new Set(pools)].sort().map((p) => h("option", { value: p, selected: p === want.pool }, p)));
  fill(main, h("div.head", null, h("h1", null, "Drift"), h("span.muted", null, "where the fleet is not as it should be, or soon will not be")),
    h("div.bar", null, h("label", { for: "pool" }, "Pool"), select, h("button", { type: "button", click: load }, "Look again")), box);

  async function load() {
    const [d, images] = await Promise.all([get("/v1/drift?pool=" + encodeURIComponent(want.pool)), get("/v1/images")]);
    if (!closed) fill(box, draw(d, images));
  }
  await load();
  return () => { closed = true; };
}

function draw(d, images) {
  const label = (digest) => { const i = images.find((x) => x.digest === digest); return i ? i.name + " " + i.version : short(digest); };
  const image = (digest) => digest ? imageLink(digest, label(digest)) : h("span.muted", null, "none");
  const nodes = (list) => list.length > 12 ? h("details", null, h("summary", null, count(list.length, "node")), list.map((n) => [nodeLink(n), " "])) : list.map((n) => [nodeLink(n), " "]);
  const part = (title, list, none, heads, row) => h("section", null, h("h2", null, title, " ", h("span.muted", null, list.length ? "(" + list.length + ")" : "")),
    list.length ? table(title, heads, list.map((x) => h("tr", null, row(x).map((c) => h("td", null, c))))) : h("p.muted", null, icon("ok"), " ", none));
  return [
    part("Nodes off their pool's image", d.offImage ?? [], "Every node runs the image of its pool.", ["Node", "Pool", "Runs", "Should run", "Why"],
      (x) => [nodeLink(x.node), x.pool, image(x.runs), image(x.wants), x.why]),
    part("Driver versions", d.drivers ?? [], "No node reports a driver.", ["Version", "Branch", "Nodes", "Pools"], (x) => {
      const [sh, tone, text] = states[x.state] ?? states.unknown;
      return [h("span.mono", null, x.version), h("span.tone", { class: "t-" + tone, title: x.source }, icon(sh), text + (x.eol ? ", " + x.eol : "")), nodes(x.nodes), x.pools.join(", ")];
    }),
    part("Firmware that stands out", d.firmware ?? [], "Firmware is within its pins, and alike on machines of a kind.", ["Node", "Model", "Component", "Version", "Usual", "Pin"],
      (x) => [nodeLink(x.node), x.model, x.component, h("span.mono", null, x.version), x.usual ? h("span", null, h("span.mono", null, x.usual), " on " + count(x.peers ?? 0, "machine")) : "–", x.pin || "–"]),
    part("GPUs that an image is not for", d.gpus ?? [], "Every image is for the GPUs of its pool.", ["Pool", "Image", "GPU", "Nodes", "What is wrong"],
      (x) => [x.pool, image(x.image), x.board, nodes(x.nodes), [x.message, x.hint && h("p.hint", null, x.hint)]]),
    h("p.muted", null, "As of ", ago(d.at), ". The same: ", h("code", null, "pxeserver drift"), "."),
  ];
}
