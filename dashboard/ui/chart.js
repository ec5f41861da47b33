// Lines over time, as plain SVG. What a chart shows is told in words beside it.

import { h, svg } from "./dom.js";

const [WIDTH, HEIGHT] = [600, 140];

/**
 * `lines` are `{name, tone, values}`, each with a value for every moment, null where there is none; the newest is
 * the last.
 */
export function chart(title, lines, unit) {
  const all = lines.flatMap((line) => line.values).filter((value) => value !== null);
  const most = ceiling(Math.max(0, ...all));
  const drawing = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": inWords(title, lines, unit) },
    [0.25, 0.5, 0.75].map((part) => svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT * part, y2: HEIGHT * part })),
    lines.map((line) => svg("path", { class: `line ${line.tone}`, d: outline(line.values, most) })),
  );
  const legend = lines.map((line) => h("li", { class: line.tone }, line.name));
  return h(
    "figure",
    { class: "chart" },
    h("figcaption", {}, h("span", {}, title), h("span", { class: "scale" }, `top: ${unit(most)}`)),
    drawing,
    h("ul", { class: "legend" }, legend),
  );
}

/** The next of 1, 2, 5, 10, … that nothing exceeds. */
export function ceiling(most) {
  if (!(most > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((factor) => factor * power).find((limit) => limit >= most);
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
