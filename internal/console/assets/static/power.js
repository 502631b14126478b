// The section of a node's page that speaks, through the server, with its
// management controller (BMC). Nothing is asked of the BMC until a person does.
import { h, fill, table, facts } from "./dom.js";
import { get, post, may } from "./api.js";
import { ask, toast } from "./dialog.js";

const words = {
  on: ["Switch on", "Its power is switched on, and it boots as its firmware is set.", ""],
  shutdown: ["Shut down", "Its operating system is asked to shut down; then the power goes off.", "danger"],
  cycle: ["Power cycle", "Its power goes off and on at once, as if the cord was pulled: what it runs is lost. A confirmed slot comes back by itself.", "danger"],
  off: ["Switch off", "Its power goes off at once, as if the cord was pulled: what it runs is lost.", "danger"],
};

// openPower returns the section for a node and what loads it; it stays in the
// page between redraws.
export function openPower(name) {
  const path = "/v1/nodes/" + encodeURIComponent(name) + "/bmc";
  const box = h("section.power", { hidden: true });
  const state = h("span.badge.t-off", null, "not asked");
  const answers = h("div", { role: "status" });

  async function tell(what, fn) {
    fill(answers, h("p.muted", null, "Asking the BMC for its " + what + " …"));
    try { fill(answers, await fn()); } catch (e) { fill(answers, h("p.error", null, e.message, e.hint && h("span.hint", null, " " + e.hint))); }
  }

  const show = (p) => fill(state, "power " + p.state.toLowerCase());
  const asked = {
    power: ["power", async () => { show(await get(path + "/power")); return null; }],
    sensors: ["sensors", async () => table("Sensors", ["Sensor", "Kind", "Reading", "Critical at", "Health"], (await get(path + "/sensors")).map((s) => h("tr", null,
      h("td", null, s.name), h("td", null, s.kind), h("td.nowrap", null, s.reading + " " + (s.unit ?? "")), h("td", null, s.critical ?? "–"), h("td", null, s.health || "–"))))],
    firmware: ["firmware", async () => table("Firmware", ["Name", "Version"], (await get(path + "/firmware")).map((f) => h("tr", null, h("td", null, f.name), h("td.mono", null, f.version))))],
  };

  async function act(kind) {
    const [title, text, cls] = words[kind];
    const p = await ask({ title: title + ": " + name, button: title, danger: cls === "danger", body: h("p", null, text),
      fields: [{ name: "reason", label: "Reason", hint: "Kept in the history.", placeholder: "why" }], act: (v) => post(path + "/power", { act: kind, ...v }) });
    if (!p) return;
    show(p);
    toast(title + ": done.");
  }

  async function network() {
    const done = await ask({ title: "Boot " + name + " from the network, once", button: "Set", body: h("p", null, "With its next start it gets the installer, which repairs a damaged slot. Nothing is restarted now."),
      act: async () => { await post(path + "/boot", { target: "pxe" }); return true; } });
    if (done) toast("The next start is from the network.");
  }

  const button = (text, cls, role, click, key) => h("button", { type: "button", class: cls, "data-act": key, disabled: !may(role),
    title: may(role) ? null : "your token's role does not allow it", click: () => click().catch((e) => toast(e.message)) }, text);

  function draw(b) {
    box.hidden = false;
    fill(box, h("h2", null, "Power and BMC "), h("div.actions.left", null, state,
      button("Ask", "", "viewer", () => tell(...asked.power), "bmc-power"),
      Object.entries(words).map(([k, [title]]) => button(title + "…", "", "operator", () => act(k), "power-" + k)),
      button("Network boot once…", "", "operator", network, "bmc-network"),
      button("Sensors", "", "viewer", () => tell(...asked.sensors), "bmc-sensors"), button("Firmware", "", "viewer", () => tell(...asked.firmware), "bmc-firmware")),
    answers, facts([["Reached at", b.url], ["As", b.user]]));
  }

  // A node without a BMC has no such section.
  async function load() {
    const b = (await get("/v1/bmcs")).find((x) => x.node === name);
    if (b) draw(b);
  }

  return { box, load };
}
