// Routes, services, upstreams and nodes as a drawing, with their traffic and health.

import { get, listAll } from "../api.js";
import * as format from "../lib/format.js";
import { overview } from "../lib/overview.js";
import { to } from "../router.js";
import { fill, h, svg, unique } from "../ui/dom.js";
import { heading, note, poll } from "../ui/page.js";

/** Sizes of the drawing. */
const [BOX, GAP, ROW, HEAD] = [220, 70, 52, 28];
/** Characters of a text that fit into a box. */
const TEXT_MAX = 28;
/** Collections change rarely: they are read once in so many turns of live figures. */
const TURNS = 10;

export function show(root, _place, signal) {
  const body = h("div", {});
  const id = unique("search");
  let seen;
  const draw = () => seen && fill(body, drawing(overview(seen, search.value)));
  const search = h("input", { id, type: "search", placeholder: "path, host, name, node", on: { input: draw } });
  root.append(heading("Overview"), h("p", { class: "search" }, h("label", { for: id }, "Search "), search), body);
  let turn = 0;
  let collections;
  const ask = async () => {
    if (turn % TURNS === 0) {
      const [routes, services, upstreams] = await Promise.all(["routes", "services", "upstreams"].map((one) => listAll(one, signal)));
      collections = { routes, services, upstreams };
    }
    turn += 1;
    const [health, live] = await Promise.all([get("nodes", signal), get("live", signal)]);
    return { ...collections, health, traffic: live.window };
  };
  return poll(signal, 3, ask, body, (next) => {
    seen = next;
    draw();
  });
}

function drawing({ columns, lines }) {
  const rows = Math.max(...columns.map(({ items }) => items.length));
  if (rows === 0) return note("Nothing matches.");
  const places = new Map();
  columns.forEach(({ items }, column) => items.forEach(({ key }, row) => places.set(key, { x: column * (BOX + GAP), y: HEAD + row * ROW })));
  const [width, height] = [columns.length * (BOX + GAP) - GAP, HEAD + rows * ROW];
  const paths = lines.map(([from, to_]) => {
    const [a, b] = [places.get(from), places.get(to_)];
    const [x1, y1, x2, y2] = [a.x + BOX, a.y + 20, b.x, b.y + 20];
    return svg("path", { class: "edge", d: `M${x1} ${y1}C${x1 + GAP / 2} ${y1} ${x2 - GAP / 2} ${y2} ${x2} ${y2}` });
  });
  const heads = columns.map(({ title, items, left }, column) => {
    const count = left > 0 ? `${title} (${items.length} of ${format.count(items.length + left)})` : title;
    return svg("text", { class: "column-title", x: column * (BOX + GAP), y: 14 }, count);
  });
  const boxes = columns.flatMap(({ items }) => items.map((item) => box(item, places.get(item.key))));
  const left = columns.some((column) => column.left > 0) && note("A search shows the items that are left out.");
  return [
    h("div", { class: "overview", tabindex: "0", role: "region", "aria-label": "Drawing of routes, services, upstreams and nodes" },
      svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height }, paths, heads, boxes)),
    left,
  ];
}

function box({ title, detail, href, rate, tone }, { x, y }) {
  const figures = rate === undefined ? detail : `${format.rate(rate)} · ${detail}`;
  return svg(
    "a",
    { href: to(...href), class: `box ${tone ?? ""}` },
    svg("title", {}, `${title}: ${figures}`),
    svg("rect", { x, y, width: BOX, height: 40, rx: 6 }),
    svg("text", { x: x + 10, y: y + 16 }, short(title)),
    svg("text", { class: "detail", x: x + 10, y: y + 32 }, short(figures)),
  );
}

function short(text) {
  return text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX - 1)}…` : text;
}
