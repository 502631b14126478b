// The images page: what is published, what is in it, who runs it, and how
// two differ.
import { h, fill, short, bytes, ago, facts, table, count, icon } from "./dom.js";
import { get } from "./api.js";
import { fleet, on } from "./live.js";

const media = { packages: "application/vnd.turnout.packages.v1+json", sbom: "application/spdx+json" };

export async function show(main, { arg, query, setQuery, go }) {
  return arg ? one(main, arg, query, setQuery) : list(main, go);
}

// runners counts the nodes that run an image, and those that keep it in the other slot.
function runners(digest) {
  let booted = 0, other = 0;
  for (const r of fleet.rows.values()) {
    if (r.image === digest) booted++;
    if (r.other === digest) other++;
  }
  return { booted, other };
}

async function list(main) {
  let images = await get("/v1/images");
  function draw() {
    const most = Math.max(1, fleet.rows.size);
    fill(main, h("div.head", null, h("h1", null, "Images"), h("span.muted", null, count(images.length, "published image"))),
      images.length === 0 ? h("p.empty", null, "No image is published yet: ", h("code", null, "pxeserver image publish DIR"), " does that.")
        : table("Images", ["Image", "Digest", "Kernel", "Size", "Published", "Runs on", "In the other slot"], images.map((i) => {
          const n = runners(i.digest);
          return h("tr", null, h("td.nowrap", null, h("a", { href: "/console/images/" + short(i.digest) }, h("b", null, i.name + " " + i.version))), h("td.mono", null, short(i.digest)), h("td.nowrap", null, i.kernel),
            h("td.nowrap.num", null, bytes(i.sizeBytes)), h("td.nowrap", null, ago(i.published)),
            h("td.nowrap", null, h("meter", { min: 0, max: most, value: n.booted, "aria-label": "share of the fleet" }), " ", h("a", { href: "/console/fleet?group=image&q=" + short(i.digest) }, count(n.booted, "node"))),
            h("td.nowrap", null, count(n.other, "node")));
        })));
  }
  draw();
  let due = 0;
  const offs = [
    on("rows", () => { due ||= setTimeout(() => { due = 0; draw(); }, 1000); }),
    on("events", async (l) => { if (l.some((e) => e.kind.startsWith("image."))) { images = await get("/v1/images"); draw(); } }),
  ];
  return () => { clearTimeout(due); offs.forEach((f) => f()); };
}

async function packagesOf(image) {
  const f = image.files.find((x) => x.mediaType === media.packages);
  return f ? get("/v1/images/" + image.digest + "/blobs/" + f.digest) : [];
}

async function one(main, ref, query, setQuery) {
  const [image, images] = await Promise.all([get("/v1/images/" + encodeURIComponent(ref)), get("/v1/images")]);
  const m = image.manifest, packages = await packagesOf(image);
  const other = h("select", { id: "against", change: () => compare(other.value) }, h("option", { value: "" }, "choose an image"),
    images.filter((i) => i.digest !== image.digest).map((i) => h("option", { value: short(i.digest) }, i.name + " " + i.version + " (" + short(i.digest) + ")")));
  const diff = h("div", { role: "status" });
  const n = runners(image.digest), sbom = image.files.find((f) => f.mediaType === media.sbom);
  const find = h("input", { type: "search", id: "pkg", placeholder: "package", input: () => drawPackages() });
  const body = h("tbody"), note = h("span.muted");

  function drawPackages() {
    const hits = packages.filter((p) => p.name.includes(find.value.trim()));
    note.textContent = count(hits.length, "package");
    fill(body, hits.slice(0, 1000).map((p) => h("tr", null, h("td", null, p.name), h("td.mono", null, p.version), h("td", null, p.architecture), h("td", null, p.source ?? ""))));
  }

  fill(main,
    h("p.crumbs", null, h("a", { href: "/console/images" }, "Images")),
    h("div.head", null, h("h1", null, image.name + " " + image.version), h("span.mono.muted", null, short(image.digest))),
    h("p", null, h("a", { href: "/console/fleet?group=image&q=" + short(image.digest) }, "runs on " + count(n.booted, "node")), ", in the other slot of " + count(n.other, "node") + ". ",
      sbom && h("a", { href: "/v1/images/" + image.digest + "/blobs/" + sbom.digest, download: image.name + "-" + image.version + ".spdx.json" }, "Download the SBOM (SPDX)")),
    h("section", null, h("h2", null, "Contents"), facts([
      ["Digest", h("code", null, image.digest)], ["Published", ago(image.published)], ["Architecture", m.architecture], ["Kernel", m.kernel.release], ["Kernel package", m.kernel.package + " " + m.kernel.version],
      ["Size", bytes(image.sizeBytes)], ["Root hash", h("code", null, m.verity.rootHash)], ["Recipe", m.recipeDigest && h("code", null, short(m.recipeDigest))], ["Lock", m.lockDigest && h("code", null, short(m.lockDigest))], ["systemd stub", m.measurements.stubVersion],
      ["Watchdog", m.boot.watchdog === "0s" ? "none" : m.boot.watchdog], ["Verified", m.boot.verify === "full" ? "whole root before it starts" : m.boot.verify], ["Soak", m.health.soak]])),
    h("section", null, h("h2", null, "Compare with another image"), h("div.bar", null, h("label", { for: "against" }, "Against"), other), diff),
    h("section", null, h("h2", null, "Health checks"), table("Health checks", ["Check", "What", "Class", "Gate"], (m.health.checks ?? []).map((c) => h("tr", null, h("td", null, c.name), h("td.mono.wide", null, what(c)), h("td", null, c.class || "software"), h("td", null, c.advisory ? "advisory" : "required"))))),
    h("section", null, h("h2", null, "Expected measurements"), table("Expected measurements", ["PCR", "For", "Value (SHA-256)"], measurements(m).map(([pcr, name, v]) => h("tr", null, h("td", null, pcr), h("td.nowrap", null, name), h("td.mono.wide", null, v))))),
    h("section", null, h("h2", null, "Files"), table("Files", ["File", "Size", "Digest"], image.files.map((f) => h("tr", null, h("td.nowrap", null, f.title || f.mediaType), h("td.nowrap", null, bytes(f.sizeBytes)), h("td.mono.wide", null, f.digest))))),
    h("section", null, h("h2", null, "Packages ", note), h("div.bar", null, h("label", { for: "pkg" }, "Filter"), find),
      h("div.scroll.tall", { tabindex: 0, role: "region", "aria-label": "Packages" }, h("table", null, h("thead", null, h("tr", null, ["Package", "Version", "Architecture", "Source"].map((t) => h("th", { scope: "col" }, t)))), body))));
  drawPackages();

  async function compare(with_) {
    setQuery({ against: with_ }, {});
    if (!with_) return fill(diff);
    const b = await get("/v1/images/" + with_);
    fill(diff, difference(image, packages, b, await packagesOf(b)));
  }
  if (query.get("against")) {
    other.value = query.get("against");
    await compare(other.value);
  }
  return () => {};
}

function what(c) {
  return c.exec?.join(" ") || (c.unit && "unit " + c.unit) || (c.units && "units " + c.units) || (c.module && "module " + c.module) || (c.file && "file " + c.file) || (c.kernel && "kernel " + c.kernel) || "";
}

function measurements(m) {
  const of = (d) => d?.sha256 ?? Object.values(d ?? {})[0] ?? "";
  return [
    ...(m.measurements.paths ?? []).map((p) => ["4", "boot path " + p.name, of(p.pcr4)]),
    ...(m.measurements.pcr11 ?? []).map((p) => ["11", p.phase || "before user space", of(p.pcr)]),
    ...(m.measurements.pcr11Installer ?? []).map((p) => ["11", "installer, " + (p.phase || "before user space"), of(p.pcr)]),
  ];
}

// difference lists what another image has otherwise.
function difference(a, pa, b, pb) {
  const rows = [], names = [a.name + " " + a.version, b.name + " " + b.version];
  const put = (what, x, y) => { if (x !== y) rows.push([what, x, y]); };
  put("kernel", a.manifest.kernel.release, b.manifest.kernel.release);
  const va = new Map(pa.map((p) => [p.name + ":" + p.architecture, p.version])), vb = new Map(pb.map((p) => [p.name + ":" + p.architecture, p.version]));
  for (const k of [...new Set([...va.keys(), ...vb.keys()])].sort()) put("package " + k.split(":")[0], va.get(k), vb.get(k));
  put("systemd stub", a.manifest.measurements.stubVersion, b.manifest.measurements.stubVersion);
  put("health checks", (a.manifest.health.checks ?? []).map((c) => c.name).join(", "), (b.manifest.health.checks ?? []).map((c) => c.name).join(", "));
  const ma = new Map(measurements(a.manifest).map(([p, n, v]) => ["PCR " + p + ", " + n, v])), mb = new Map(measurements(b.manifest).map(([p, n, v]) => ["PCR " + p + ", " + n, v]));
  for (const k of new Set([...ma.keys(), ...mb.keys()])) put(k, ma.get(k), mb.get(k));
  put("root hash", a.manifest.verity.rootHash, b.manifest.verity.rootHash);
  put("size", bytes(a.sizeBytes), bytes(b.sizeBytes));
  if (!rows.length) return h("p", null, "They hold the same.");
  return table("Differences", ["What", ...names], rows.map(([w, x, y]) => h("tr", null, h("td.nowrap", null, icon(x === undefined ? "down" : y === undefined ? "cross" : "half", x === undefined ? "only in the other" : y === undefined ? "only here" : "differs"), " ", w), side(x), side(y))));
}

const side = (v) => h("td.mono.wide", null, v ?? h("span.muted", null, "not in it"));
