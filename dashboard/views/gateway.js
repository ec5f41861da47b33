// What this gateway serves: revisions, and what it cannot serve as it was written.

import { get } from "../api.js";
import * as format from "../lib/format.js";
import { to } from "../router.js";
import { getCaller } from "../store.js";
import { fill, h } from "../ui/dom.js";
import { badge, figures, heading, link, note, poll, section } from "../ui/page.js";
import { table } from "../ui/table.js";

export function show(root, _place, signal) {
  const body = h("div", {});
  root.append(heading("Gateway"), body);
  return poll(signal, 5, () => get("revision", signal), body, (revision) => fill(body, draw(revision)));
}

function draw(revision) {
  return [state(revision), quarantine(revision.quarantined), warnings(revision.warnings)];
}

function state({ revision, published, workers, store }) {
  const behind = workers.filter((one) => one.revision !== published);
  return section(
    "Revision",
    figures([
      ["Version", getCaller().version],
      ["Served", format.count(revision)],
      ["Published", format.count(published)],
      ["Store", store.kind],
      ["In the store", format.count(store.revision)],
      ["Workers behind", format.count(behind.length), behind.length > 0 ? "warn" : ""],
    ]),
    store.lost && h("p", { class: "problem" }, `The store is away since ${format.time(store.lost.since)}: ${store.lost.reason}`),
    store.copied && note(`A copy from ${format.time(store.copied)} is served.`),
  );
}

function quarantine(items) {
  const columns = [
    { title: "Object", value: (one) => link(one.key, to("resource", ...placeOf(one.key))) },
    { title: "Reason", value: (one) => one.reason },
    { title: "Since", value: (one) => format.time(one.since) },
    { title: "Revision", numeric: true, value: (one) => format.count(one.revision) },
    { title: "Served", value: (one) => badge(one.served, one.last_good_served ? "warn" : "bad") },
  ];
  return section("Quarantine", table("Objects in quarantine", columns, items, { empty: "Everything is served as it was written." }));
}

/** The collection of a key, and the id in it. */
function placeOf(key) {
  const parts = key.split("/");
  const inside = parts[0] === "secrets" ? 2 : 1;
  return [parts.slice(0, -inside).join("/"), parts.slice(-inside).join("/")];
}

function warnings(items) {
  const columns = [
    { title: "Place", value: (one) => one.place },
    { title: "Warning", value: (one) => one.message },
    { title: "Remedy", value: (one) => one.remedy },
  ];
  return items.length > 0 && section("Warnings", table("Warnings", columns, items));
}
