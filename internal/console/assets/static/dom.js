// Elements, icons, and how things are written. No markup is ever made of
// text: the content security policy would refuse it.

const SVG = "http://www.w3.org/2000/svg";

// h makes an element: h("p.note", {title: "…"}, "text", child, …). Attributes
// that are functions listen; null, undefined and false leave things out.
export function h(name, attrs, ...children) {
  const [tag, ...classes] = name.split(".");
  const e = document.createElement(tag || "div");
  if (classes.length) e.className = classes.join(" ");
  for (const [k, v] of Object.entries(attrs ?? {})) {
    if (v === null || v === undefined || v === false) continue;
    if (typeof v === "function") e.addEventListener(k, v);
    else if (k === "class") e.className += " " + v;
    else e.setAttribute(k, v === true ? "" : String(v));
  }
  add(e, children);
  return e;
}

function add(e, children) {
  for (const c of children.flat(Infinity)) {
    if (c !== null && c !== undefined && c !== false) e.append(c);
  }
}

// fill replaces what is in an element.
export function fill(e, ...children) {
  const f = document.createDocumentFragment();
  add(f, children);
  e.replaceChildren(f);
}

// Shapes of 16 by 16: each status differs in shape, not in colour only.
const shapes = {
  ok: ["M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1z", "M4.6 8.2l2.3 2.4 4.5-5"],
  open: [null, "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2z"],
  half: ["M8 2a6 6 0 0 0 0 12z", "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2z"],
  move: ["M1 2h9l5 6-5 6H1z", "M4 8h6M8 5.4L10.6 8 8 10.6"],
  down: [null, "M8 1.5v8M4.5 6.5L8 10l3.5-3.5M2 11v3.5h12V11"],
  fail: ["M8 1l7.5 13.5H.5z", "M8 6v4M8 12.2v.3"],
  refuse: ["M5 1h6l4 4v6l-4 4H5l-4-4V5z", "M5.3 5.3l5.4 5.4M10.7 5.3l-5.4 5.4"],
  silent: [null, "M5.2 2.7a6 6 0 0 1 5.6 0M13.3 5.2a6 6 0 0 1 0 5.6M10.8 13.3a6 6 0 0 1-5.6 0M2.7 10.8a6 6 0 0 1 0-5.6M5 8h6"],
  ask: ["M8 .5L15.5 8 8 15.5.5 8z", "M6.2 6.4c0-2.4 3.6-2.3 3.6 0 0 1.4-1.8 1.4-1.8 2.8M8 11.3v.3"],
  pause: ["M2 2h12v12H2z", "M6 5v6M10 5v6"],
  cross: ["M2 2h12v12H2z", "M5.2 5.2l5.6 5.6M10.8 5.2l-5.6 5.6"],
  back: [null, "M6 3L2.5 6.5 6 10M3 6.5h6a4 4 0 0 1 0 8H7"],
  next: [null, "M8 2v11M4 9l4 4 4-4"],
  skip: [null, "M3 8h10"],
  proven: [null, "M8 1.2l5.5 2v4.3c0 3.6-2.4 6-5.5 7.3-3.1-1.3-5.5-3.7-5.5-7.3V3.2zM5.4 8l1.9 2 3.3-3.8"],
  disproven: [null, "M8 1.2l5.5 2v4.3c0 3.6-2.4 6-5.5 7.3-3.1-1.3-5.5-3.7-5.5-7.3V3.2zM5.8 5.8l4.4 4.4M10.2 5.8l-4.4 4.4"],
  unproved: [null, "M8 1.2l5.5 2v4.3c0 3.6-2.4 6-5.5 7.3-3.1-1.3-5.5-3.7-5.5-7.3V3.2z"],
  healthy: [null, "M1 8h3l2-4.5 3.5 9 2-4.5H15"],
  unhealthy: [null, "M1 8h3.5M11.5 8H15M5.8 5.8l4.4 4.4M10.2 5.8l-4.4 4.4"],
  power: [null, "M8 1.5v6M4.4 3.8a5.6 5.6 0 1 0 7.2 0"],
  unplug: [null, "M4.4 3.8a5.6 5.6 0 1 0 7.2 0M3 1.5l10 12"],
};

// icon draws a shape; with a label it speaks, else it is decoration.
export function icon(shape, label) {
  const s = document.createElementNS(SVG, "svg");
  s.setAttribute("viewBox", "0 0 16 16");
  s.setAttribute("class", "icon");
  if (label) {
    s.setAttribute("role", "img");
    s.setAttribute("aria-label", label);
  } else s.setAttribute("aria-hidden", "true");
  const [solid, line] = shapes[shape] ?? shapes.open;
  if (solid) s.append(svgPath(solid, "solid"));
  if (line) s.append(svgPath(line, solid && shape !== "half" ? "mark" : "line"));
  return s;
}

function svgPath(d, cls) {
  const p = document.createElementNS(SVG, "path");
  p.setAttribute("d", d);
  p.setAttribute("class", cls);
  return p;
}

// clock is how far the server's clock is ahead of ours, in milliseconds.
export const clock = { ahead: 0 };

const two = (n) => String(n).padStart(2, "0");

export function seconds(n) {
  n = Math.max(0, Math.round(n));
  if (n < 60) return n + " s";
  if (n < 3600) return Math.floor(n / 60) + " min" + (n % 60 && n < 600 ? " " + (n % 60) + " s" : "");
  if (n < 86400) return Math.floor(n / 3600) + " h " + two(Math.floor((n % 3600) / 60));
  return Math.floor(n / 86400) + " d " + Math.floor((n % 86400) / 3600) + " h";
}

export const since = (from, to) => seconds((new Date(to) - new Date(from)) / 1000);

function agoText(at) {
  const s = (Date.now() + clock.ahead - new Date(at)) / 1000;
  return s < 5 ? "just now" : seconds(s) + " ago";
}

// ago shows a time as distance; it stays true while it is on the page.
export function ago(at) {
  if (!at) return "never";
  return h("time.ago", { datetime: at, title: full(at) }, agoText(at));
}

setInterval(() => {
  for (const e of document.querySelectorAll("time.ago")) e.textContent = agoText(e.dateTime);
}, 10000);

export function full(at) {
  return new Date(at).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

// clockTime is the time of day, with the date if it is not today.
export function clockTime(at) {
  const d = new Date(at);
  const t = two(d.getHours()) + ":" + two(d.getMinutes()) + ":" + two(d.getSeconds());
  const sameDay = d.toDateString() === new Date(Date.now() + clock.ahead).toDateString();
  return h("time", { datetime: at, title: full(at) }, sameDay ? t : d.getFullYear() + "-" + two(d.getMonth() + 1) + "-" + two(d.getDate()) + " " + t);
}

export function bytes(n) {
  if (n >= 2 ** 40) return (n / 2 ** 40).toFixed(1) + " TiB";
  if (n >= 2 ** 30) return (n / 2 ** 30).toFixed(1) + " GiB";
  if (n >= 2 ** 20) return Math.round(n / 2 ** 20) + " MiB";
  if (n >= 2 ** 10) return Math.round(n / 2 ** 10) + " KiB";
  return n + " B";
}

export const count = (n, one, many) => n.toLocaleString() + " " + (n === 1 ? one : many ?? one + "s");

// short is an image digest as operators see it.
export const short = (digest) => (digest ?? "").replace(/^sha256:/, "").slice(0, 12);

export function imageLink(digest, name) {
  if (!digest) return h("span.muted", null, "none");
  return h("a", { href: "/console/images/" + short(digest), title: digest }, name || short(digest));
}

export const nodeLink = (name) => h("a", { href: "/console/nodes/" + encodeURIComponent(name) }, name);

// facts makes a list of terms; empty ones are left out.
export function facts(list) {
  return h("dl.facts", null, list.filter(([, v]) => v !== undefined && v !== null && v !== "" && v !== false)
    .map(([k, v]) => h("div", null, h("dt", null, k), h("dd", null, v))));
}

export function table(caption, heads, rows) {
  return h("div.scroll", { tabindex: 0, role: "region", "aria-label": caption },
    h("table", null, h("thead", null, h("tr", null, heads.map((t) => h("th", { scope: "col" }, t)))), h("tbody", null, rows)));
}
