// The page of one node: what it runs, what has happened, what can be done.
import { h, fill, icon, ago, clockTime, since, bytes, short, imageLink, facts, table, count } from "./dom.js";
import { get, post, remove, may } from "./api.js";
import { fleet, on } from "./live.js";
import { statuses, statusOf, detail } from "./status.js";
import { ask, toast } from "./dialog.js";
import { eventRow } from "./events.js";
import { drawTimeline } from "./timeline.js";
import { drawGauges } from "./gauges.js";
import { openPower } from "./power.js";
import { openSerial } from "./seriallog.js";

export async function show(main, { arg: name, go }) {
  const path = "/v1/nodes/" + encodeURIComponent(name);
  let node, episodes, images, closed = false, due = 0, opened = new Set();
  const power = openPower(name), serial = openSerial(name);

  async function load() {
    [node, episodes, images] = await Promise.all([get(path), get(path + "/timeline"), get("/v1/images")]);
    if (!closed) draw();
  }

  // reload follows news about this node, not more than once in a while.
  function reload() {
    due ||= setTimeout(() => { due = 0; load().catch((e) => { if (e.status === 404) go("/console/fleet"); }); }, 400);
  }

  const label = (digest) => {
    const i = images.find((x) => x.digest === digest);
    return i ? i.name + " " + i.version : short(digest);
  };

  function draw() {
    const r = fleet.rows.get(name);
    const status = r ? statusOf(r) : null;
    const focus = document.activeElement?.dataset?.act;
    fill(main,
      h("p.crumbs", null, h("a", { href: "/console/fleet" }, "Fleet"), " / ", h("a", { href: "/console/fleet?q=" + encodeURIComponent(node.pool) }, node.pool)),
      h("div.head", null,
        h("h1", null, node.name),
        status && h("span.badge", { class: "t-" + statuses[status].tone }, icon(statuses[status].shape), detail(r, status)),
        h("span.muted", null, node.reported?.activity && node.reported.activity !== "idle" ? node.reported.activity + " · " : "", "seen ", ago(node.lastSeen))),
      actions(),
      node.state !== "approved" && h("p.notice", null, "This node is ", h("b", null, node.state), node.reason ? ": " + node.reason : "", "."),
      node.failure && h("p.notice.bad", null, icon("fail"), " Last failure, ", ago(node.failure.at), ", image ", imageLink(node.failure.image, label(node.failure.image)), ": ", node.failure.check ? "check " + node.failure.check + ": " : "", node.failure.detail),
      slots(), wanted(),
      h("section", null, h("h2", null, "What happened"), drawTimeline(episodes, opened)),
      verdict(), health(), power.box, serial.box, drawGauges(node.reported?.metrics), bans(), about(), recent());
    if (focus) main.querySelector(`[data-act="${focus}"]`)?.focus({ preventScroll: true });
  }

  // act asks, does something to the node, and says so.
  async function act(what, dialog, said) {
    const out = await ask({ ...dialog, act: dialog.act ?? ((v) => post(path + "/" + what, v)) });
    if (!out) return;
    toast(said);
    if (out.name && out.name !== name) go("/console/nodes/" + out.name);
    else reload();
  }

  const reason = { name: "reason", label: "Reason", hint: "Kept in the history.", placeholder: "why" };

  const acts = {
    approve: () => act("approve", { title: "Approve " + name, button: "Approve",
      body: h("p", null, "It may enrol with the TPM it has shown (", h("code", null, (node.ekHash || "none yet").slice(0, 16)), "), install its pool's image and run it."),
      fields: [{ name: "name", label: "Name", value: name }, { name: "pool", label: "Pool", value: node.pool }] }, "Approved."),
    async flip() {
      const [plan] = await post("/v1/slots/flip", { nodes: [name], dryRun: true });
      await act("flip", { title: "Flip " + name + " to its other slot", button: "Flip", danger: true, blocked: plan.refused,
        body: plan.refused ? h("p.error", null, "It cannot be flipped: " + plan.refused + ".")
          : [h("p.flip", null, h("span.slot.big", null, plan.from), icon("move", "to"), h("span.slot.big", null, plan.to), h("b", null, plan.name || label(plan.image))),
            h("p", null, "The node reboots once into slot " + plan.to + ", attests, and is confirmed by its health checks. Slot " + plan.from + " is not touched.")],
        fields: plan.refused ? [] : [reason],
        act: async (v) => {
          const [f] = await post("/v1/slots/flip", { nodes: [name], ...v });
          if (f.refused) throw new Error(f.refused);
        } }, "Flip asked for: the node acts with its next heartbeat.");
    },
    async reimage() {
      const pool = (await get("/v1/pools")).find((p) => p.name === node.pool);
      await act("reimage", { title: "Reimage " + name, button: "Reimage", danger: true,
        body: h("p", null, "The image is written anew, into the slot that is not booted if the node runs, onto the whole disk if it is in the installer. Then the node reboots."),
        fields: [{ name: "image", label: "Image", options: [["", "the pool's: " + (pool?.image ? label(pool.image) : "none is set")], ...images.map((i) => [i.digest, i.name + " " + i.version + " (" + short(i.digest) + ")"])] },
          node.banned?.length && { name: "retry", check: true, label: "Although it may be banned here", hint: "An image that failed on this node is tried once more." }].filter(Boolean),
        act: (v) => post(path + "/reimage", { image: v.image, retry: Boolean(v.retry) }) }, "Reimage asked for.");
    },
    cordon: () => act("cordon", { title: "Cordon " + name, button: "Cordon", body: h("p", null, "Rollouts leave it alone until it is uncordoned. What it runs goes on running."), fields: [reason] }, "Cordoned."),
    uncordon: () => act("uncordon", { title: "Uncordon " + name, button: "Uncordon", body: h("p", null, "Rollouts may move it again.") }, "Uncordoned."),
    unban: () => act("unban", { title: "Lift all bans of " + name, button: "Lift", body: h("p", null, "Images that failed on it may be tried on it again: " + (node.banned ?? []).map((b) => label(b.image)).join(", ") + ".") }, "Bans lifted."),
    remove: () => act("remove", { title: "Remove " + name, button: "Remove", danger: true, act: async () => { await remove(path); go("/console/fleet"); },
      body: h("p", null, "The server forgets the node and its TPM. If the machine comes back it is a new one, and waits for approval.") }, name + " is removed."),
  };

  function actions() {
    const pending = node.state === "pending", held = node.state === "cordoned" || node.state === "quarantined";
    const button = (k, text, cls, ok = true) => ok && h("button", { type: "button", class: cls, "data-act": k, disabled: !may("operator"), title: may("operator") ? null : "your token's role is viewer: you may look",
      click: () => acts[k]().catch((e) => toast(e.message)) }, text);
    return h("div.actions.left", null,
      button("approve", "Approve…", "primary", pending || node.state === "quarantined"),
      button("flip", "Flip…", "", !pending), button("reimage", "Reimage…", "", !pending),
      button("cordon", "Cordon…", "", !pending && !held), button("uncordon", "Uncordon…", "", held),
      button("unban", "Lift bans…", "", Boolean(node.banned?.length)), button("remove", "Remove…", ""));
  }

  function slots() {
    const all = node.reported?.slots ?? [];
    if (!all.length) return h("p.notice", null, "No slot has been reported: nothing is installed yet.");
    const shape = { good: ["ok", "ok"], bad: ["refuse", "bad"], trying: ["half", "move"], armed: ["move", "move"], staged: ["down", "off"], writing: ["down", "move"], empty: ["open", "off"] };
    return h("div.slots", null, all.map((s) => {
      const booted = s.slot === node.reported.booted, [sh, tone] = shape[s.state] ?? shape.empty;
      return h("section.slotcard", { class: booted ? "booted" : "", "aria-label": "Slot " + s.slot },
        h("div.slothead", null, h("span.slot.big", null, s.slot), h("span.badge", { class: "t-" + tone }, icon(sh), s.state === "good" ? "confirmed" : s.state), booted && h("span.badge.t-move", null, "booted")),
        h("p.slotimage", null, s.image ? imageLink(s.image, s.name || label(s.image)) : s.state === "empty" ? "empty" : "image not known"),
        facts([["Image", s.image && h("code", null, short(s.image))], ["Generation", s.generation], ["Tries", s.triesLeft || s.triesDone ? (s.triesDone ?? 0) + " done, " + (s.triesLeft ?? 0) + " left" : ""], ["Root hash", s.rootHash && h("code", { title: s.rootHash }, s.rootHash.slice(0, 16) + "…")], ["Why", s.reason]]));
    }));
  }

  function wanted() {
    const d = node.desired, r = fleet.rows.get(name);
    if (!d?.image || !r?.wanted) return null;
    return h("p.notice.move", null, icon("move"), " Wanted: ", imageLink(d.image, label(d.image)), ", generation " + d.generation, d.rollout ? [", by rollout ", h("a", { href: "/console/rollouts/" + d.rollout }, d.rollout)] : d.reason ? ", " + d.reason : "", ".");
  }

  function verdict() {
    const v = node.verdict;
    if (!v) return h("section", null, h("h2", null, "Attestation"), h("p.muted", null, "This node has not attested yet."));
    const old = node.reported && v.bootID !== node.reported.bootID;
    return h("section", null, h("h2", null, "Attestation"),
      h("p", null, h("span.badge", { class: v.accepted ? (old ? "t-off" : "t-ok") : "t-bad" }, icon(v.accepted ? (old ? "open" : "ok") : "refuse"), v.accepted ? (old ? "accepted, last boot" : "accepted") : "refused"), " ", v.summary),
      (v.findings ?? []).map((f) => h("div.finding", null,
        h("h3", null, f.pcr >= 0 ? "PCR " + f.pcr : f.kind, f.event >= 0 ? ", event " + f.event : "", f.what ? ": " + f.what : ""),
        h("p", null, f.detail),
        (f.expected || f.seen) && h("dl.compare", null, h("dt", null, "expected"), h("dd", null, digits(f.expected, f.seen)), h("dt", null, "seen"), h("dd", null, digits(f.seen, f.expected))))),
      facts([["When", ago(v.at)], ["Judged against", v.image && imageLink(v.image, label(v.image))], ["Boot path", v.path], ["Phase", v.phase], ["Bank", v.bank], ["TPM", node.ekHash && h("code", { title: node.ekHash }, node.ekHash.slice(0, 16) + "…")]]));
  }

  // digits underlines where two values begin to differ.
  function digits(a, b) {
    if (!a) return h("span.muted", null, "nothing");
    let i = 0;
    while (i < a.length && i < (b ?? "").length && a[i] === b[i]) i++;
    return h("code", null, a.slice(0, i), h("mark", null, a.slice(i)));
  }

  function health() {
    const list = node.reported?.health ?? [];
    if (!list.length) return null;
    const look = { passed: ["ok", "ok"], failed: ["fail", "bad"], unknown: ["open", "warn"] };
    return h("section", null, h("h2", null, "Health checks"), table("Health checks", ["Check", "Outcome", "Detail", "Class", "Took"], list.map((c) => h("tr", null,
      h("td", null, c.name, c.required ? "" : h("span.muted", null, " (advisory)")),
      h("td.nowrap", null, h("span", { class: "t-" + look[c.status][1] + " tone" }, icon(look[c.status][0]), c.status)),
      h("td.wide", null, c.detail), h("td", null, c.class), h("td.nowrap", null, c.millis + " ms")))));
  }

  function bans() {
    if (!node.banned?.length) return null;
    return h("section", null, h("h2", null, "Banned images"), table("Banned images", ["Image", "Since", "Why"], node.banned.map((b) => h("tr", null, h("td", null, imageLink(b.image, label(b.image))), h("td.nowrap", null, ago(b.at)), h("td.wide", null, b.reason)))));
  }

  function about() {
    const r = node.reported, i = r?.inventory;
    return h("section", null, h("h2", null, "About"), facts([
      ["Pool", node.pool], ["Standing", node.state], ["MAC", node.macs.join(", ")], ["Kernel", r?.kernel], ["Boot path", r?.bootPath],
      ...Object.entries(r?.versions ?? {}).sort(), ["Machine", i && [i.vendor, i.product].filter(Boolean).join(" ")], ["Serial", i?.serial], ["Firmware", i?.biosVersion],
      ["CPU", i && [i.cpu, i.cpus && "× " + i.cpus].filter(Boolean).join(" ")], ["Memory", i?.memoryBytes && bytes(i.memoryBytes)], ["TPM", i?.tpm], ["Secure Boot", i && (i.secureBoot ? "on" : "off")],
      ["Disks", i?.disks?.map((d) => h("div", null, [d.name, d.model, bytes(d.sizeBytes)].filter(Boolean).join(", ")))], ["Network", i?.nics?.map((n) => h("div", null, n.name + " " + n.mac + " " + (n.driver ?? "") + (n.up ? ", up" : ", down")))],
      ["PCI devices", i?.pci && h("details", null, h("summary", null, count(i.pci.length, "device")), i.pci.map((p) => h("div.mono", null, p)))],
      ["Boot id", r?.bootID], ["Known since", clockTime(node.created)], ["Last boot took", lastTook()]]));
  }

  function lastTook() {
    const e = episodes.find((x) => x.outcome === "confirmed");
    return e && since(e.started, e.ended) + " to be confirmed";
  }

  function recent() {
    const list = episodes.flatMap((e) => e.steps.flatMap((s) => s.events)).sort((a, b) => b.id - a.id).slice(0, 30);
    if (!list.length) return null;
    return h("section", null, h("h2", null, "Latest events ", h("a.small", { href: "/console/events?node=" + encodeURIComponent(name) }, "all")),
      table("Latest events", ["Time", "Kind", "What happened", "By"], list.map((e) => eventRow(e, false))));
  }

  const offs = [
    on("events", (list) => { if (list.some((e) => e.node === name)) reload(); }),
    on("rows", (m) => { if (m.whole || m.rows?.some((r) => r.name === name)) reload(); }),
  ];
  await Promise.all([load(), power.load()]);
  return () => { closed = true; clearTimeout(due); serial.close(); offs.forEach((off) => off()); };
}
