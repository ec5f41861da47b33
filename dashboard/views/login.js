// The form for the key of the Admin API.

import { fill, h } from "../ui/dom.js";
import { note, problem } from "../ui/page.js";

/** Resolves to the key that was entered. */
export function askForKey(main, refusal) {
  document.title = "Log in · Sigma";
  return new Promise((resolve) => {
    const input = h("input", { id: "key", type: "password", required: true, autocomplete: "current-password", spellcheck: "false" });
    const submit = (event) => {
      event.preventDefault();
      if (input.value) resolve(input.value);
    };
    const form = h(
      "form",
      { class: "card login", on: { submit } },
      h("h1", {}, "Log in"),
      refusal && problem(refusal),
      h("div", { class: "field" }, h("label", { for: "key" }, "Admin key"), input),
      h("button", { type: "submit", class: "primary" }, "Log in"),
      note("Use a key of admin.keys in the configuration file, or the key in the file admin.key in the folder of the store. The browser keeps it until this tab is closed and sends it to this gateway only."),
    );
    fill(main, form);
    input.focus();
  });
}
