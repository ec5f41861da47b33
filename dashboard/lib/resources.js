// The collections of the Admin API, as far as the dashboard has to know them.

/** In the order of the menu. `schema` is asked for by that name; a collection without `post` names ids itself. */
export const COLLECTIONS = [
  { segment: "routes", title: "Routes", word: "route", schema: "route", post: true, paths: true },
  { segment: "services", title: "Services", word: "service", schema: "service", post: true },
  { segment: "upstreams", title: "Upstreams", word: "upstream", schema: "upstream", post: true },
  { segment: "consumers", title: "Consumers", word: "consumer", schema: "consumer", id: "username" },
  { segment: "consumer_groups", title: "Consumer groups", word: "consumer group", schema: "consumer_group" },
  { segment: "plugin_configs", title: "Plugin configs", word: "plugin config", schema: "plugin_config" },
  { segment: "global_rules", title: "Global rules", word: "global rule", schema: "global_rule" },
  { segment: "plugin_metadata", title: "Plugin metadata", word: "plugin metadata", plugin: "metadata" },
  { segment: "ssls", title: "SSLs", word: "SSL", schema: "ssl", post: true },
  { segment: "secrets", title: "Secrets", word: "secret", idHint: "The secret manager and an id, such as vault/1." },
  { segment: "protos", title: "Protos", word: "proto", schema: "proto", post: true },
  { segment: "stream_routes", title: "Stream routes", word: "stream route", schema: "stream_route", post: true, streams: true },
];

/** The collections below a resource: the credentials of a consumer. */
const BELOW = {
  consumers: { segment: "credentials", title: "Credentials", word: "credential", schema: "credential" },
};

/** The collection of a path such as `routes` or `consumers/jack/credentials`. */
export function collectionOf(path) {
  const parts = path.split("/");
  const top = COLLECTIONS.find((one) => one.segment === parts[0]);
  if (parts.length === 1) return top;
  const below = BELOW[parts[0]];
  return below && parts.length === 3 && parts[2] === below.segment ? { ...below, parent: parts[1] } : undefined;
}

export function belowOf(segment) {
  return BELOW[segment];
}

/** The id of an entry of a collection, from its key: `/apisix/routes/1` is `1`, a secret's has its manager. */
export function idOf(path, key) {
  const inside = path === "secrets" ? 2 : 1;
  return key.split("/").slice(-inside).join("/");
}

/**
 * What a reference may be set to, from the `items` of its collection: `[{id, text}]`, in the order of the texts. The
 * value that is set now is always there, marked if its resource is missing.
 */
export function choicesOf(collection, items, value) {
  const isFit = (one) => collection !== "ssls" || one.value.type === "client";
  const named = items.filter(isFit).map((one) => {
    const id = idOf(collection, one.key);
    return { id, text: one.value.name ? `${one.value.name} (${id})` : id };
  });
  const choices = named.sort((a, b) => a.text.localeCompare(b.text));
  const isListed = value === undefined || choices.some(({ id }) => id === String(value));
  return isListed ? choices : [{ id: String(value), text: `${value} (missing)` }, ...choices];
}

/** What the server sets is not for writers. */
export function written(value) {
  const { create_time, update_time, ...rest } = value ?? {};
  return rest;
}

/** What distinguishes a resource from its siblings, in a line. */
export function summary(segment, value) {
  const list = (...names) => names.flatMap((name) => value[name] ?? []).join(", ");
  const nodes = (upstream) => {
    const all = upstream?.nodes;
    if (Array.isArray(all)) return all.map((node) => `${node.host}${node.port ? `:${node.port}` : ""}`).join(", ");
    return Object.keys(all ?? {}).join(", ") || upstream?.service_name || "";
  };
  const plugins = () => Object.keys(value.plugins ?? {}).join(", ");
  const target = () =>
    value.upstream_id ? `upstream ${value.upstream_id}` : value.service_id ? `service ${value.service_id}` : nodes(value.upstream);
  switch (segment) {
    case "routes":
      return [list("methods"), list("host", "hosts"), list("uri", "uris"), target() && `→ ${target()}`].filter(Boolean).join(" ");
    case "services":
      return [list("hosts"), target() && `→ ${target()}`].filter(Boolean).join(" ");
    case "upstreams":
      return nodes(value);
    case "ssls":
      return list("sni", "snis");
    case "stream_routes":
      return [value.server_port && `port ${value.server_port}`, list("sni"), target() && `→ ${target()}`].filter(Boolean).join(" ");
    case "secrets":
      return value.uri ?? value.region ?? "";
    default:
      return plugins() || value.desc || "";
  }
}

/** What a new resource begins with. */
export function draft(segment) {
  const nodes = { "127.0.0.1:8080": 1 };
  const drafts = {
    routes: { uri: "/*", upstream: { type: "roundrobin", nodes } },
    services: { upstream: { type: "roundrobin", nodes } },
    upstreams: { type: "roundrobin", nodes },
    consumers: { username: "", plugins: {} },
    credentials: { plugins: {} },
    consumer_groups: { plugins: {} },
    plugin_configs: { plugins: {} },
    global_rules: { plugins: {} },
    ssls: { snis: [], cert: "", key: "" },
    protos: { content: "" },
    stream_routes: { upstream: { type: "roundrobin", nodes } },
  };
  return drafts[segment] ?? {};
}
