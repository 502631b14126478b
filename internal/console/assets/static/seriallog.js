// The end of a node's serial console, asked for when a person opens it, and
// again every two seconds while it is open.
import { h, fill, ago, bytes } from "./dom.js";
import { get } from "./api.js";

export function openSerial(name) {
  const text = h("pre.serial", { tabindex: 0, role: "region", "aria-label": "Serial console" });
  const note = h("p.muted", { role: "status" });
  const box = h("details", null, h("summary", null, "Serial console"), note, text);
  let timer = 0, size = -1;

  async function load() {
    try {
      const l = await get("/v1/nodes/" + encodeURIComponent(name) + "/console");
      if (l.size !== size) {
        const atEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 24;
        text.textContent = l.text;
        if (atEnd || size < 0) text.scrollTop = text.scrollHeight;
        size = l.size;
      }
      fill(note, "The last of " + bytes(l.size) + ", written ", ago(l.changed), ".");
    } catch (e) {
      fill(note, e.message.charAt(0).toUpperCase() + e.message.slice(1) + ".", e.hint && " " + e.hint);
      if (e.status === 404) return; // nobody keeps it
    }
    if (box.open && box.isConnected) timer = setTimeout(load, 2000);
  }

  box.addEventListener("toggle", () => { clearTimeout(timer); if (box.open) load(); });
  return { box: h("section", null, box), close: () => clearTimeout(timer) };
}
