// The whole configuration as one file: export and import.

import { call, get, write } from "../api.js";
import { changes, sections } from "../lib/configs.js";
import { FORMATS, merged, shownRemarks } from "../lib/convert.js";
import * as format from "../lib/format.js";
import { isObject } from "../lib/pointer.js";
import { go, to } from "../router.js";
import { mayWrite } from "../store.js";
import { reviewChanges } from "../ui/changes.js";
import { announce, fill, h } from "../ui/dom.js";
import { badge, button, figures, heading, note, problem, section } from "../ui/page.js";
import { table } from "../ui/table.js";

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
  if (mayWrite()) root.append(importing(signal, attempt), converting(signal, attempt));
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

/** Other gateways' files, and OpenAPI documents: converted by the gateway, which reads no other file for it. */
function converting(signal, attempt) {
  const kind = h("select", { id: "format" }, FORMATS.map(([word, title]) => h("option", { value: word }, title)));
  const input = h("input", { id: "foreign", type: "file", multiple: true, required: true });
  const result = h("div", {});
  const submit = (event) => {
    event.preventDefault();
    return attempt(async () => fill(result, converted(await convert(signal, kind.value, [...input.files]), signal, attempt)));
  };
  const field = (label, control) => h("div", { class: "field" }, h("label", { for: control.id }, label), control);
  return section(
    "Convert",
    note("Resources made of another gateway's configuration are added to those here. A guard without a counterpart closes its route."),
    h(
      "form",
      { class: "form", on: { submit } },
      field("Format", kind),
      field("Files, with those that they include", input),
      h("button", { type: "submit", class: "primary" }, "Convert"),
    ),
    result,
  );
}

async function convert(signal, kind, files) {
  const read = async (file) => ({ name: file.name, text: await file.text() });
  const body = { files: await Promise.all(files.map(read)) };
  return (await call("POST", `convert/${encodeURIComponent(kind)}`, { body, signal })).body;
}

const REMARKS = [
  { title: "Line", value: ({ file, line }) => (line > 0 ? `${file}:${line}` : file) },
  { title: "Source", value: ({ source }) => h("code", {}, source) },
  { title: "Result", value: ({ verdict, guards }) => badge(verdict, verdict === "not possible" ? (guards ? "bad" : "warn") : "") },
  { title: "Remark", value: ({ text }) => text },
];

function converted({ resources, settings, report }, signal, attempt) {
  const summary = Object.entries(report.summary ?? {}).map(([name, many]) => [name, format.count(many)]);
  const many = Object.values(resources).reduce((sum, items) => sum + items.length, 0);
  return [
    figures([["resources", format.count(many)], ...summary]),
    table("Remarks", REMARKS, shownRemarks(report), { empty: "Every line has its counterpart." }),
    Object.keys(settings).length > 0 &&
      h("details", {}, h("summary", {}, "Settings for the configuration file"), note("Listeners and other settings are not resources. Put them into the file of the gateway."), h("pre", { tabindex: "0" }, JSON.stringify(settings, null, 2))),
    many > 0 && button("Review and add", () => attempt(async () => apply(signal, merged(sections(await get("configs", signal)), resources))), { kind: "primary" }),
  ];
}

async function replace(signal, file) {
  await apply(signal, sections(parsed(await file.text())));
}

/** Makes `body` the whole configuration, after a review. */
async function apply(signal, body) {
  const options = { body, headers: { "X-Digest": randomDigest() } };
  const present = await get("configs", signal);
  const { warnings } = await call("PUT", "configs?check_references=true&dry_run=true", { ...options, signal });
  const all = changes(present, body);
  if (all.length === 0) return announce("The file and the gateway have the same resources.");
  if (!(await reviewChanges(signal, "Change these resources?", all, { label: "Import", warnings }))) return;
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
