// A node's story as steps from left to right, the newest episode first.
import { h, icon, clockTime, since, ago } from "./dom.js";

const phases = {
  net: ["Network boot", "DHCP and the boot file"], enrol: ["Enrolled", "TPM shown and proven"], install: ["Installed", "image written and read back"],
  restart: ["Restart", "slot armed, reboot"], boot: ["Booted", "the system reports"], attest: ["Attested", "quote judged"],
  health: ["Healthy", "checks and soak"], outcome: ["Outcome", ""],
};

const look = { done: ["ok", "ok"], active: ["half", "move"], failed: ["refuse", "bad"] };
const outcomes = { confirmed: ["ok", "ok"], running: ["ok", "ok"], "fell back": ["refuse", "bad"], failed: ["fail", "bad"] };

export function drawTimeline(episodes, opened) {
  if (!episodes.length) return h("p.muted", null, "Nothing has happened yet.");
  const before = episodes.slice(2);
  return [episodes.slice(0, 2).map(episode), before.length > 0 && h("details.earlier", { open: opened.has("all"), toggle: (e) => mark(opened, "all", e.target.open) },
    h("summary", null, before.length + " earlier"), before.slice(0, 20).map(episode))];
}

function mark(set, key, open) {
  open ? set.add(key) : set.delete(key);
}

function episode(e) {
  const [shape, tone] = outcomes[e.outcome] ?? ["half", "move"];
  const steps = e.steps.filter((s) => s.phase !== "note");
  return h("div.episode", null,
    h("p.etitle", null, h("b", null, e.title), " ", ago(e.started), h("span.badge", { class: "t-" + tone }, icon(shape), e.outcome || "under way"), h("span.muted", null, since(e.started, e.ended))),
    h("ol.steps", null, steps.map((s, i) => step(s, i > 0 ? steps[i - 1] : null))));
}

function step(s, before) {
  const [name] = phases[s.phase] ?? [s.phase];
  const [shape, tone] = look[s.state] ?? look.active;
  const title = s.phase === "outcome" ? (s.state === "failed" ? "Fell back" : "Confirmed") : s.state === "failed" && s.phase === "health" ? "Health failed" : s.state === "failed" && s.phase === "attest" ? "Refused" : name;
  return h("li.step", { class: "t-" + tone },
    h("span.dot", null, icon(shape, s.state)),
    h("div", null, h("b", null, title), h("span.when", null, clockTime(s.started), before && h("span.muted", null, " +" + since(before.started, s.started))),
      s.phase === "install" && s.state === "active" && s.percent > 0 && h("progress", { max: 100, value: s.percent, "aria-label": "Installed" }, s.percent + " %"),
      h("p", null, s.detail)));
}
