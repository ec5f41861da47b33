// Parts of views.

import { ApiError } from "../api.js";
import { allowBreaks, fill, h } from "./dom.js";

/** The heading of a view, with its links and buttons. */
export function heading(title, ...actions) {
  document.title = `${title} · Sigma`;
  return h("div", { class: "heading" }, h("h1", {}, title), h("div", { class: "actions" }, actions));
}

export function section(title, ...children) {
  return h("section", { class: "card" }, h("h2", {}, title), children);
}

export function button(text, press, { kind = "", shortcut, ...attributes } = {}) {
  const title = shortcut ? `${text} (${shortcut})` : null;
  return h("button", { type: "button", class: kind, title, on: { click: press }, ...attributes }, text);
}

export function link(text, href, attributes = {}) {
  return h("a", { href, ...attributes }, text);
}

/** A word with a colour; the word is enough without it. */
export function badge(text, tone = "") {
  return h("span", { class: `badge ${tone}` }, text);
}

/** An error message. */
export function problem(error) {
  const text = error instanceof ApiError || error instanceof Error ? error.message : String(error);
  return h("p", { class: "problem", role: "alert" }, text);
}

export function note(...text) {
  return h("p", { class: "note" }, text);
}

/** The text where the gateway has no such call. */
export function absent(what) {
  return note(`This gateway has no ${what}.`);
}

/** Figures in a row: `[label, value, tone]`. */
export function figures(rows) {
  const one = ([label, value, tone = ""]) =>
    h("div", { class: `figure ${tone}` }, h("dt", {}, label), allowBreaks(h("dd", {}, value)));
  return h("dl", { class: "figures" }, rows.map(one));
}

/** Calls `ask` every few seconds until the view is left, and shows its result or its error. */
export function poll(signal, seconds, ask, place, show) {
  const turn = async () => {
    if (signal.aborted) return;
    try {
      if (!document.hidden) show(await ask());
    } catch (error) {
      if (signal.aborted || error.name === "AbortError") return;
      fill(place, problem(error));
      if (error.status === 401) return;
    }
    const timer = setTimeout(turn, seconds * 1_000);
    signal.addEventListener("abort", () => clearTimeout(timer), { once: true });
  };
  return turn();
}
