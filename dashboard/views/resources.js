// The resources of a collection.

import { list } from "../api.js";
import * as format from "../lib/format.js";
import { belowOf, collectionOf, idOf, summary } from "../lib/resources.js";
import { to } from "../router.js";
import { getCaller, mayWrite } from "../store.js";
import { fill, h } from "../ui/dom.js";
import { button, heading, link, note, problem, section } from "../ui/page.js";
import { table } from "../ui/table.js";

const PAGE = 50;

export function show(root, place, signal) {
  const path = place.parts.join("/");
  const collection = collectionOf(path);
  if (!collection) return root.append(heading("Page not found"), note(`The Admin API has no collection ${path}.`));
  const title = collection.parent ? `${collection.title} of ${collection.parent}` : collection.title;
  if (collection.streams && !getCaller().streams) return root.append(heading(title), ...withoutStreams());
  const add = mayWrite() && link(`New ${collection.word}`, to("resource", path, ""), { class: "button primary", "data-key": "e" });
  const up = collection.parent && link(`Consumer ${collection.parent}`, to("resource", "consumers", collection.parent));
  const body = h("div", {});
  const wanted = { page: 1, page_size: PAGE, name: "" };
  const draw = async () => {
    try {
      const { items, total } = await list(path, { ...wanted, page: String(wanted.page) }, signal);
      fill(body, section(total === 1 ? "1 entry" : `${format.count(total)} entries`, rows(path, collection, items), pages(wanted, total, draw)));
    } catch (error) {
      if (!signal.aborted) fill(body, problem(error));
    }
  };
  root.append(heading(title, up, add), search(wanted, draw), body);
  return draw();
}

function withoutStreams() {
  return [
    note("This gateway has no listener for TCP or UDP, so it has no stream routes. Add one to its configuration file and reload:"),
    h("pre", { tabindex: "0" }, 'listeners:\n  - address: "0.0.0.0:6380"\n    stream: tcp'),
  ];
}

/** The resources below one: the credentials of a consumer. */
export async function below(path, id, signal) {
  const about = belowOf(path);
  if (!about) return null;
  const inner = `${path}/${id}/${about.segment}`;
  const { items } = await list(inner, { page: "1", page_size: PAGE }, signal);
  const add = mayWrite() && link(`New ${about.word}`, to("resource", inner, ""), { class: "button" });
  const all = items.length === PAGE && link(`All ${about.title.toLowerCase()}`, to("resources", ...inner.split("/")));
  return section(about.title, rows(inner, about, items), h("div", { class: "actions" }, add, all));
}

/** Names are looked for by a regular expression, as the API does. */
function search(wanted, draw) {
  const look = (event) => {
    event.preventDefault();
    Object.assign(wanted, { page: 1, name: input.value.trim() });
    draw();
  };
  const input = h("input", { type: "search", id: "search", "data-key": "/" });
  return h(
    "form",
    { class: "pair", role: "search", on: { submit: look } },
    h("label", { for: "search" }, "Name"),
    input,
    h("button", { type: "submit" }, "Search"),
  );
}

function rows(path, collection, items) {
  const below = belowOf(collection.segment);
  const columns = [
    { title: "Id", value: ({ key }) => link(idOf(path, key), to("resource", path, idOf(path, key))) },
    { title: "Name", value: ({ value }) => value.name ?? value.desc ?? "–" },
    { title: "Summary", value: ({ value }) => summary(collection.segment, value) || "–" },
    { title: "Status", value: ({ value }) => (value.status === 0 ? "disabled" : "enabled") },
    { title: "Changed", value: ({ value }) => format.time(value.update_time) },
  ].filter(({ title }) => title !== "Status" || ["routes", "ssls"].includes(collection.segment));
  if (below) {
    columns.push({ title: below.title, value: ({ key }) => link(below.title, to("resources", path, idOf(path, key), below.segment)) });
  }
  return table(collection.title, columns, items, { empty: `There is no ${collection.word}.` });
}

function pages(wanted, total, draw) {
  const last = Math.max(1, Math.ceil(total / PAGE));
  if (last === 1) return null;
  const turn = (by) => () => {
    wanted.page += by;
    draw();
  };
  return h(
    "nav",
    { class: "actions", "aria-label": "Pages" },
    button("Previous", turn(-1), { disabled: wanted.page === 1 }),
    h("span", {}, `Page ${wanted.page} of ${last}`),
    button("Next", turn(1), { disabled: wanted.page === last }),
  );
}
