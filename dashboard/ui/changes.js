// Changes of resources: how many, which, and what differs.

import * as format from "../lib/format.js";
import { ask, difference, warningList } from "./dialog.js";
import { h } from "./dom.js";
import { badge, note } from "./page.js";

/** The kinds of a change, each with the tone of its badge. */
const KINDS = { created: "good", changed: "", deleted: "bad" };
/** Differences that a review shows; more would make a page slow. */
const SHOWN = 200;

/** A badge for each kind of which there are changes: `counts` has their numbers. */
export function kindBadges(counts) {
  const kinds = Object.entries(KINDS).filter(([kind]) => counts[kind] > 0);
  return kinds.flatMap(([kind, tone]) => [badge(`${format.count(counts[kind])} ${kind}`, tone), " "]);
}

/** One change with its difference. */
export function changed(change) {
  const title = h("h3", {}, change.key, " ", badge(change.operation, KINDS[change.operation]));
  return h("div", {}, title, difference(change.before ?? undefined, change.after ?? undefined));
}

/** Shows changes before they are made; resolves to true if they are confirmed. `total` counts those without a difference too. */
export async function reviewChanges(signal, title, changes, { label, warnings, counts = countsOf(changes), total = changes.length, notes = [] }) {
  const shown = changes.slice(0, SHOWN);
  const content = [
    notes,
    warningList(warnings),
    h("p", {}, kindBadges(counts)),
    shown.map(changed),
    total > shown.length && note(`${format.count(total - shown.length)} more objects are not shown.`),
  ];
  return (await ask(signal, title, content, [{ label, value: true, kind: "danger" }])) === true;
}

function countsOf(changes) {
  const count = (kind) => changes.filter(({ operation }) => operation === kind).length;
  return Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, count(kind)]));
}
