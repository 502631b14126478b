// The frame around the pages: who is signed in, which page is shown, keys.
import { h, fill, icon } from "./dom.js";
import { session, openSession, signIn, signOut, whenSignedOut } from "./api.js";
import { start, stop, on, live } from "./live.js";
import { showProblem } from "./dialog.js";

const pages = [
  { name: "Fleet", path: "fleet", key: "f", load: () => import("./fleet.js") },
  { name: "Rollouts", path: "rollouts", key: "r", load: () => import("./rollouts.js") },
  { name: "Images", path: "images", key: "i", load: () => import("./images.js") },
  { name: "Drift", path: "drift", key: "d", load: () => import("./drift.js") },
  { name: "Events", path: "events", key: "e", load: () => import("./events.js") },
];
const nodePage = { name: "Node", path: "nodes", load: () => import("./node.js") };

const main = document.getElementById("main"), top_ = document.getElementById("top"), banner = document.getElementById("banner");
let leave = () => {};
let turn = 0; // counts pages, so that a slow one is not taken for a later one
let box = null; // in main, of the page that is shown

// newBox is where the next page draws. What is seen stays in it until then;
// a page that was left draws out of sight, however late its answers come.
function newBox() {
  const next = h("div");
  next.append(...(box ?? main).childNodes);
  fill(main, next);
  return box = next;
}

// go opens a path of the console.
export function go(path) {
  history.pushState(null, "", path);
  route(true);
}

async function route(moved) {
  const mine = ++turn;
  const [, , where = "", ...rest] = location.pathname.split("/");
  const page = where === "nodes" ? nodePage : pages.find((p) => p.path === where);
  if (!page) {
    history.replaceState(null, "", "/console/fleet");
    return route(moved);
  }
  const arg = decodeURIComponent(rest.join("/"));
  leave();
  leave = () => {};
  document.title = (arg ? arg + " – " : "") + page.name + " – Turnout";
  drawTop(page);
  const at = newBox();
  try {
    const m = await page.load();
    if (mine !== turn) return;
    const done = await m.show(at, { arg, query: new URLSearchParams(location.search), setQuery, go });
    if (mine !== turn) return done?.();
    leave = done ?? (() => {});
  } catch (e) {
    if (mine === turn && e.status !== 401) fill(at, h("div.empty", null, h("h1", null, page.name), h("p.error", null, e.message), e.hint && h("p.hint", null, e.hint)));
  }
  if (moved) {
    scrollTo(0, 0);
    main.focus({ preventScroll: true });
  }
}

// setQuery keeps what a page is set to in its address.
function setQuery(values, usual) {
  const q = new URLSearchParams();
  for (const [k, v] of Object.entries(values)) if (v && v !== usual?.[k]) q.set(k, v);
  history.replaceState(null, "", location.pathname + (q.size ? "?" + q : ""));
}

function drawTop(current) {
  top_.hidden = false;
  fill(top_,
    h("a.brand", { href: "/console/fleet" }, h("img", { src: "/console/static/icon.svg", alt: "", width: 24, height: 24 }), "Turnout"),
    h("nav", { "aria-label": "Pages" }, pages.map((p) => h("a", { href: "/console/" + p.path, "aria-current": p === current || (current === nodePage && p.path === "fleet") ? "page" : null }, p.name))),
    h("div.right", null,
      h("span.live", { role: "status" }),
      h("button.plain", { type: "button", title: "Dark or light", "aria-label": "Dark or light", click: switchTheme }, "◐"),
      h("button.plain.keys", { type: "button", title: "Keys (?)", "aria-label": "Keys", click: showKeys }, "?"),
      h("span.who", { title: "signed in until " + new Date(session.expires).toLocaleString() }, session.name, h("span.role", null, session.role)),
      h("button", { type: "button", click: signOut }, "Sign out")));
  top_.querySelector("span.live").id = "live";
  drawState(live.state);
}

function drawState(state) {
  const e = document.getElementById("live");
  if (e) fill(e, icon(state === "live" ? "ok" : "silent"), state === "live" ? "live" : "not connected");
  if (e) e.className = "live t-" + (state === "live" ? "ok" : "warn");
  banner.hidden = state !== "lost";
  banner.textContent = "The connection to the server is lost. What you see may be old. Trying again…";
}

function switchTheme() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", document.documentElement.dataset.theme);
}

function showKeys() {
  const keys = [["/", "go to the filter"], ...pages.map((p) => ["g " + p.key, p.name]), ["← ↑ → ↓", "walk from node to node"], ["Enter", "open a node"], ["Esc", "close a dialog, or go back to the fleet"], ["?", "this list"]];
  const d = h("dialog", { "aria-label": "Keys", close: () => d.remove() }, h("form", { method: "dialog" }, h("h2", null, "Keys"),
    h("dl.facts", null, keys.map(([k, t]) => h("div", null, h("dt", null, h("kbd", null, k)), h("dd", null, t)))), h("div.actions", null, h("button.primary", null, "Close"))));
  document.body.append(d);
  d.showModal();
}

let g = 0; // when g was pressed
addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || document.querySelector("dialog[open]") || !session.csrf) return;
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName)) {
    if (e.key === "Escape") e.target.blur();
    return;
  }
  const page = Date.now() - g < 1200 && pages.find((p) => p.key === e.key);
  g = e.key === "g" ? Date.now() : 0;
  if (page) go("/console/" + page.path);
  else if (e.key === "?") showKeys();
  else if (e.key === "Escape" && location.pathname.split("/").length > 3) go("/console/" + (location.pathname.split("/")[2] === "nodes" ? "fleet" : location.pathname.split("/")[2]));
  else if (e.key === "/") {
    const f = main.querySelector("input[type=search]");
    if (f) { e.preventDefault(); f.focus(); f.select(); }
  }
});

// Links within the console change the page without loading it anew.
addEventListener("click", (e) => {
  const a = e.target.closest?.("a[href^='/console/']");
  if (!a || e.defaultPrevented || e.button || e.ctrlKey || e.metaKey || e.shiftKey || a.target || a.hasAttribute("download")) return;
  e.preventDefault();
  go(a.getAttribute("href"));
});
addEventListener("popstate", () => route(false));

function showLogin(why) {
  leave();
  leave = () => {};
  turn++;
  stop();
  session.csrf = "";
  top_.hidden = banner.hidden = true;
  document.title = "Sign in – Turnout";
  for (const d of document.querySelectorAll("dialog")) d.close();
  const error = h("p.error", { role: "alert", hidden: !why }, why);
  const token = h("input", { id: "token", type: "password", autocomplete: "current-password", required: true, spellcheck: "false" });
  const button = h("button.primary", { type: "submit" }, "Sign in");
  const form = h("form.login", { submit: async (e) => {
    e.preventDefault();
    button.disabled = true;
    try {
      await signIn(token.value);
      enter();
    } catch (err) {
      showProblem(error, err);
      button.disabled = false;
      token.select();
    }
  } },
  h("img", { src: "/console/static/icon.svg", alt: "", width: 48, height: 48 }), h("h1", null, "Turnout"),
  h("label", { for: "token" }, "Operator's token"), token,
  h("p.hint", null, "The server's administrator has it: the file operator.token, or a line of the token file."), error, button);
  fill(main, form);
  box = null;
  token.focus();
}

function enter() {
  start();
  route(false);
}

whenSignedOut(() => { if (session.csrf) showLogin("You are signed out, or the session has ended."); });
on("state", drawState);

try {
  if (await openSession()) enter();
  else showLogin("");
} catch (e) {
  fill(main, h("p.empty", null, e.message + ". ", h("button", { click: () => location.reload() }, "Try again")));
}
