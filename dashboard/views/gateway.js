// This gateway: whether its configuration is up to date, which objects it cannot serve as they were written, and the code
// of users that it runs.

import { get, getIfAny } from "../api.js";
import * as format from "../lib/format.js";
import { runnerTone, scriptRows } from "../lib/extensions.js";
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
    const asked = [get("revision", signal), getIfAny("members", signal), getIfAny("live", signal)];
    const [revision, members, live] = await Promise.all(asked);
    const changed = members?.changed ?? 0;
    const isBehind = revision.revision < Math.max(revision.published, changed);
    const history = isBehind && (await getIfAny("history?limit=100", signal));
    return { revision, changed, versions: history ? history.list : [], lua: live?.lua, runner: live?.runner };
  };
  return poll(signal, 5, ask, body, (seen) => fill(body, draw(seen)));
}

function draw({ revision, changed, versions, lua, runner }) {
  return [
    state(revision, changed, versions),
    quarantine(revision.quarantined),
    warnings(revision.warnings),
    scripts(lua),
    pluginRunner(runner),
  ];
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

function scripts(lua) {
  const rows = scriptRows(lua);
  if (rows.length === 0) return false;
  const columns = [
    { title: "Plugin", value: (one) => one.plugin },
    { title: "Runs", numeric: true, value: (one) => format.count(one.runs) },
    { title: "Time per run", numeric: true, value: (one) => format.milliseconds(one.millis) },
    { title: "Errors", numeric: true, value: (one) => format.count(one.errors) },
    { title: "Aborted", numeric: true, value: (one) => format.count(one.aborted) },
    { title: "Refused", numeric: true, value: (one) => format.count(one.refused) },
  ];
  const memory = lua.memory_bytes.map(format.bytes).join(", ");
  return section(
    "Lua scripts",
    table("Counts of scripts since the start", columns, rows),
    note(`Memory of each worker's scripts: ${memory}. Dropped values of scripts, because memory was used up: ${format.count(lua.resets)} times.`),
  );
}

function pluginRunner(runner) {
  if (!runner) return false;
  const failures = Object.entries(runner.failures).map(([reason, count]) => [`Failures: ${reason}`, format.count(count), count > 0 ? "warn" : ""]);
  return section(
    "Plugin runner",
    h("p", { class: "standing" }, badge(runner.state, runnerTone(runner.state))),
    figures([["Starts", format.count(runner.starts)], ["Calls", format.count(runner.calls)], ...failures]),
    runner.last_end && note(`Last end: ${runner.last_end}`),
    runner.output.length > 0 && h("pre", {}, runner.output.join("\n")),
  );
}
