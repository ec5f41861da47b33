// Which view the address names: `#/name/part/part?query`.

/** `{name, parts, query}` of a hash. */
export function parse(hash) {
  const [where, search = ""] = hash.replace(/^#\/?/, "").split("?");
  const [name = "", ...parts] = where.split("/").filter(Boolean).map(decode);
  return { name, parts, query: new URLSearchParams(search) };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The hash of a view. */
export function to(name, ...parts) {
  return `#/${[name, ...parts].map((part) => encodeURIComponent(part)).join("/")}`;
}

export function go(hash) {
  location.hash = hash;
}

let left = new AbortController();

/** The signal that ends when the page that is shown now is left. */
export function here() {
  return left.signal;
}

/** Calls `show` with each place that the address names, and with a signal that ends when the place is left. */
export function follow(show) {
  const enter = () => {
    left.abort();
    left = new AbortController();
    show(parse(location.hash), left.signal);
  };
  addEventListener("hashchange", enter);
  enter();
}
