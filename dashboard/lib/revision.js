// Whether a gateway serves the newest configuration.

import * as format from "./format.js";

/**
 * `{tone, text}` of an answer of `revision`. `changed` is the newest revision that the gateway knows of, `versions` are
 * those of the history, the newest first.
 */
export function standing({ revision, published, quarantined, store }, changed = 0, versions = []) {
  const newest = Math.max(published, changed);
  if (revision < newest) {
    const missing = versions.filter((one) => one.revision > revision).at(-1);
    const since = missing ? missing.time_ms / 1000 : store.lost?.since;
    const start = since === undefined ? "Behind" : `Behind since ${format.time(since)}`;
    return { tone: "bad", text: `${start}: revision ${format.count(revision)} of ${format.count(newest)} is in force` };
  }
  if (store.lost) {
    const since = format.time(store.lost.since);
    return { tone: "bad", text: `Revision ${format.count(revision)} is in force; the store has been unreachable since ${since}` };
  }
  const text = `Up to date (revision ${format.count(revision)})`;
  const many = quarantined.length;
  if (many === 0) return { tone: "good", text };
  return { tone: "warn", text: `${text}, except ${many === 1 ? "one quarantined object" : `${format.count(many)} quarantined objects`}` };
}
