// The conversion of another gateway's configuration.

/** The formats that the gateway converts, each with a title. */
export const FORMATS = [
  ["nginx", "nginx.conf"],
  ["apisix", "APISIX: config.yaml and apisix.yaml"],
  ["kong", "Kong: declarative configuration"],
  ["traefik", "Traefik: static and dynamic files"],
  ["haproxy", "HAProxy: haproxy.cfg"],
  ["caddy", "Caddyfile"],
  ["envoy", "Envoy: static bootstrap"],
  ["spring", "Spring Cloud Gateway: application.yml"],
  ["krakend", "KrakenD: krakend.json"],
  ["openapi", "OpenAPI document (3.0 or 3.1)"],
];

/** Verdicts of remarks, the worst first. */
const VERDICTS = ["not possible", "done with a difference", "without effect here", "done"];

/** The remarks that an operator should read, the worst first, at most so many. */
export function shownRemarks(report, most = 200) {
  const rank = ({ verdict }) => VERDICTS.indexOf(verdict);
  const worth = (report.remarks ?? []).filter(({ verdict, text }) => verdict !== "done" || text);
  return worth.sort((a, b) => rank(a) - rank(b) || a.line - b.line).slice(0, most);
}

/** The present resources with those of a conversion: one of the same key is replaced, nothing is deleted. */
export function merged(present, added) {
  const keyOf = (item) => item?.id ?? item?.username;
  const all = { ...present };
  for (const [section, items] of Object.entries(added)) {
    const keys = new Set(items.map(keyOf));
    all[section] = [...(present[section] ?? []).filter((item) => !keys.has(keyOf(item))), ...items];
  }
  return all;
}
