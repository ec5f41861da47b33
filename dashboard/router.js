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

/** Tells `show` each place that is gone to, with a signal that ends when it is left. */
export function follow(show) {
  let left = new AbortController();
  const enter = () => {
    left.abort();
    left = new AbortController();
    show(parse(location.hash), left.signal);
  };
  addEventListener("hashchange", enter);
  enter();
  return enter;
}
