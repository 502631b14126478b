// What a node measures of itself: a table of its GPUs, and the other numbers.
import { h, table, facts } from "./dom.js";

// units are the last words of a number's name, and how they are shown.
const units = { celsius: "°C", watts: "W", megahertz: "MHz", mhz: "MHz", percent: "%", bytes: "B", seconds: "s", count: "", total: "" };

// split takes "sm_clock_megahertz" apart into ["sm clock", "MHz"].
function split(name) {
  const words = name.split("_"), unit = units[words.at(-1)];
  return unit === undefined || words.length < 2 ? [words.join(" "), ""] : [words.slice(0, -1).join(" "), unit];
}

const number = (v) => v === undefined ? "–" : Number.isInteger(v) ? v.toLocaleString("en") : v.toLocaleString("en", { maximumFractionDigits: 2 });

// median of some numbers; undefined of none.
function median(list) {
  const s = list.filter((v) => v !== undefined).sort((a, b) => a - b), n = s.length;
  return n ? (s[(n - 1) >> 1] + s[n >> 1]) / 2 : undefined;
}

// farOff says whether one GPU differs from its neighbours by more than a tenth.
const farOff = (v, m, n) => v !== undefined && n > 2 && Math.abs(v - m) > Math.max(Math.abs(m) / 10, 1);

// drawGauges draws metrics such as "gpu.0.temperature_celsius".
export function drawGauges(metrics) {
  const gpus = new Map(), columns = new Set(), others = [];
  for (const [key, v] of Object.entries(metrics ?? {}).sort()) {
    const m = /^gpu\.(\d+)\.(.+)$/.exec(key);
    if (!m) { others.push([split(key.replaceAll(".", " ")), v]); continue; }
    if (!gpus.has(m[1])) gpus.set(m[1], {});
    gpus.get(m[1])[m[2]] = v;
    columns.add(m[2]);
  }
  const cols = [...columns].sort(), ids = [...gpus.keys()].sort((a, b) => a - b);
  return [
    ids.length > 0 && h("section", null, h("h2", null, "GPUs"), table("GPUs", ["GPU", ...cols.map((c) => { const [name, unit] = split(c); return unit ? name + ", " + unit : name; })],
      ids.map((id) => h("tr", null, h("th", { scope: "row" }, id), cols.map((c) => {
        const all = ids.map((i) => gpus.get(i)[c]), m = median(all), v = gpus.get(id)[c], off = farOff(v, m, all.length);
        return h("td.num", { title: off ? "the median of these GPUs is " + number(m) : null }, off ? h("b.t-warn.tone", null, number(v), " ≠") : number(v));
      }))))),
    others.length > 0 && h("section", null, h("h2", null, "Measurements"), facts(others.map(([[name, unit], v]) => [name, number(v) + (unit ? " " + unit : "")]))),
  ];
}
