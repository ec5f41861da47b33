// The key of the Admin API, if it asks for one.

import { fill, h } from "../ui/dom.js";
import { note, problem } from "../ui/page.js";

/** Resolves to what was given. */
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
      note("One of admin.keys, or the one in admin.key beside the store. It is kept until this tab is closed, and sent to this gateway alone."),
    );
    fill(main, form);
    input.focus();
  });
}
