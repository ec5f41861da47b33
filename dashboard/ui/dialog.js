// Dialogs in front of the page. Escape closes them, and the focus goes back to where it was.

import { diff, folded, text } from "../lib/diff.js";
import { h } from "./dom.js";
import { button } from "./page.js";

/**
 * Shows a dialog; resolves to the value of the choice, undefined if there was none. `signal` is that of the view: the
 * dialog closes when its page is left, and does not open afterwards.
 */
export function ask(signal, title, content, choices) {
  if (signal.aborted) return Promise.resolve(undefined);
  return new Promise((resolve) => {
    let chosen;
    const dialog = h("dialog", { "aria-label": title });
    const choose = (value) => () => {
      chosen = value;
      dialog.close();
    };
    const buttons = choices.map(({ label, value, kind }) => button(label, choose(value), { kind }));
    dialog.append(
      h("h2", {}, title),
      h("div", { class: "dialog-body", tabindex: "0" }, content),
      h("div", { class: "actions" }, buttons, button(choices.length > 0 ? "Cancel" : "Close", () => dialog.close())),
    );
    const leave = () => dialog.close();
    signal.addEventListener("abort", leave);
    dialog.addEventListener("close", () => {
      signal.removeEventListener("abort", leave);
      dialog.remove();
      resolve(signal.aborted ? undefined : chosen);
    });
    document.body.append(dialog);
    dialog.showModal();
    buttons[0]?.focus();
  });
}

/** The difference between two values, with words where colours would be alone. */
export function difference(before, after) {
  const lines = folded(diff(text(before), text(after)));
  if (!lines.some(({ sign }) => sign === "+" || sign === "-")) return h("p", { class: "note" }, "There is no difference.");
  const row = ({ sign, line, skipped }) => {
    if (sign === "…") return h("div", { class: "skipped" }, `… ${skipped} unchanged ${skipped === 1 ? "line" : "lines"}`);
    const tone = { "+": "added", "-": "removed" }[sign] ?? "";
    const word = { "+": "added: ", "-": "removed: " }[sign];
    return h("div", { class: tone }, word && h("span", { class: "visually-hidden" }, word), `${sign} ${line}`);
  };
  return h("div", { class: "diff" }, lines.map(row));
}

/** The warnings about a change; null if there are none. */
export function warningList(warnings) {
  if (warnings.length === 0) return null;
  const title = warnings.length === 1 ? "1 warning" : `${warnings.length} warnings`;
  return h("div", { class: "warnings" }, h("h3", {}, title), h("ul", {}, warnings.map((text) => h("li", {}, text))));
}

/** Shows a change with its warnings; resolves to true if it is confirmed. */
export async function confirmChange(signal, title, before, after, { label = "Save", kind = "primary", warnings = [] } = {}) {
  return (await ask(signal, title, [warningList(warnings), difference(before, after)], [{ label, value: true, kind }])) === true;
}
