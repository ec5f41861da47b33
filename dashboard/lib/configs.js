// The whole configuration as one file.

import { equal } from "./pointer.js";
import { written } from "./resources.js";

/** The lists of resources in an answer of `configs`, without the versions beside them. */
export function sections(configs) {
  return Object.fromEntries(Object.entries(configs).filter(([name, items]) => Array.isArray(items) && name !== "plugins"));
}

/** The changes that lead from one configuration to another: `[{key, operation, before, after}]`, ordered by key. */
export function changes(before, after) {
  const [old, next] = [byKey(before), byKey(after)];
  const keys = [...new Set([...old.keys(), ...next.keys()])].sort();
  const all = keys.map((key) => ({ key, operation: operation(old.get(key), next.get(key)), before: old.get(key), after: next.get(key) }));
  return all.filter((change) => change.operation !== "unchanged");
}

function operation(before, after) {
  if (before === undefined) return "created";
  if (after === undefined) return "deleted";
  return equal(before, after) ? "unchanged" : "changed";
}

function byKey(configs) {
  const all = Object.entries(sections(configs));
  return new Map(all.flatMap(([section, items]) => items.map((item, at) => [`${section}/${item?.id ?? item?.username ?? at + 1}`, written(item)])));
}
