// Who changed what, and the way back.

import { call, get, getIfAny, path, query, write } from "../api.js";
import * as format from "../lib/format.js";
import { go, to } from "../router.js";
import { mayWrite } from "../store.js";
import { ask, difference, warningList } from "../ui/dialog.js";
import { announce, fill, h } from "../ui/dom.js";
import { absent, badge, button, figures, heading, link, note, problem, section } from "../ui/page.js";
import { table } from "../ui/table.js";

export function show(root, place, signal) {
  return place.parts.length > 0 ? version(root, place.parts[0], signal) : versions(root, place.query.get("key") ?? "", signal);
}

const TONES = { in_force: "good", pending: "", quarantined: "bad", refused: "bad" };

const COLUMNS = [
  { title: "Version", value: (one) => link(String(one.version), to("history", one.version)) },
  { title: "When", value: (one) => format.time(one.time_ms / 1000) },
  { title: "Who", value: (one) => authorOf(one.author) },
  { title: "What", value: (one) => whatOf(one) },
  { title: "Result", value: (one) => badge(one.result.state, TONES[one.result.state]) },
];

function authorOf(author) {
  const who = author.key ?? author.certificate ?? author.file;
  const from = author.address ?? author.trigger;
  return [who ? `${author.by}: ${who}` : author.by, from && `(${from})`].filter(Boolean).join(" ");
}

function whatOf({ summary, keys, rollback_to }) {
  const all = summary.created + summary.changed + summary.deleted;
  const more = all > keys.length ? ` and ${format.count(all - keys.length)} more` : "";
  const back = rollback_to === undefined ? "" : `back to ${rollback_to}: `;
  const kinds = ["created", "changed", "deleted"].filter((kind) => summary[kind] > 0);
  const done = kinds.map((kind) => (kinds.length > 1 ? `${format.count(summary[kind])} ${kind}` : kind)).join(", ");
  return `${back}${done && `${done}: `}${keys.join(", ")}${more}`;
}

async function versions(root, key, signal) {
  root.append(heading("History"));
  const body = h("div", {});
  const input = h("input", { type: "search", id: "search", value: key, placeholder: "routes/1", "data-key": "/" });
  const look = (event) => {
    event.preventDefault();
    go(to("history") + query({ key: input.value.trim() }));
  };
  const first = await getIfAny(`history${query({ limit: 50, key })}`, signal);
  if (first === undefined) return root.append(absent("A history"));
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
    fill(body, table("Versions", COLUMNS, found, { empty: "Nothing has changed yet." }), next);
  };
  root.append(
    h("form", { class: "pair", role: "search", on: { submit: look } }, h("label", { for: "search" }, "Object"), input, h("button", { type: "submit" }, "Search")),
    section("Versions, the newest first", body),
  );
  draw(first);
}

async function version(root, number, signal) {
  const seen = await get(path("history", number), signal);
  const back = mayWrite() && button("Roll back to this", () => rollBack(number, root, signal), { kind: "danger" });
  const { created, changed, deleted } = seen.summary;
  root.append(
    heading(`Version ${number}`, link("All versions", to("history")), back),
    section(
      "What is known",
      figures([
        ["When", format.time(seen.time_ms / 1000)],
        ["Who", authorOf(seen.author)],
        ["Revision", format.count(seen.revision)],
        ["Created", format.count(created)],
        ["Changed", format.count(changed)],
        ["Deleted", format.count(deleted)],
        ["Result", seen.result.state, TONES[seen.result.state]],
      ]),
      seen.result.reason && problem(seen.result.reason),
      seen.result.objects?.map((one) => problem(`${one.key}: ${one.reason} (served: ${one.served})`)),
      seen.note && note(seen.note),
    ),
    ...changes(seen),
  );
}

function changes({ changes: all, total, truncated }) {
  const one = (change) => section(`${change.key}: ${change.operation}`, difference(change.before ?? undefined, change.after ?? undefined));
  return [...all.map(one), truncated && note(`${format.count(total - all.length)} further objects are not shown.`)].filter(Boolean);
}

/** Shows what a rollback would write before it is done. */
async function rollBack(number, root, signal) {
  const where = path("history", number, "rollback");
  try {
    const { body: plan, warnings } = await call("POST", where + query({ dry_run: "true" }), { signal });
    if (plan.objects === 0) return announce("Everything is as it was in this version.");
    const newest = await get("history?limit=1", signal);
    const newestVersion = newest.list[0].version;
    const seen = await get(path("history", newestVersion, "diff", number), signal);
    const left = [...plan.left.settings, ...plan.left.expired];
    const content = [
      h("p", {}, `${format.count(plan.created.length)} created, ${format.count(plan.changed.length)} changed, ${format.count(plan.deleted.length)} deleted.`),
      warningList(warnings),
      left.length > 0 && note(`Not brought back: ${left.join(", ")}.`),
      seen.changes.map((change) => h("div", {}, h("h3", {}, change.key), difference(change.before ?? undefined, change.after ?? undefined))),
    ];
    const agreed = await ask(signal, `Roll back to version ${number}?`, content, [{ label: "Roll back", value: true, kind: "danger" }]);
    if (!agreed) return;
    await write(signal, "POST", where, { ifMatch: `"${newestVersion}"` });
    announce(`Rolled back to version ${number}.`);
    go(to("history"));
  } catch (error) {
    if (!signal.aborted) root.append(problem(error.status === 412 ? "Somebody has changed something meanwhile: look again." : error));
  }
}
