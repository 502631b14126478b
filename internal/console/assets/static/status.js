// What is the matter with a node, in one word, by what needs a person most.
import { seconds, clock } from "./dom.js";

export const statuses = {
  refused: { text: "attestation refused", shape: "refuse", tone: "bad" },
  failing: { text: "failing a check", shape: "fail", tone: "bad" },
  quarantined: { text: "quarantined", shape: "cross", tone: "bad" },
  silent: { text: "silent", shape: "silent", tone: "warn" },
  off: { text: "switched off", shape: "unplug", tone: "off" },
  pending: { text: "waits for approval", shape: "ask", tone: "pend" },
  moving: { text: "on the move", shape: "move", tone: "move" },
  trying: { text: "trial boot", shape: "half", tone: "move" },
  installer: { text: "in the installer", shape: "down", tone: "move" },
  unproven: { text: "not proven", shape: "open", tone: "off" },
  cordoned: { text: "cordoned", shape: "pause", tone: "off" },
  ok: { text: "well", shape: "ok", tone: "ok" },
};

export const statusNames = Object.keys(statuses);

// statusOf names the status of a row of the fleet.
export function statusOf(r) {
  if (r.state === "pending") return "pending";
  if (r.state === "quarantined") return "quarantined";
  if (r.power === "off") return "off";
  if (r.silent) return "silent";
  if (r.attest === "refused") return "refused";
  if (r.health === "failing") return "failing";
  if (r.wanted) return "moving";
  if (r.slotState === "trying") return "trying";
  if (r.stage && r.stage !== "system") return "installer";
  if (r.state === "cordoned") return "cordoned";
  if (r.health === "healthy" && r.attest === "accepted") return "ok";
  return "unproven";
}

const since = (at) => seconds((Date.now() + clock.ahead - new Date(at)) / 1000);

// detail says in a few words what a cell has no room for.
export function detail(r, status) {
  switch (status) {
    case "silent": return "silent for " + since(r.silent) + (r.power === "on" ? ", power is on" : "");
    case "off": return r.silent ? "switched off, silent for " + since(r.silent) : statuses.off.text;
    case "failing": return r.check;
    case "quarantined": case "pending": case "cordoned": return r.reason || statuses[status].text;
    case "moving": case "installer": case "trying": return r.activity && r.activity !== "idle" ? r.activity : statuses[status].text;
    case "unproven":
      if (r.attest === "last boot") return "not attested since boot";
      if (!r.attest) return r.stage ? "not attested" : "never seen";
      return r.check || "health not known";
  }
  return statuses[status].text;
}

// sentence is a whole row for a screen reader or a tooltip.
export function sentence(r, status) {
  const slot = r.slot ? ", slot " + r.slot + " (" + r.slotState + "), " + (r.imageName || "unknown image") : "";
  const d = detail(r, status);
  return r.name + ": " + statuses[status].text + (d && d !== statuses[status].text ? ", " + d : "") + slot +
    (r.power ? ", power " + r.power : "") + (r.health ? ", health " + r.health : "") + (r.attest ? ", attestation " + r.attest : "") + ", pool " + r.pool;
}
