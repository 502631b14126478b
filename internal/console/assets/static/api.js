// The operator API, with the session in place of a token.

export const session = { name: "", role: "", csrf: "", expires: "" };

const ranks = { viewer: 1, operator: 2, admin: 3 };

export const may = (role) => (ranks[session.role] ?? 0) >= ranks[role];

// Problem is a refusal (RFC 9457) as an error.
export class Problem extends Error {
  constructor(status, body) {
    super(body?.detail || body?.title || "the server answered " + status);
    this.status = status;
    this.hint = body?.hint ?? "";
  }
}

// onSignedOut is called when the server no longer knows the session.
let onSignedOut = () => {};
export const whenSignedOut = (fn) => { onSignedOut = fn; };
export const signedOut = () => onSignedOut();

async function call(method, path, body, quiet) {
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method !== "GET") headers["X-Turnout-Csrf"] = session.csrf;
  let r;
  try {
    r = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), credentials: "same-origin", cache: "no-store" });
  } catch {
    throw new Problem(0, { detail: "the server does not answer", hint: "it may be starting again; try once more in a moment" });
  }
  if (r.ok) return r.status === 204 ? null : r.json();
  const p = new Problem(r.status, await r.json().catch(() => null));
  if (r.status === 401 && !quiet) onSignedOut();
  throw p;
}

export const get = (path) => call("GET", path);
export const post = (path, body) => call("POST", path, body ?? {});
export const remove = (path) => call("DELETE", path);

// openSession asks who is signed in; false if nobody is.
export async function openSession() {
  try {
    Object.assign(session, await call("GET", "/console/session", undefined, true));
    return true;
  } catch (e) {
    if (e.status === 401) return false;
    throw e;
  }
}

export async function signIn(token) {
  Object.assign(session, await call("POST", "/console/session", { token }, true));
}

export async function signOut() {
  await call("DELETE", "/console/session", undefined, true).catch(() => {});
  onSignedOut();
}
