// The plugins of this gateway: documentation and schemas.

import { call, get, path } from "../api.js";
import { blocks, spans } from "../lib/markdown.js";
import { found, ordered } from "../lib/plugins.js";
import { to } from "../router.js";
import { once } from "../store.js";
import { fill, h } from "../ui/dom.js";
import { badge, heading, link, section } from "../ui/page.js";
import { table } from "../ui/table.js";

export function show(root, place, signal) {
  return place.parts.length > 0 ? one(root, place.parts[0], signal) : all(root);
}

async function all(root) {
  const plugins = ordered(await once("plugins/summaries"));
  const place = h("div", {});
  const count = h("p", { class: "note", role: "status" });
  const draw = (search) => {
    const rows = found(plugins, search);
    fill(count, `${rows.length} of ${plugins.length} plugins`);
    fill(place, table("Plugins", COLUMNS, rows, { empty: "No plugin matches." }));
  };
  const search = h("input", { type: "search", id: "search", "data-key": "/", on: { input: (event) => draw(event.target.value) } });
  root.append(
    heading("Plugins"),
    h("div", { class: "field form" }, h("label", { for: "search" }, "Search names, descriptions, groups and phases"), search),
    count,
    section("In the order in which they run", place),
  );
  draw("");
}

const COLUMNS = [
  { title: "Plugin", value: ({ name }) => link(name, to("plugins", name)) },
  { title: "Description", value: ({ description }) => h("span", {}, texts(spans(description))) },
  { title: "Group", value: ({ group }) => (group ? badge(group) : "–") },
  { title: "Phases", value: ({ phases }) => phases.join(", ") || "–" },
  { title: "Places", value: ({ scopes }) => scopes.map((scope) => scope.replaceAll("_", " ")).join(", ") },
  { title: "Priority", numeric: true, value: ({ priority }) => String(priority) },
];

async function one(root, name, signal) {
  root.append(heading(name, link("All plugins", to("plugins"))));
  const [documentation, schema] = await Promise.all([
    call("GET", `${path("plugins", name)}/documentation`, { signal }),
    get(path("schema", "plugins", name), signal),
  ]);
  root.append(
    h("section", { class: "card prose" }, blocks(documentation.body).map(block)),
    h("section", { class: "card" }, h("details", {}, h("summary", {}, "Schema"), h("pre", { tabindex: "0" }, JSON.stringify(schema, null, 2)))),
  );
}

function block(part) {
  switch (part.kind) {
    case "heading":
      // The name is the heading of the page already.
      return part.level > 1 && h(`h${Math.min(6, part.level)}`, {}, texts(part.text));
    case "code":
      return h("pre", { tabindex: "0" }, part.text);
    case "list":
      return h("ul", {}, part.items.map((item) => h("li", {}, texts(item))));
    case "table":
      return table("Fields", part.head.map((head, at) => ({ title: plain(head), value: (row) => h("span", {}, texts(row[at] ?? [])) })), part.rows);
    default:
      return h("p", {}, texts(part.text));
  }
}

function texts(spans) {
  return spans.map(({ code, text }) => (code ? h("code", {}, text) : text));
}

function plain(spans) {
  return spans.map((span) => span.text).join("");
}
