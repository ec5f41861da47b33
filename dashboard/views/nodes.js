// The nodes of every upstream, with their health.

import { get } from "../api.js";
import * as format from "../lib/format.js";
import { to } from "../router.js";
import { fill, h } from "../ui/dom.js";
import { badge, heading, link, note, poll } from "../ui/page.js";
import { table } from "../ui/table.js";

export function show(root, _place, signal) {
  const body = h("div", {});
  root.append(heading("Upstream health"), body);
  return poll(signal, 3, () => get("nodes", signal), body, (upstreams) => fill(body, draw(upstreams)));
}

const TONES = { healthy: "good", unhealthy: "bad", mostly_healthy: "warn", mostly_unhealthy: "warn" };

const COLUMNS = [
  { title: "Node", value: (node) => node.node },
  { title: "Address", value: (node) => node.address },
  { title: "Weight", numeric: true, value: (node) => format.count(node.weight) },
  { title: "Health", value: (node) => badge(node.status.replaceAll("_", " "), TONES[node.status]) },
  { title: "State", value: (node) => badge(node.state, node.state === "ready" ? "" : "warn") },
  { title: "In use", value: (node) => (node.in_use ? "yes" : badge("no", "bad")) },
  { title: "Reason", value: reason },
];

function reason(node) {
  const until = node.ejected_until && `ejected until ${format.time(node.ejected_until)}`;
  return [node.reason, until].filter(Boolean).join("; ") || "–";
}

function draw(upstreams) {
  if (upstreams.length === 0) return note("There is no upstream.");
  return upstreams.map(({ upstream, nodes, reason: why }) => {
    const [segment, ...id] = upstream.split("/");
    const title = link(upstream, to("resource", segment, id.join("/")));
    const usable = nodes.filter((node) => node.in_use).length;
    const tone = usable === nodes.length && usable > 0 ? "good" : usable > 0 ? "warn" : "bad";
    return h(
      "section",
      { class: "card" },
      h("h2", {}, title, " ", badge(`${usable} of ${nodes.length} in use`, tone)),
      table(`Nodes of ${upstream}`, COLUMNS, nodes, { empty: why ?? "This upstream has no nodes." }),
    );
  });
}
