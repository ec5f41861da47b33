// The whole configuration as one file: export and import.

import { call, get, write } from "../api.js";
import { changes, sections } from "../lib/configs.js";
import { isObject } from "../lib/pointer.js";
import { go, to } from "../router.js";
import { mayWrite } from "../store.js";
import { reviewChanges } from "../ui/changes.js";
import { announce, fill, h } from "../ui/dom.js";
import { button, heading, note, problem, section } from "../ui/page.js";

export function show(root, _place, signal) {
  const errors = h("div", {});
  const attempt = async (act) => {
    fill(errors);
    try {
      await act();
    } catch (error) {
      if (!signal.aborted) fill(errors, problem(error));
    }
  };
  root.append(heading("Import and export"), errors, exporting(signal, attempt));
  if (mayWrite()) root.append(importing(signal, attempt));
}

function exporting(signal, attempt) {
  const secrets = mayWrite()
    ? "The file contains secrets in plain text, such as the keys of consumers. Private keys of certificates stay encrypted."
    : "The file contains *** instead of secrets, because your key has the role viewer.";
  return section(
    "Export",
    note("One JSON file with all resources, for an import on this page or for sigma ctl apply. ", secrets),
    button("Download all resources", () => attempt(() => download(signal))),
  );
}

async function download(signal) {
  const text = `${JSON.stringify(sections(await get("configs", signal)), null, 2)}\n`;
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  h("a", { href: address, download: "sigma-resources.json" }).click();
  URL.revokeObjectURL(address);
}

function importing(signal, attempt) {
  const input = h("input", { id: "file", type: "file", accept: ".json,application/json", required: true });
  const submit = (event) => {
    event.preventDefault();
    return attempt(() => replace(signal, input.files[0]));
  };
  return section(
    "Import",
    note("The file replaces all resources in one transaction: resources that are not in it are deleted."),
    h(
      "form",
      { class: "form", on: { submit } },
      h("div", { class: "field" }, h("label", { for: "file" }, "JSON file"), input),
      h("button", { type: "submit", class: "primary", "data-key": "s" }, "Review and import"),
    ),
  );
}

async function replace(signal, file) {
  const body = sections(parsed(await file.text()));
  const options = { body, headers: { "X-Digest": randomDigest() } };
  const present = await get("configs", signal);
  const { warnings } = await call("PUT", "configs?check_references=true&dry_run=true", { ...options, signal });
  const all = changes(present, body);
  if (all.length === 0) return announce("The file and the gateway have the same resources.");
  if (!(await reviewChanges(signal, "Replace all resources?", all, { label: "Import", warnings }))) return;
  // The import would take back a change that was made after the review.
  if (changes(present, await get("configs", signal)).length > 0) {
    throw new Error("Another operator has changed a resource meanwhile. Review the import again.");
  }
  await write(signal, "PUT", "configs?check_references=true", options);
  announce("Imported.");
  go(to("history"));
}

function parsed(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`The file is not valid JSON: ${error.message}`);
  }
  if (!isObject(value)) throw new Error("The file must be a JSON object with a list for each collection.");
  return value;
}

/** The gateway wants a name for the content; each import is another one. */
function randomDigest() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
