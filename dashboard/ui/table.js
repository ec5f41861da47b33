// Tables. Where the page is narrow each row becomes a card, with the names of the columns before the values.

import { h } from "./dom.js";

/** `columns` are `{title, value(row), numeric}`; a value is a text or an element. */
export function table(caption, columns, rows, { empty = "Nothing here." } = {}) {
  if (rows.length === 0) return h("p", { class: "note" }, empty);
  const head = columns.map(({ title, numeric }) => h("th", { scope: "col", class: numeric && "numeric" }, title));
  const cell = (row) => (column, at) => {
    const attributes = { class: column.numeric && "numeric", "data-label": column.title };
    return h(at === 0 ? "th" : "td", at === 0 ? { ...attributes, scope: "row" } : attributes, h("span", {}, column.value(row) ?? "–"));
  };
  return h(
    "table",
    {},
    h("caption", { class: "visually-hidden" }, caption),
    h("thead", {}, h("tr", {}, head)),
    h("tbody", {}, rows.map((row) => h("tr", {}, columns.map(cell(row))))),
  );
}
