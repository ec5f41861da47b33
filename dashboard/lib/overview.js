// The drawing of routes, services, upstreams and nodes: what leads where.

import { idOf, summary } from "./resources.js";

/** Items that a column shows at most; a search finds the others. */
export const SHOWN_MAX = 60;

const TONES = { healthy: "good", unhealthy: "bad", mostly_healthy: "warn", mostly_unhealthy: "warn" };

/**
 * The columns and lines of a configuration. `routes`, `services` and `upstreams` are entries of their collections,
 * `health` is the list of upstreams in use with their nodes, `traffic` is the window of live traffic. Returns
 * `{columns: [{title, items, left}], lines: [[from, to]]}`; an item is `{key, title, detail, href, rate, tone}`, and
 * `left` is the number of items that are not shown.
 */
export function overview({ routes, services, upstreams, health, traffic }, search = "") {
  const columns = [
    { title: "Routes", items: routes.map((one) => routeOf(one, traffic)) },
    { title: "Services", items: services.map((one) => resourceOf("services", one)) },
    { title: "Upstreams", items: upstreamsOf(upstreams, health) },
    { title: "Nodes", items: nodesOf(health, traffic) },
  ];
  const known = new Set(columns.flatMap(({ items }) => items.map(({ key }) => key)));
  const lines = [
    ...routes.flatMap((one) => linesOf("routes", one)),
    ...services.flatMap((one) => linesOf("services", one)),
    ...health.flatMap(({ upstream, nodes }) => nodes.map(({ node }) => [upstreamKey(upstream), `node ${node}`])),
  ].filter(([from, to]) => known.has(from) && known.has(to));
  const wanted = found(columns, lines, search);
  const shown = columns.map(({ title, items }) => {
    const kept = items.filter(({ key }) => wanted.has(key));
    return { title, items: kept.slice(0, SHOWN_MAX), left: Math.max(0, kept.length - SHOWN_MAX) };
  });
  const visible = new Set(shown.flatMap(({ items }) => items.map(({ key }) => key)));
  return {
    columns: shown.filter(({ title, items }) => items.length > 0 || title !== "Services"),
    lines: lines.filter(([from, to]) => visible.has(from) && visible.has(to)),
  };
}

/** An upstream in use is named after its resource: `upstreams/1`, or `routes/1` for an inline one. */
function upstreamKey(name) {
  return name.startsWith("upstreams/") ? name : `inline ${name}`;
}

function hrefOf(name) {
  const [segment, ...id] = name.split("/");
  return ["resource", segment, id.join("/")];
}

function resourceOf(segment, { key, value }) {
  const id = idOf(segment, key);
  return { key: `${segment}/${id}`, title: value.name ?? id, detail: summary(segment, value), href: ["resource", segment, id] };
}

function routeOf(one, traffic) {
  const item = resourceOf("routes", one);
  const row = traffic.routes.find(({ id }) => `routes/${id}` === item.key);
  return { ...item, rate: row?.rate, tone: row?.server_errors > 0 ? "bad" : "" };
}

function upstreamsOf(upstreams, health) {
  const inUse = health.map(({ upstream, nodes }) => {
    const usable = nodes.filter((node) => node.in_use).length;
    const tone = nodes.length > 0 && usable === nodes.length ? "good" : usable > 0 ? "warn" : "bad";
    const inline = !upstream.startsWith("upstreams/");
    const title = inline ? `inline, ${upstream}` : upstream.slice("upstreams/".length);
    return { key: upstreamKey(upstream), title, detail: `${usable} of ${nodes.length} in use`, href: hrefOf(upstream), tone };
  });
  const used = new Set(inUse.map(({ key }) => key));
  const named = new Map(upstreams.map((one) => [`upstreams/${idOf("upstreams", one.key)}`, one.value.name]));
  const idle = upstreams.map((one) => resourceOf("upstreams", one)).filter(({ key }) => !used.has(key));
  return [...inUse.map((item) => ({ ...item, title: named.get(item.key) ?? item.title })), ...idle];
}

function nodesOf(health, traffic) {
  const nodes = new Map();
  for (const { nodes: all } of health) {
    for (const { node, address, status, state } of all) {
      const known = nodes.get(node);
      const tone = state === "ready" ? TONES[status] ?? "" : "warn";
      if (known && known.tone !== "good") continue;
      const row = traffic.nodes.find((one) => one.address === address);
      nodes.set(node, { key: `node ${node}`, title: node, detail: status.replaceAll("_", " "), href: ["nodes"], rate: row?.rate, tone });
    }
  }
  return [...nodes.values()];
}

/** The lines from a route or service to its service and its upstream. */
function linesOf(segment, { key, value }) {
  const from = `${segment}/${idOf(segment, key)}`;
  const to = [];
  if (value.service_id !== undefined) to.push(`services/${value.service_id}`);
  if (value.upstream_id !== undefined) to.push(`upstreams/${value.upstream_id}`);
  if (value.upstream) to.push(`inline ${from}`);
  return to.map((one) => [from, one]);
}

/** The keys of items that have every word, and of all items from which or to which they lead. */
function found(columns, lines, search) {
  const items = columns.flatMap(({ items: all }) => all);
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return new Set(items.map(({ key }) => key));
  const has = ({ key, title, detail }) => words.every((word) => `${key} ${title} ${detail}`.toLowerCase().includes(word));
  const hits = items.filter(has).map(({ key }) => key);
  const reached = (from, to) => {
    const next = new Map();
    for (const line of lines) next.set(line[from], [...(next.get(line[from]) ?? []), line[to]]);
    const all = new Set(hits);
    for (const key of all) for (const other of next.get(key) ?? []) all.add(other);
    return all;
  };
  return new Set([...reached(0, 1), ...reached(1, 0)]);
}
