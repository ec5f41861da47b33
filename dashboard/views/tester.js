// The route that a request would match, and why the others do not.

import { call } from "../api.js";
import { curl } from "../lib/curl.js";
import { effects } from "../lib/explain.js";
import * as format from "../lib/format.js";
import { steps } from "../lib/path.js";
import { to } from "../router.js";
import { announce, fill, h } from "../ui/dom.js";
import { absent, badge, button, figures, heading, link, note, problem, section } from "../ui/page.js";
import { table } from "../ui/table.js";

const METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];

export function show(root, _place, signal) {
  const method = h("select", { id: "method" }, METHODS.map((one) => h("option", {}, one)));
  const url = h("input", { id: "url", type: "text", required: true, value: "localhost/", spellcheck: "false", autocomplete: "off" });
  const headers = h("textarea", { id: "headers", rows: 3, spellcheck: "false", placeholder: "X-Name: value" });
  const client = h("input", { id: "client", type: "text", placeholder: "127.0.0.1", autocomplete: "off" });
  const answer = h("div", {});
  const submit = async (event) => {
    event.preventDefault();
    const parameters = new URLSearchParams({ method: method.value, url: url.value });
    const fields = headers.value.split("\n").map((one) => one.trim()).filter(Boolean);
    fields.forEach((line) => parameters.append("header", line));
    const command = curl({ method: method.value, url: url.value, headers: fields });
    if (client.value.trim()) parameters.append("client", client.value.trim());
    try {
      fill(answer, draw((await call("GET", `explain?${parameters}`, { signal })).body), asCurl(command));
    } catch (error) {
      if (signal.aborted) return;
      fill(answer, error.status === 404 ? absent("route tester") : problem(error));
    }
  };
  const field = (label, control) => h("div", { class: "field" }, h("label", { for: control.id }, label), control);
  root.append(
    heading("Route tester"),
    h(
      "form",
      { class: "card form", on: { submit } },
      field("Method", method),
      field("URL", url),
      field("Header fields, one per line", headers),
      field("Client address", client),
      h("button", { type: "submit", class: "primary", "data-key": "s" }, "Explain"),
    ),
    answer,
  );
}

/** The same request as a command. A page that was not loaded over TLS or from this machine cannot copy texts. */
function asCurl(command) {
  const copy = async () => {
    await navigator.clipboard.writeText(command);
    announce("Copied.");
  };
  return section(
    "As a curl command",
    h("pre", { tabindex: "0" }, command),
    navigator.clipboard && button("Copy as curl", copy),
    note("The command connects to the host and port of the URL. Name the listener of the gateway there."),
  );
}

/** The result, the plugins and the nodes of the request, then why other routes do not match. */
function draw(seen) {
  return [outcome(seen), way(seen), plugins(seen.plugins), toNode(seen), others(seen)];
}

function outcome({ route, service, upstream, refused, revision, may_be_refused_by: refusers = [] }) {
  const named = (one) => (one.name ? `${one.key} (${one.name})` : one.key);
  const linked = (one) => (one ? link(named(one), linkTo(one.key)) : "–");
  return section(
    "Result",
    h("p", {}, route ? matched(refusers, refused) : badge("no route", "bad"), " ", refused ?? (route ? `by ${named(route)}` : "")),
    route && refusers.length > 0 && note(`These plugins may still refuse the request: ${refusers.join(", ")}.`),
    figures([
      ["Route", linked(route)],
      ["Service", linked(service)],
      ["Upstream", linked(upstream)],
      ["Revision", format.count(revision)],
    ]),
  );
}

/** The way of the request as a list of steps, in the order in which they happen. */
function way(seen) {
  const step = ({ title, detail, key, kind, plugins: names, ends, isOfResponse }) =>
    h(
      "li",
      { class: ["step", kind, ends && "bad", isOfResponse && "back"].filter(Boolean).join(" ") },
      h("span", { class: "title" }, title),
      detail && (key ? link(detail, linkTo(key)) : h("span", {}, detail)),
      names.map((name) => link(name, to("plugins", name))),
    );
  return section("Path of the request", h("ol", { class: "way" }, steps(seen).map(step)), note("Steps with a dashed border handle the response."));
}

/** The tester sends nothing: that a route matches does not mean that a node would respond. */
function matched(refusers, refused) {
  if (refused) return badge("refused", "bad");
  return badge("matched", refusers.length > 0 ? "warn" : "good");
}

/** The page of a resource by its key. */
function linkTo(key) {
  const [segment, ...id] = key.split("/");
  return to("resource", segment, id.join("/"));
}

function plugins(all) {
  const columns = [
    { title: "Plugin", value: (one) => link(one.name, to("plugins", one.name)) },
    { title: "Set by", value: (one) => one.source },
    { title: "Phases", value: (one) => one.phases.join(", ") || "–" },
    { title: "Runs", value: (one) => (one.runs ? badge("yes", "good") : badge("no", "warn")) },
    { title: "Reason", value: (one) => one.reason },
    { title: "Effect on this request", value: (one) => effectsOf(one.would) },
  ];
  return section("Plugins", table("Plugins of the request", columns, all, { empty: "No plugin runs for this request." }));
}

function effectsOf(would) {
  const texts = effects(would);
  return texts.length > 0 ? texts.map((text) => h("div", {}, text)) : "–";
}

function toNode({ upstream, to_node }) {
  if (!upstream || !to_node) return null;
  const columns = [
    { title: "Node", value: (node) => node.node },
    { title: "Weight", numeric: true, value: (node) => format.count(node.weight) },
    { title: "Health", value: (node) => node.status.replaceAll("_", " ") },
    { title: "In use", value: (node) => (node.in_use ? "yes" : badge("no", "bad")) },
    { title: "Reason", value: (node) => node.reason },
  ];
  const fields = Object.entries(to_node.headers).map(([name, value]) => `${name}: ${value}`);
  const changed = to_node.may_be_changed_by;
  return section(
    "Request to the node",
    h("pre", { tabindex: "0" }, [`${to_node.method} ${to_node.path}`, ...fields].join("\n")),
    changed.length > 0 && note(`These plugins may change the request or respond themselves: ${changed.join(", ")}.`),
    table("Nodes", columns, upstream.nodes, { empty: "The upstream has no nodes." }),
  );
}

function others({ routes, other_routes }) {
  const columns = [
    { title: "Route", value: (one) => link(one.name ? `${one.id} (${one.name})` : one.id, to("resource", "routes", one.id)) },
    { title: "Matches", value: (one) => (one.matched ? badge("yes", "good") : "no") },
    { title: "Reason", value: (one) => one.reason },
  ];
  const more = other_routes > 0 && note(`${format.count(other_routes)} more routes do not match.`);
  return section("Routes", table("Routes", columns, routes, { empty: "There is no route." }), more);
}
