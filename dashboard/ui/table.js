// Tables. Where the page is narrow each row becomes a card, with the names of the columns before the values.

import { allowBreaks, h } from "./dom.js";

/** A word that may be broken anywhere, because it would make a table wider than the page. */
const LONG_WORD = /[^\s/.:_-]{30}/;

/** `columns` are `{title, value(row), numeric}`; a value is a text or an element. */
export function table(caption, columns, rows, { empty = "There are no entries." } = {}) {
  if (rows.length === 0) return h("p", { class: "note" }, empty);
  const head = columns.map(({ title, numeric }) => h("th", { scope: "col", class: numeric && "numeric" }, title));
  const cell = (row) => (column, at) => {
    const content = allowBreaks(h("span", {}, column.value(row) ?? "–"));
    const kinds = [column.numeric && "numeric", LONG_WORD.test(content.textContent) && "long"].filter(Boolean);
    const attributes = { class: kinds.join(" ") || null, "data-label": column.title };
    return h(at === 0 ? "th" : "td", at === 0 ? { ...attributes, scope: "row" } : attributes, content);
  };
  return h(
    "table",
    {},
    h("caption", { class: "visually-hidden" }, caption),
    h("thead", {}, h("tr", {}, head)),
    h("tbody", {}, rows.map((row) => h("tr", {}, columns.map(cell(row))))),
  );
}
