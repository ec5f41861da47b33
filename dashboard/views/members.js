// The gateways on one store: the revision that each of them serves.

import { get } from "../api.js";
import * as format from "../lib/format.js";
import { fill, h } from "../ui/dom.js";
import { badge, heading, note, poll } from "../ui/page.js";
import { table } from "../ui/table.js";

export function show(root, _place, signal) {
  const body = h("div", {});
  root.append(heading("Gateways"), body);
  return poll(signal, 5, () => get("members", signal), body, (answer) => fill(body, draw(answer)));
}

const COLUMNS = [
  { title: "Gateway", value: (one) => (one.this ? [one.id, " ", badge("this gateway")] : one.id) },
  { title: "Host", value: (one) => one.hostname },
  { title: "Version", value: (one) => one.version },
  { title: "Up for", value: (one) => (one.boot_time ? format.duration(Date.now() / 1000 - one.boot_time) : "–") },
  { title: "Revision", numeric: true, value: (one) => (one.problem ? "–" : format.count(one.revision)) },
  { title: "State", value: state },
  { title: "Listeners", value: (one) => (one.listeners ?? []).join(", ") },
];

function state(one) {
  if (one.problem) return badge(one.problem, "bad");
  if (one.behind) return badge("behind", "warn");
  if (one.quarantined > 0) return badge(`${format.count(one.quarantined)} quarantined`, "warn");
  return badge("up to date", "good");
}

function draw({ members, changed, problem }) {
  return [
    problem && h("p", { class: "problem" }, problem),
    table("Gateways on this store", COLUMNS, members),
    changed > 0 && note(`The newest change of resources is revision ${format.count(changed)}.`),
  ];
}
