// The difference between two documents, line by line.

import { isObject } from "./pointer.js";

/** Documents beyond so many pairs of lines are told as a whole: a table of them would take too much memory. */
const PAIRS_MAX = 4_000_000;

/** A value as text with its members in order, so that order alone makes no difference. */
export function text(value) {
  return value === undefined ? "" : JSON.stringify(sorted(value), null, 2);
}

function sorted(value) {
  if (Array.isArray(value)) return value.map(sorted);
  if (!isObject(value)) return value;
  return Object.fromEntries(Object.keys(value).sort().map((name) => [name, sorted(value[name])]));
}

/** `[{sign: " " | "-" | "+", line}]` that turns `before` into `after`, by their longest common subsequence. */
export function diff(before, after) {
  const a = before === "" ? [] : before.split("\n");
  const b = after === "" ? [] : after.split("\n");
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a.at(-1 - tail) === b.at(-1 - tail)) tail += 1;
  const same = (lines) => lines.map((line) => ({ sign: " ", line }));
  const middle = between(a.slice(head, a.length - tail), b.slice(head, b.length - tail));
  return [...same(a.slice(0, head)), ...middle, ...same(a.slice(a.length - tail))];
}

function between(a, b) {
  const removed = (line) => ({ sign: "-", line });
  const added = (line) => ({ sign: "+", line });
  if (a.length * b.length > PAIRS_MAX) return [...a.map(removed), ...b.map(added)];
  // lengths[i][j]: the longest common subsequence of a from i on and b from j on.
  const lengths = Array.from({ length: a.length + 1 }, () => new Uint32Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      lengths[i][j] = a[i] === b[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const lines = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      lines.push({ sign: " ", line: a[i] });
      [i, j] = [i + 1, j + 1];
    } else if (j >= b.length || (i < a.length && lengths[i + 1][j] >= lengths[i][j + 1])) {
      lines.push(removed(a[i]));
      i += 1;
    } else {
      lines.push(added(b[j]));
      j += 1;
    }
  }
  return lines;
}

/** The same with so many lines around each change; what is left out is told as `{sign: "…", skipped}`. */
export function folded(lines, around = 3) {
  const near = new Set();
  lines.forEach(({ sign }, at) => {
    if (sign === " ") return;
    for (let n = at - around; n <= at + around; n += 1) near.add(n);
  });
  const shown = [];
  lines.forEach((line, at) => {
    if (near.has(at)) shown.push(line);
    else if (shown.at(-1)?.sign === "…") shown.at(-1).skipped += 1;
    else shown.push({ sign: "…", skipped: 1 });
  });
  return shown;
}
