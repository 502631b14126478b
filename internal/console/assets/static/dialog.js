// Questions before something happens, and short news after.
import { h, fill } from "./dom.js";

let ids = 0;

// ask shows a dialog with a form. body is what it says; fields are
// [{name, label, value, options, hint}]; act gets their values and does it. A refusal is
// shown in the dialog, which stays. Resolves to what act returned, or null.
export function ask({ title, body, fields = [], button = "Do it", danger = false, act, blocked }) {
  return new Promise((resolve) => {
    const id = "d" + ++ids;
    const error = h("p.error", { role: "alert", hidden: true });
    const go = h("button", { type: "submit", class: danger ? "danger" : "primary", disabled: Boolean(blocked) }, button);
    const form = h("form", { method: "dialog" },
      h("h2", { id: id + "t" }, title), h("div.dbody", null, body),
      fields.map((f) => field(id, f)), error,
      h("div.actions", null, h("button", { type: "button", click: () => d.close() }, "Cancel"), go));
    const d = h("dialog", { "aria-labelledby": id + "t" }, form);
    let result = null;
    form.addEventListener("submit", async (e) => {
      e.preventDefault();
      go.disabled = true;
      error.hidden = true;
      try {
        result = (await act(Object.fromEntries(new FormData(form)))) ?? true;
        d.close();
      } catch (err) {
        showProblem(error, err);
        go.disabled = false;
      }
    });
    d.addEventListener("close", () => { d.remove(); resolve(result); });
    document.body.append(d);
    d.showModal();
  });
}

export function field(id, f) {
  const fid = id + f.name;
  const attrs = { id: fid, name: f.name, "aria-describedby": f.hint ? fid + "h" : null, placeholder: f.placeholder, required: f.required, inputmode: f.inputmode, autocomplete: "off" };
  const input = f.options
    ? h("select", attrs, f.options.map(([v, t]) => h("option", { value: v, selected: v === f.value }, t)))
    : f.check ? h("input", { ...attrs, type: "checkbox", checked: f.value }) : h("input", { ...attrs, type: "text", value: f.value ?? "" });
  return h("div.field", { class: f.check ? "check" : "" }, f.check && input, h("label", { for: fid }, f.label), !f.check && input, f.hint && h("p.hint", { id: fid + "h" }, f.hint));
}

export function showProblem(el, err) {
  el.hidden = false;
  fill(el, err.message.charAt(0).toUpperCase() + err.message.slice(1) + ".", err.hint && h("span.hint", null, " " + err.hint));
}

// toast says that something was done.
export function toast(text) {
  const t = h("p.toast", null, text);
  document.getElementById("toasts").append(t);
  setTimeout(() => t.remove(), 6000);
}
