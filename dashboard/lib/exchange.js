// Failed exchanges of a tap, as rows of a table.

/** `{time, status, request, route, node, reason, meaning, remedy}`; `reasons` is the table of reasons of `live`. */
export function failure(exchange, reasons) {
  const { time, status, method, target, route, route_name, attempts, fault, source } = exchange;
  const known = fault && reasons[fault.type];
  return {
    time: Date.parse(time) / 1000,
    status,
    request: `${method} ${target}`,
    route,
    routeName: route_name,
    node: attempts.at(-1)?.node,
    reason: fault?.type ?? { node: "response of the node", gateway: "response of the gateway or a plugin" }[source] ?? source,
    meaning: known?.meaning ?? fault?.reason,
    remedy: known?.remedy,
  };
}
