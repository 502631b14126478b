// One stream of server-sent events per page: the fleet in short, and what
// happens. It connects again by itself, and after that knows all it missed.
import { openSession, signedOut } from "./api.js";
import { clock } from "./dom.js";

export const fleet = { rows: new Map(), whole: false };

const listeners = { rows: new Set(), events: new Set(), state: new Set() };

// on calls fn with news of a kind until the returned function is called.
export function on(kind, fn) {
  listeners[kind].add(fn);
  return () => listeners[kind].delete(fn);
}

function tell(kind, news) {
  for (const fn of listeners[kind]) fn(news);
}

export const live = { state: "off", version: "" };

function setState(s) {
  if (live.state === s) return;
  live.state = s;
  tell("state", s);
}

let source = null;
let retry = 0;

export function start() {
  stop();
  source = new EventSource("/v1/watch?rows=1");
  source.addEventListener("hello", (m) => {
    const hello = JSON.parse(m.data);
    clock.ahead = new Date(hello.now) - Date.now();
    live.version = hello.version;
    setState("live");
  });
  source.addEventListener("rows", (m) => takeRows(JSON.parse(m.data)));
  source.addEventListener("events", (m) => tell("events", JSON.parse(m.data)));
  source.onerror = () => {
    setState("lost");
    if (source?.readyState === EventSource.CLOSED) again();
  };
}

// again comes after an answer that was no stream: is it the session?
function again() {
  clearTimeout(retry);
  retry = setTimeout(async () => {
    try {
      if (await openSession()) start();
      else signedOut();
    } catch {
      again();
    }
  }, 2000);
}

export function stop() {
  clearTimeout(retry);
  source?.close();
  source = null;
}

// A page that is left gives its connection back.
addEventListener("pagehide", stop);
addEventListener("pageshow", (e) => { if (e.persisted && live.state !== "off") start(); });

let coming = null; // a whole fleet on its way

function takeRows(m) {
  if (m.reset) coming = new Map();
  const into = coming ?? fleet.rows;
  for (const r of m.rows ?? []) into.set(r.name, r);
  for (const name of m.gone ?? []) into.delete(name);
  if (m.whole) {
    fleet.rows = coming ?? fleet.rows;
    fleet.whole = true;
    coming = null;
  }
  if (!coming) tell("rows", m);
}
