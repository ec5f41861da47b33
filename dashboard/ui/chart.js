// Lines over time, as plain SVG with axes. The label of the drawing says the newest values in words.

import { points } from "../lib/traffic.js";
import { h, svg } from "./dom.js";

const [WIDTH, HEIGHT] = [600, 140];

/**
 * `lines` are `{name, tone, values}`, each with a value for every moment, null where there is none; the newest is
 * the last. `unit` writes a value of the y axis with its unit, `times` are the labels of the x axis from left to right.
 */
export function chart(title, lines, unit, times) {
  const all = lines.flatMap((line) => line.values).filter((value) => value !== null);
  const highest = Math.max(0, ...all);
  const steps = ticks(highest);
  const most = steps[0];
  const y = (value) => HEIGHT - (value / most) * HEIGHT;
  const drawing = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": inWords(title, lines, unit) },
    steps.map((value) => svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: y(value), y2: y(value) })),
    lines.map((line) => svg("path", { class: `line ${line.tone}`, d: outline(line.values, most) })),
  );
  const legend = lines.map((line) => h("li", { class: line.tone }, line.name));
  return h(
    "figure",
    { class: "chart" },
    h("figcaption", {}, h("span", {}, title), h("span", { class: "scale" }, `max: ${all.length > 0 ? unit(highest) : "–"}`)),
    h(
      "div",
      { class: "plot" },
      h("div", { class: "y-axis", "aria-hidden": "true" }, steps.map((value) => h("span", {}, unit(value)))),
      drawing,
      h("div", { class: "x-axis", "aria-hidden": "true" }, times.map((time) => h("span", {}, time))),
    ),
    h("ul", { class: "legend" }, legend),
  );
}

/** A small line without axes; `label` says in words what it shows. */
export function sparkline(values, label) {
  const [width, height] = [90, 22];
  return svg(
    "svg",
    { class: "sparkline", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label },
    svg("polyline", { class: "line one", points: points(values, width, height) }),
  );
}

/** The values of the y axis from the top to 0: the top is the next of 1, 2, 5, 10, … that nothing exceeds. */
export function ticks(highest) {
  const power = highest > 0 ? 10 ** Math.floor(Math.log10(highest)) : 1;
  const factor = highest > 0 ? [1, 2, 5, 10].find((one) => one * power >= highest) : 1;
  const parts = factor === 5 ? 5 : 4;
  return Array.from({ length: parts + 1 }, (_, at) => (factor * power * (parts - at)) / parts);
}

function outline(values, most) {
  const step = WIDTH / Math.max(1, values.length - 1);
  let isDrawing = false;
  const points = values.map((value, at) => {
    if (value === null) {
      isDrawing = false;
      return "";
    }
    const point = `${isDrawing ? "L" : "M"}${(at * step).toFixed(1)} ${(HEIGHT - (value / most) * (HEIGHT - 4) - 2).toFixed(1)}`;
    isDrawing = true;
    return point;
  });
  return points.join("");
}

function inWords(title, lines, unit) {
  const last = (line) => line.values.findLast((value) => value !== null);
  const said = lines.map((line) => `${line.name} ${last(line) === undefined ? "unknown" : unit(last(line))}`);
  return `${title}, now: ${said.join(", ")}`;
}
