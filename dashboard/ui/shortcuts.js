// Keyboard shortcuts. They are off in fields and while a dialog is open.

import { go, here, to } from "../router.js";
import { h } from "./dom.js";
import { ask } from "./dialog.js";

/** Keys that open a page, after a `g`. */
const PLACES = [
  ["l", "Live traffic", to("live")],
  ["o", "Overview", to("overview")],
  ["n", "Upstream health", to("nodes")],
  ["r", "Routes", to("resources", "routes")],
  ["u", "Upstreams", to("resources", "upstreams")],
  ["t", "Route tester", to("tester")],
  ["h", "History", to("history")],
  ["c", "Certificates", to("certificates")],
  ["p", "Plugins", to("plugins")],
  ["s", "This gateway", to("gateway")],
  ["m", "Gateways", to("members")],
  ["i", "Import and export", to("transfer")],
];

/** Keys of a view: the element with the attribute is pressed, or gets the focus. */
const HERE = [
  ["/", "Search", "[data-key='/']"],
  ["e", "New resource", "[data-key='e']"],
  ["s", "Review and save, or send the form", "[data-key='s']"],
];

let waits = false;

export function listen() {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.closest?.("input, textarea, select, [contenteditable]")) return;
    if (act(event.key)) event.preventDefault();
  });
}

function act(key) {
  if (waits) {
    waits = false;
    const place = PLACES.find(([one]) => one === key);
    if (place) go(place[2]);
    return Boolean(place);
  }
  if (key === "g") {
    waits = true;
    setTimeout(() => (waits = false), 1_500);
    return true;
  }
  if (key === "?") {
    show();
    return true;
  }
  const here = HERE.find(([one]) => one === key);
  const element = here && document.querySelector(here[2]);
  if (!element) return false;
  if (element.matches("input, textarea")) element.focus();
  else element.click();
  return true;
}

export function show() {
  const keys = (...names) => names.map((name) => h("kbd", {}, name));
  const row = (shown, what) => h("tr", {}, h("th", { scope: "row" }, shown), h("td", {}, what));
  const rows = [
    row(keys("?"), "Keyboard shortcuts"),
    ...PLACES.map(([key, what]) => row(keys("g", key), what)),
    ...HERE.map(([key, what]) => row(keys(key), what)),
    row(keys("Esc"), "Close a dialog"),
  ];
  return ask(here(), "Keyboard shortcuts", h("table", { class: "keys" }, h("tbody", {}, rows)), []);
}
