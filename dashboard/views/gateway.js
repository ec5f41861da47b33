// This gateway: whether its configuration is up to date, and which objects it cannot serve as they were written.

import { get, getIfAny } from "../api.js";
import * as format from "../lib/format.js";
import { standing } from "../lib/revision.js";
import { to } from "../router.js";
import { getCaller } from "../store.js";
import { fill, h } from "../ui/dom.js";
import { badge, figures, heading, link, note, poll, section } from "../ui/page.js";
import { table } from "../ui/table.js";

export function show(root, _place, signal) {
  const body = h("div", {});
  root.append(heading("This gateway"), body);
  const ask = async () => {
    const [revision, members] = await Promise.all([get("revision", signal), getIfAny("members", signal)]);
    const changed = members?.changed ?? 0;
    const isBehind = revision.revision < Math.max(revision.published, changed);
    const history = isBehind && (await getIfAny("history?limit=100", signal));
    return { revision, changed, versions: history ? history.list : [] };
  };
  return poll(signal, 5, ask, body, (seen) => fill(body, draw(seen)));
}

function draw({ revision, changed, versions }) {
  return [state(revision, changed, versions), quarantine(revision.quarantined), warnings(revision.warnings)];
}

function state(seen, changed, versions) {
  const { revision, published, workers, store } = seen;
  const behind = workers.filter((one) => one.revision !== published);
  const { tone, text } = standing(seen, changed, versions);
  return section(
    "Configuration",
    h("p", { class: "standing" }, badge(text, tone)),
    store.lost && h("p", { class: "problem" }, `The store cannot be reached since ${format.time(store.lost.since)}: ${store.lost.reason}`),
    store.copied && note(`The gateway serves a copy of the store from ${format.time(store.copied)}.`),
    figures([
      ["Revision in force", format.count(revision)],
      ["Newest revision", format.count(Math.max(published, changed))],
      ["Workers behind", `${behind.length} of ${workers.length}`, behind.length > 0 ? "warn" : ""],
      ["Store", store.kind],
      ["Revision of the store", format.count(store.revision)],
      ["Version of Sigma", getCaller().version],
    ]),
  );
}

function quarantine(items) {
  const columns = [
    { title: "Object", value: (one) => link(one.key, to("resource", ...placeOf(one.key))) },
    { title: "Reason", value: (one) => one.reason },
    { title: "Since", value: (one) => format.time(one.since) },
    { title: "Revision", numeric: true, value: (one) => format.count(one.revision) },
    { title: "Served instead", value: (one) => badge(one.served.replaceAll("_", " "), one.last_good_served ? "warn" : "bad") },
  ];
  return section("Quarantined objects", table("Objects in quarantine", columns, items, { empty: "No object is in quarantine." }));
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
