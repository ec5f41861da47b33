// Places in JSON, as lists of member names and indices.

export function getAt(value, path) {
  return path.reduce((inner, step) => (inner === null || inner === undefined ? undefined : inner[step]), value);
}

/** A copy of `value` with another value at `path`; `undefined` removes it, and objects that are empty then. */
export function setAt(value, path, next) {
  if (path.length === 0) return next;
  const [step, ...rest] = path;
  const copy = Array.isArray(value) ? [...value] : isObject(value) ? { ...value } : typeof step === "number" ? [] : {};
  const inner = setAt(copy[step], rest, next);
  if (inner !== undefined) copy[step] = inner;
  else if (Array.isArray(copy)) copy.splice(step, 1);
  else delete copy[step];
  const isEmptied = next === undefined && Object.keys(copy).length === 0 && value !== undefined;
  return isEmptied ? undefined : copy;
}

export function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The path as people read it: `upstream.nodes[0].host`. */
export function shown(path) {
  return path.map((step, at) => (typeof step === "number" ? `[${step}]` : at ? `.${step}` : step)).join("");
}

/** Equal as JSON, whatever the order of members. */
export function equal(a, b) {
  if (a === b) return true;
  if (Array.isArray(a) !== Array.isArray(b)) return false;
  if (Array.isArray(a)) return a.length === b.length && a.every((item, at) => equal(item, b[at]));
  if (!isObject(a) || !isObject(b)) return false;
  const names = Object.keys(a);
  return names.length === Object.keys(b).length && names.every((name) => name in b && equal(a[name], b[name]));
}
