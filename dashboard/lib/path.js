// The way of a request through the gateway, from an answer of `explain`.

/** Phases in the order in which they run. Others come after them. */
const PHASES = ["rewrite", "access", "before_proxy", "request_filter", "header_filter", "body_filter", "log"];
/** Phases that run after the response of a node has begun. */
const OF_RESPONSES = new Set(["header_filter", "body_filter", "log"]);

/**
 * The steps: `{title, detail, kind, plugins, ends}`. `kind` is `resource`, `phase` or `node`; `ends` is set at the last
 * step of a request that is refused.
 */
export function steps({ route, service, upstream, refused, to_node, plugins = [] }) {
  const named = (one) => (one.name ? `${one.key} (${one.name})` : one.key);
  const resource = (title, one) => one && { title, detail: named(one), key: one.key, kind: "resource", plugins: [] };
  if (!route) return [{ title: "Route", detail: refused ?? "no route matches", kind: "resource", plugins: [], ends: true }];
  const running = plugins.filter((plugin) => plugin.runs);
  const names = [...new Set(running.flatMap((plugin) => plugin.phases))];
  const place = (name) => (PHASES.indexOf(name) + PHASES.length) % PHASES.length;
  const known = names.filter((name) => PHASES.includes(name)).sort((a, b) => place(a) - place(b));
  const phases = [...known, ...names.filter((name) => !PHASES.includes(name)).sort()].map((name) => ({
    title: name.replaceAll("_", " "),
    kind: "phase",
    isOfResponse: OF_RESPONSES.has(name),
    plugins: running.filter((plugin) => plugin.phases.includes(name)).map((plugin) => plugin.name),
  }));
  const before = phases.filter((phase) => !phase.isOfResponse);
  const start = [resource("Route", route), resource("Service", service), ...before].filter(Boolean);
  if (refused) return [...start, { title: "Refused", detail: refused, kind: "node", plugins: [], ends: true }];
  const node = to_node && { title: "Node", detail: `${to_node.method} ${to_node.path}`, kind: "node", plugins: [] };
  return [...start, resource("Upstream", upstream), node, ...phases.filter((phase) => phase.isOfResponse)].filter(Boolean);
}
