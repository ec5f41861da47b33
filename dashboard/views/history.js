// The history of the configuration: versions, undo and rollback.

import { call, get, getIfAny, path, query, write } from "../api.js";
import * as format from "../lib/format.js";
import { authorOf, lastChange } from "../lib/history.js";
import { go, to } from "../router.js";
import { mayWrite } from "../store.js";
import { changed, kindBadges, reviewChanges } from "../ui/changes.js";
import { announce, fill, h } from "../ui/dom.js";
import { absent, badge, button, figures, heading, link, note, problem, section } from "../ui/page.js";
import { table } from "../ui/table.js";

export function show(root, place, signal) {
  return place.parts.length > 0 ? version(root, place.parts[0], signal) : versions(root, place.query.get("key") ?? "", signal);
}

const TONES = { in_force: "good", pending: "", quarantined: "bad", refused: "bad" };

/** Versions in which a change of resources is looked for. */
const LOOKS = 100;

const COLUMNS = [
  { title: "Version", value: (one) => link(String(one.version), to("history", one.version)) },
  { title: "Time", value: (one) => format.time(one.time_ms / 1000) },
  { title: "Author", value: (one) => authorOf(one.author) },
  { title: "Change", value: changeOf },
  { title: "Result", value: ({ result }) => badge(result.state.replaceAll("_", " "), TONES[result.state]) },
];

/** How many objects were created, changed and deleted, and the first of their keys. */
function changeOf({ summary, keys, rollback_to, note: text }) {
  const all = summary.created + summary.changed + summary.deleted;
  const more = all > keys.length && keys.length > 0 ? ` and ${format.count(all - keys.length)} more` : "";
  const back = rollback_to === undefined ? "" : `restored version ${rollback_to}: `;
  const named = `${back}${keys.join(", ")}${more}`;
  return [kindBadges(summary), named || text || "no change of an object"];
}

async function versions(root, key, signal) {
  const back = mayWrite() && button("Undo the last change", () => attempt(root, signal, () => undo(root, signal)));
  const body = h("div", {});
  const input = h("input", { type: "search", id: "search", value: key, placeholder: "routes/1", "data-key": "/" });
  const look = (event) => {
    event.preventDefault();
    go(to("history") + query({ key: input.value.trim() }));
  };
  const first = await getIfAny(`history${query({ limit: 50, key })}`, signal);
  if (first === undefined) return root.append(heading("History"), absent("history"));
  const found = [];
  const draw = (page) => {
    found.push(...page.list);
    const more = async () => {
      try {
        draw(await get(`history${query({ limit: 50, key, before: page.next_before })}`, signal));
      } catch (error) {
        if (!signal.aborted) body.append(problem(error));
      }
    };
    const next = page.next_before && button("Older versions", more);
    fill(body, table("Versions", COLUMNS, found, { empty: "There is no version of this object." }), next);
  };
  root.append(
    heading("History", back),
    h("form", { class: "pair", role: "search", on: { submit: look } }, h("label", { for: "search" }, "Key of an object"), input, h("button", { type: "submit" }, "Search")),
    section("Versions, newest first", body),
  );
  draw(first);
}

async function version(root, number, signal) {
  const seen = await get(path("history", number), signal);
  const back = mayWrite() && button("Roll back to this version", () => attempt(root, signal, () => rollBack(number, signal)), { kind: "danger" });
  const { created, changed, deleted } = seen.summary;
  root.append(
    heading(`Version ${number}`, link("All versions", to("history")), back),
    section(
      "Details",
      figures([
        ["Time", format.time(seen.time_ms / 1000)],
        ["Author", authorOf(seen.author)],
        ["Revision", format.count(seen.revision)],
        ["Created", format.count(created)],
        ["Changed", format.count(changed)],
        ["Deleted", format.count(deleted)],
        ["Result", seen.result.state.replaceAll("_", " "), TONES[seen.result.state]],
      ]),
      seen.result.reason && problem(seen.result.reason),
      seen.result.objects?.map((one) => problem(`${one.key}: ${one.reason} (served instead: ${one.served.replaceAll("_", " ")})`)),
      seen.note && note(seen.note),
      note("A version is an entry of this gateway's history. The revision is the counter of the store, which each write increases; the ETag of a resource is the revision of its last write."),
    ),
    ...changes(seen),
  );
}

function changes({ changes: all, total, truncated }) {
  const one = (change) => h("section", { class: "card" }, changed(change));
  return [...all.map(one), truncated && note(`${format.count(total - all.length)} more objects are not shown.`)].filter(Boolean);
}

/** Does what a button says, and shows why it failed. */
async function attempt(root, signal, act) {
  try {
    await act();
  } catch (error) {
    if (!signal.aborted) root.append(problem(error.status === 412 ? "Another operator has changed a resource meanwhile. Try again." : error));
  }
}

async function rollBack(number, signal) {
  const title = `Roll back to version ${number}?`;
  await goBack(signal, Number(number), { title, label: "Roll back", done: `Rolled back to version ${number}.`, after: () => go(to("history")) });
}

/** Takes back the newest change of resources. */
async function undo(root, signal) {
  const { list } = await get(`history${query({ limit: LOOKS })}`, signal);
  const last = lastChange(list);
  if (!last) return announce("There is no change of resources to undo.");
  const title = `Undo version ${last.version}?`;
  const about = note(`Version ${last.version} is from ${format.time(last.time_ms / 1000)}, by ${authorOf(last.author)}.`);
  const after = () => versions(fill(root), "", signal);
  await goBack(signal, last.version - 1, { title, about, label: "Undo", done: `Version ${last.version} is undone.`, after });
}

/** Brings the resources back to a version, after a review of what is written. */
async function goBack(signal, version, { title, about, label, done, after }) {
  const where = path("history", version, "rollback");
  const newest = (await get(`history${query({ limit: 1 })}`, signal)).list[0].version;
  const { body: plan, warnings } = await call("POST", where + query({ dry_run: "true" }), { signal });
  if (plan.objects === 0) return announce(`The resources are as they were in version ${version}.`);
  const seen = await get(path("history", newest, "diff", version), signal);
  const counts = { created: plan.created.length, changed: plan.changed.length, deleted: plan.deleted.length };
  const left = [...plan.left.settings, ...plan.left.expired];
  const notes = [about, left.length > 0 && note(`These stay as they are: ${left.join(", ")}.`)];
  const shown = seen.changes.filter(({ key }) => plan.keys.includes(key));
  if (!(await reviewChanges(signal, title, shown, { label, warnings, counts, total: plan.objects, notes }))) return;
  await write(signal, "POST", where, { ifMatch: `"${newest}"` });
  announce(done);
  await after();
}
