// The rollouts pages: all of them, one as a picture of its waves, and the
// form that starts one after it has shown what it would do.
import { h, fill, icon, ago, seconds, since, short, imageLink, nodeLink, facts, table, count, clockTime } from "./dom.js";
import { get, post, may } from "./api.js";
import { on } from "./live.js";
import { ask, toast, field, showProblem } from "./dialog.js";

export const moves = {
  done: { text: "confirmed", shape: "ok", tone: "ok" },
  moving: { text: "on the move", shape: "move", tone: "move" },
  returning: { text: "on the way back", shape: "back", tone: "warn" },
  failed: { text: "failed", shape: "fail", tone: "bad" },
  returned: { text: "flipped back", shape: "back", tone: "off" },
  skipped: { text: "skipped", shape: "skip", tone: "off" },
  waiting: { text: "waiting", shape: "open", tone: "off" },
};

const states = {
  running: { shape: "move", tone: "move" }, paused: { shape: "pause", tone: "warn" }, halted: { shape: "refuse", tone: "bad" },
  done: { shape: "ok", tone: "ok" }, aborted: { shape: "cross", tone: "off" },
};

const stateBadge = (s) => h("span.badge", { class: "t-" + (states[s]?.tone ?? "off") }, icon(states[s]?.shape ?? "open"), s);

const labels = async () => new Map((await get("/v1/images")).map((i) => [i.digest, i.name + " " + i.version]));

const stageName = (s) => s.name || (s.nodes && s.nodes.length ? s.nodes.join(", ") : "") || (s.percent ? s.percent + " % of " : "") + (s.pool || s.labels || "") || Object.values(s).filter((v) => typeof v === "string").join(" ") || "stage";

export async function show(main, page) {
  if (page.arg === "new") return start(main, page);
  return page.arg ? one(main, page.arg) : list(main);
}

async function list(main) {
  let closed = false, due = 0;
  const images = await labels();
  async function load() {
    const all = (await get("/v1/rollouts?summary=1")).reverse();
    if (closed) return;
    fill(main, h("div.head", null, h("h1", null, "Rollouts"), h("a.button.primary", { href: "/console/rollouts/new" }, "New rollout…")),
      all.length === 0 ? h("p.empty", null, "Nothing has been rolled out yet.")
        : table("Rollouts", ["Rollout", "State", "Image", "Progress", "By", "Started"], all.map((r) => h("tr", null,
          h("td", null, h("a", { href: "/console/rollouts/" + r.id }, h("b", null, r.id))), h("td.nowrap", null, stateBadge(r.state)), h("td.nowrap", null, imageLink(r.image, images.get(r.image))),
          h("td.wide", null, stack(sum(r.counts)), r.reason && h("p.hint", null, r.reason)), h("td.nowrap", null, r.by.replace("operator:", "")), h("td.nowrap", null, ago(r.created))))));
  }
  const off = on("events", (l) => { if (l.some((e) => e.kind.startsWith("rollout."))) due ||= setTimeout(() => { due = 0; load(); }, 500); });
  await load();
  return () => { closed = true; off(); clearTimeout(due); };
}

function sum(counts) {
  const all = {};
  for (const c of counts) for (const [k, n] of Object.entries(c)) all[k] = (all[k] ?? 0) + n;
  return all;
}

// stack is a bar of what became of so many nodes, with the numbers in words.
function stack(counts) {
  const total = Object.values(counts).reduce((a, b) => a + b, 0) || 1;
  const parts = Object.keys(moves).filter((k) => counts[k]);
  return h("div.stackbox", null,
    h("div.stack", { role: "img", "aria-label": parts.map((k) => counts[k] + " " + moves[k].text).join(", ") }, parts.map((k) => {
      const e = h("span", { class: "m-" + k + " t-" + moves[k].tone });
      e.style.flexGrow = counts[k] / total;
      return e;
    })),
    h("p.legend", null, parts.map((k) => h("span", { class: "t-" + moves[k].tone }, icon(moves[k].shape), counts[k].toLocaleString() + " " + moves[k].text))));
}

async function one(main, id) {
  const path = "/v1/rollouts/" + encodeURIComponent(id);
  const images = await labels();
  let closed = false, due = 0, r;

  async function load() {
    r = await get(path);
    if (closed) return;
    const focus = document.activeElement?.dataset?.act;
    fill(main, h("p.crumbs", null, h("a", { href: "/console/rollouts" }, "Rollouts")),
      h("div.head", null, h("h1", null, "Rollout " + r.id), stateBadge(r.state), h("b", null, imageLink(r.image, images.get(r.image))), h("span.muted", null, "by ", r.by.replace("operator:", ""), ", ", ago(r.created))),
      actions(), r.reason && h("p.notice", { class: r.state === "halted" ? "bad" : "" }, icon(states[r.state]?.shape), " ", r.state, ": ", r.reason),
      h("section", null, h("h2", null, "Progress"), stack(tally(r.nodes)), estimate(r)),
      h("section", null, h("h2", null, "Waves"), waves(r)), failures(), policy());
    if (focus) main.querySelector(`[data-act="${focus}"]`)?.focus({ preventScroll: true });
  }

  async function act(what, dialog, said) {
    if (await ask({ ...dialog, act: (v) => post(path + "/" + what, { ...v, flipBack: Boolean(v.flipBack) }) })) {
      toast(said);
      load();
    }
  }

  function actions() {
    const reason = { name: "reason", label: "Reason", hint: "Kept in the history.", placeholder: "why" };
    const button = (k, text, ok, fn) => ok && h("button", { type: "button", "data-act": k, disabled: !may("operator"), title: may("operator") ? null : "your token's role is viewer: you may look", click: fn }, text);
    const over = r.state === "done" || r.state === "aborted";
    return h("div.actions.left", null,
      button("pause", "Pause…", r.state === "running", () => act("pause", { title: "Pause " + id, button: "Pause", body: h("p", null, "No more nodes are started. Those on the move go on."), fields: [reason] }, "Paused.")),
      button("resume", "Resume…", r.state === "paused" || r.state === "halted", () => act("resume", { title: "Resume " + id, button: "Resume", danger: r.state === "halted",
        body: h("p", null, r.state === "halted" ? "What has failed so far is forgiven, and the failure budget counts from here. It halted because: " + r.reason + "." : "It goes on with the nodes that wait.") }, "Resumed.")),
      button("abort", "Abort…", !over, () => act("abort", { title: "Abort " + id, button: "Abort", danger: true, body: h("p", null, "No more nodes are started. Those on the move go on by themselves, unless they are to be flipped back."),
        fields: [{ name: "flipBack", check: true, value: false, label: "Flip back what this rollout changed", hint: "Within the same limits as on the way there." }, reason] }, "Aborted.")),
      button("undo", "Undo…", (over || r.state === "halted") && r.nodes.some((m) => m.state === "done"), () => act("undo", { title: "Undo " + id, button: "Undo", danger: true,
        body: h("p", null, "Nodes that this rollout has moved go back to what they ran before. Nodes that were asked for something else since are left alone."),
        fields: [{ name: "atOnce", label: "At once", placeholder: String(r.policy.maxUnavailable), hint: "nodes of a stage on the move: a number or a percentage; empty means as on the way there" }, reason] }, "Undo has begun.")));
  }

  function failures() {
    const list = r.nodes.filter((m) => m.state === "failed"), skipped = r.nodes.filter((m) => m.state === "skipped");
    return [list.length > 0 && h("section", null, h("h2", null, "Failures"), table("Failures", ["Node", "Stage", "Why", "Took"], list.slice(0, 500).map((m) => h("tr", null, h("td.nowrap", null, nodeLink(m.node)), h("td", null, stageName(r.policy.stages[m.stage])), h("td.wide", null, h("span.tone.t-bad", null, icon("fail")), m.reason), h("td.nowrap", null, m.started && m.ended ? since(m.started, m.ended) : ""))))),
      skipped.length > 0 && h("details", null, h("summary", null, count(skipped.length, "node") + " skipped"), table("Skipped", ["Node", "Stage", "Why"], skipped.slice(0, 500).map((m) => h("tr", null, h("td.nowrap", null, nodeLink(m.node)), h("td", null, stageName(r.policy.stages[m.stage])), h("td.wide", null, m.reason)))))];
  }

  function policy() {
    const p = r.policy;
    return h("section", null, h("h2", null, "Policy"), facts([["Max unavailable", p.maxUnavailable + " of a stage"], ["Failure budget", p.failureBudget], ["Bake", seconds(p.bake / 1e9)], ["Time-out of a node", p.timeout ? seconds(p.timeout / 1e9) : "30 min"], ["Trial boots", p.tries || "2"], ["Flip back on halt", p.flipBack ? "yes" : "no"], ["Windows", p.windows?.map((w) => [w.days, w.from + "-" + w.to, w.zone || "UTC"].filter(Boolean).join(" ")).join("; ")], ["Banned nodes too", p.retry ? "yes" : ""], ["Updated", clockTime(r.updated)]]));
  }

  const off = on("events", (l) => { if (l.some((e) => e.kind.startsWith("rollout.") && (e.actor === "rollout:" + id || e.message.includes("rollout " + id)))) due ||= setTimeout(() => { due = 0; load(); }, 400); });
  await load();
  return () => { closed = true; off(); clearTimeout(due); };
}

function tally(list) {
  const c = {};
  for (const m of list) c[m.state] = (c[m.state] ?? 0) + 1;
  return c;
}

const manyNodes = 600; // of a stage: above that only what is not as usual is drawn

// waves draws the stages one after the other, each with its nodes.
function waves(r) {
  return h("ol.waves", null, r.policy.stages.map((s, i) => {
    const list = r.nodes.filter((m) => m.stage === i);
    const over = !["running", "paused"].includes(r.state);
    const where = r.state === "done" || i < r.stage ? "complete" : i > r.stage ? (over ? "not reached" : "later") : over ? "stopped here" : r.bakedAt ? "baking until " + new Date(+new Date(r.bakedAt) + r.policy.bake / 1e6).toLocaleTimeString() : "now";
    const shown = list.length > manyNodes ? list.filter((m) => m.state !== "waiting" && m.state !== "done").slice(0, manyNodes) : list;
    return h("li.wave", { class: i === r.stage && !over ? "now" : "" },
      h("h3", null, h("span.num", null, i + 1), stageName(s), h("span.muted", null, " " + count(list.length, "node") + ", " + where)),
      stack(tally(list)),
      h("div.dots", null, shown.map((m) => h("a.mdot", { href: "/console/nodes/" + encodeURIComponent(m.node), class: "t-" + moves[m.state].tone + " m-" + m.state, title: m.node + ": " + moves[m.state].text + (m.reason ? ", " + m.reason : ""), "aria-label": m.node + ": " + moves[m.state].text },
        icon(moves[m.state].shape)))),
      shown.length < list.length && h("p.hint", null, "Of so many, only nodes that are on the move, failed or skipped are drawn."),
      i < r.policy.stages.length - 1 && h("p.between", null, icon("next"), r.policy.bake ? "then bake for " + seconds(r.policy.bake / 1e9) : "then at once"));
  }));
}

// median of how long nodes took that made it, in seconds; 0 if none has.
function typical(list) {
  const t = list.filter((m) => m.state === "done" && m.started && m.ended).map((m) => (new Date(m.ended) - new Date(m.started)) / 1000).sort((a, b) => a - b);
  return t.length ? t[t.length >> 1] : 0;
}

const amount = (text, total) => Math.max(1, text.endsWith("%") ? Math.floor((total * parseInt(text, 10)) / 100) : parseInt(text, 10) || 0);

// timeLeft is how long what waits would take, one batch after the other.
function timeLeft(r, each) {
  let s = 0;
  r.policy.stages.forEach((_, i) => {
    const list = r.nodes.filter((m) => m.stage === i), waits = list.filter((m) => m.state === "waiting" && !m.reason).length + list.filter((m) => m.state === "moving").length;
    if (waits) s += Math.ceil(waits / amount(r.policy.maxUnavailable, list.length)) * each + (i < r.policy.stages.length - 1 ? r.policy.bake / 1e9 : 0);
  });
  return s;
}

function estimate(r) {
  const each = typical(r.nodes);
  if (!each) return null;
  const left = r.state === "running" ? timeLeft(r, each) : 0;
  return h("p.hint", null, "A node takes " + seconds(each) + " (median)" + (left ? "; about " + seconds(left) + " to go" : "") + ".");
}

// start is the form: it shows the plan before it can be started.
async function start(main, { go, query }) {
  const [images, pools, past] = await Promise.all([get("/v1/images"), get("/v1/pools"), get("/v1/rollouts?summary=1")]);
  const nodes = await get("/v1/nodes");
  const sizes = new Map();
  for (const n of nodes) sizes.set(n.pool, (sizes.get(n.pool) ?? 0) + 1);
  const names = [...new Set([...pools.map((p) => p.name), ...sizes.keys()])].sort((a, b) => (sizes.get(a) ?? 0) - (sizes.get(b) ?? 0));
  const error = h("p.error", { role: "alert", hidden: true }), preview = h("div", { "aria-live": "polite" });
  const stages = h("ol.stagelist");
  let chosen = names.filter((n) => sizes.get(n)).slice(0, 1), plan = null;

  function drawStages() {
    fill(stages, chosen.map((name, i) => h("li", null, h("select", { "aria-label": "Pool of stage " + (i + 1), change: (e) => { chosen[i] = e.target.value; stale(); } }, names.map((n) => h("option", { value: n, selected: n === name }, n + " (" + count(sizes.get(n) ?? 0, "node") + ")"))),
      h("button", { type: "button", disabled: i === 0, "aria-label": "Stage " + (i + 1) + " earlier", click: () => { [chosen[i - 1], chosen[i]] = [chosen[i], chosen[i - 1]]; drawStages(); } }, "↑"),
      h("button", { type: "button", disabled: chosen.length === 1, "aria-label": "Remove stage " + (i + 1), click: () => { chosen.splice(i, 1); drawStages(); } }, "Remove"))),
    h("li.add", null, h("button", { type: "button", disabled: chosen.length >= names.length, click: () => { chosen.push(names.find((n) => !chosen.includes(n))); drawStages(); } }, "Add a stage")));
    stale();
  }

  const startButton = h("button.danger", { type: "button", disabled: true, "data-act": "start", click: async () => {
    const out = await ask({ title: "Start this rollout?", button: "Start", danger: true, body: h("p", null, count(plan.nodes.length, "node") + " in " + count(plan.policy.stages.length, "stage") + " get " + label(plan.image) + "."), act: () => post("/v1/rollouts", request(false)) });
    if (out) go("/console/rollouts/" + out.id);
  } }, "Start…");

  const label = (d) => { const i = images.find((x) => x.digest === d); return i ? i.name + " " + i.version : short(d); };
  const form = h("form.panel", { submit: (e) => { e.preventDefault(); look(); }, input: () => stale() },
    field("n", { name: "image", label: "Image", options: images.map((i) => [i.digest, i.name + " " + i.version + " (" + short(i.digest) + ")"]), value: query.get("image") ?? images[0]?.digest }),
    h("div.field", null, h("b", null, "Stages"), h("p.hint", null, "Least critical first. A stage begins when the one before it is complete, has baked and is healthy."), stages),
    h("div.two", null,
      field("n", { name: "maxUnavailable", label: "Max unavailable", value: "25%", hint: "nodes of a stage that move at once" }), field("n", { name: "failureBudget", label: "Failure budget", value: "0", hint: "failures before it halts by itself" }),
      field("n", { name: "bake", label: "Bake, minutes", value: "10", inputmode: "decimal", hint: "wait after each stage but the last" }), field("n", { name: "timeout", label: "Time-out, minutes", value: "30", inputmode: "decimal", hint: "a node that takes longer has failed" })),
    field("n", { name: "flipBack", check: true, value: true, label: "Flip back when it halts", hint: "Returns what this rollout changed, and nothing else." }),
    error, h("div.actions.left", null, h("button.primary", { type: "submit", disabled: !may("operator") || !images.length, "data-act": "plan" }, "Show the plan"), startButton),
    !may("operator") && h("p.hint", null, "Your token's role is viewer: it may not plan or start rollouts."));

  function request(dryRun) {
    const v = Object.fromEntries(new FormData(form)), ns = (t) => Math.round((parseFloat(t) || 0) * 60e9);
    return { image: v.image, dryRun, policy: { stages: chosen.map((pool) => ({ pool })), maxUnavailable: v.maxUnavailable, failureBudget: v.failureBudget, bake: ns(v.bake), timeout: ns(v.timeout), tries: 0, flipBack: Boolean(v.flipBack) } };
  }

  function stale() {
    plan = null;
    startButton.disabled = true;
    preview.replaceChildren();
  }

  async function look() {
    error.hidden = true;
    try {
      plan = await post("/v1/rollouts", request(true));
    } catch (e) {
      return showProblem(error, e);
    }
    const each = await usualTime(past), fit = plan.nodes.filter((m) => !m.reason).length;
    fill(preview, h("h2", null, "The plan"), h("p", null, h("b", null, count(fit, "node")), " of " + plan.nodes.length + " would move. ", each ? "With the " + seconds(each) + " that a node took last time, and nothing going wrong: about " + seconds(timeLeft(plan, each)) + "." : "How long a node takes is not known yet."),
      h("ol.waves", null, plan.policy.stages.map((s, i) => {
        const list = plan.nodes.filter((m) => m.stage === i), go_ = list.filter((m) => !m.reason), size = amount(plan.policy.maxUnavailable, list.length), batches = Math.ceil(go_.length / size);
        return h("li.wave", null, h("h3", null, h("span.num", null, i + 1), stageName(s), h("span.muted", null, " " + count(go_.length, "node") + ", " + size + " at a time, " + count(batches, "batch", "batches"))),
          h("div.batches", null, Array.from({ length: Math.min(batches, 60) }, (_, b) => h("span.batch", { title: go_.slice(b * size, (b + 1) * size).slice(0, 30).map((m) => m.node).join(", ") }, Math.min(size, go_.length - b * size))), batches > 60 && h("span.muted", null, "and " + (batches - 60) + " more")),
          left(list.filter((m) => m.reason)),
          i < plan.policy.stages.length - 1 && h("p.between", null, icon("next"), plan.policy.bake ? "then bake for " + seconds(plan.policy.bake / 1e9) : "then at once"));
      })));
    startButton.disabled = fit === 0;
  }

  function left(list) {
    if (!list.length) return null;
    return h("details", null, h("summary", null, count(list.length, "node") + " left out"), h("ul", null, list.slice(0, 200).map((m) => h("li", null, nodeLink(m.node), ": ", m.reason))));
  }

  fill(main, h("p.crumbs", null, h("a", { href: "/console/rollouts" }, "Rollouts")), h("div.head", null, h("h1", null, "New rollout")),
    images.length ? h("div.split", null, form, h("div.panel", null, preview, h("p.hint", null, "Nothing happens before you press Start."))) : h("p.empty", null, "Publish an image first."));
  drawStages();
  return () => {};
}

// usualTime is what a node took in the newest rollout that has finished ones.
async function usualTime(past) {
  for (const r of [...past].reverse().slice(0, 5)) {
    if (!r.counts.some((c) => c.done)) continue;
    const t = typical((await get("/v1/rollouts/" + r.id)).nodes);
    if (t) return t;
  }
  return 0;
}
