// What all views share: who the caller is, and the answers that do not change while the page is open.

import { get } from "./api.js";

/** `{role, key_required, api_version, streams, version}`, once it is known. */
let caller = null;
const kept = new Map();

export function setCaller(next) {
  caller = next;
  kept.clear();
}

export function getCaller() {
  return caller;
}

export function mayWrite() {
  return caller?.role === "admin";
}

/** The answer of a GET, asked for once. One that fails is asked for again. */
export function once(where) {
  if (!kept.has(where)) {
    const answer = get(where);
    kept.set(where, answer);
    answer.catch(() => kept.delete(where));
  }
  return kept.get(where);
}
