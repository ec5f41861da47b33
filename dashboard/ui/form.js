// A form made from a schema. It shows a value and tells each change as another value; nothing is kept here but which
// parts are open.

import { getAt, setAt } from "../lib/pointer.js";
import { helpOf, titleOf } from "../lib/labels.js";
import { choicesOf } from "../lib/resources.js";
import { blank, fieldOf, membersOf } from "../lib/schema.js";
import { once } from "../store.js";
import { listAll, path as encoded } from "../api.js";
import { fill, h, unique } from "./dom.js";
import { button } from "./page.js";

/** A path as an attribute, by which errors find their field. */
export function mark(path) {
  return JSON.stringify(path);
}

export class Form {
  /**
   * `changed` is called with each new value. `scope` is how plugins are checked here: http, stream or consumer.
   * `collection` is that of the resource. `signal` ends when the view is left.
   */
  constructor(schema, value, { changed, signal, collection, readOnly = false, scope = "http" }) {
    this.schema = schema;
    this.value = value;
    this.changed = changed;
    this.readOnly = readOnly;
    this.scope = scope;
    this.collection = collection;
    this.signal = signal;
    /** The entries of the collections that fields refer to. */
    this.collections = new Map();
    this.element = h("div", { class: "form" });
    this.draw();
  }

  /** Shows another value. */
  show(value) {
    this.value = value;
    this.draw();
  }

  draw() {
    fill(this.element, this.members(this.schema, []));
  }

  at(path) {
    return getAt(this.value, path);
  }

  set(path, next) {
    this.value = setAt(this.value, path, next) ?? {};
    this.changed(this.value);
  }

  /** The members of an object: those that are required or set, then the others behind a fold. */
  members(schema, path) {
    const all = membersOf(schema, this.at(path));
    const draw = (member) => this.member(member, path);
    const near = all.filter((member) => member.required || member.isSet || (path.length === 0 && FIRST.has(member.name)));
    const far = all.filter((member) => !near.includes(member));
    return [near.map(draw), far.length > 0 && fold(`${far.length} more ${far.length === 1 ? "field" : "fields"}`, () => far.map(draw))];
  }

  member({ name, schema, required }, path) {
    const inner = [...path, name];
    return this.field(fieldOf(schema, this.at(inner), name), schema, inner, { title: titleOf(name), name, required });
  }

  field(field, schema, path, label) {
    const groups = { object: this.group, plugins: this.plugins, list: this.list, map: this.map };
    const isGroup = field.kind in groups && !(field.kind === "list" && field.item.kind !== "object");
    if (isGroup) {
      const body = h("div", { class: "group-body" });
      const legend = h("legend", {}, label.title, raw(label));
      const help = helpOf(this.collection, path) ?? plain(schema?.description);
      const errors = errorLine();
      groups[field.kind].call(this, body, field, schema, path);
      return h("fieldset", { "data-path": mark(path), tabindex: "-1" }, legend, help && h("p", { class: "hint" }, help), errors, body);
    }
    const id = unique("field");
    const control = this.control(field, path, id);
    const hint = [helpOf(this.collection, path) ?? plain(schema?.description), hintOf(field)].filter(Boolean).join(" ");
    if (hint) control.setAttribute("aria-describedby", `${id}-hint`);
    return h(
      "div",
      { class: "field", "data-path": mark(path) },
      h("div", { class: "label" }, h("label", { for: id }, label.title), raw(label)),
      control,
      hint && h("p", { class: "hint", id: `${id}-hint` }, hint),
      errorLine(`${id}-error`),
    );
  }

  control(field, path, id) {
    const value = this.at(path);
    const common = { id, disabled: this.readOnly };
    const tell = (read) => (event) => this.set(path, read(event.target));
    switch (field.kind) {
      case "choice":
      case "truth": {
        const choices = field.kind === "truth" ? [true, false] : field.choices;
        const unset = field.default === undefined ? "not set" : `default: ${field.default}`;
        const options = choices.map((choice) => h("option", { value: JSON.stringify(choice), selected: choice === value }, String(choice)));
        const read = (select) => (select.value === "" ? undefined : JSON.parse(select.value));
        return h("select", { ...common, on: { change: tell(read) } }, h("option", { value: "" }, unset), options);
      }
      case "reference":
        return this.reference(field.collection, value, common, path);
      case "number": {
        const read = (input) => (input.value === "" ? undefined : Number(input.value));
        const limits = { min: field.min, max: field.max, step: field.whole ? 1 : "any" };
        return h("input", { ...common, ...limits, type: "number", value, placeholder: field.default, on: { input: tell(read) } });
      }
      case "list":
        return lines(common, value, field, (items) => this.set(path, items));
      case "json":
        return json(common, value, (next) => this.set(path, next));
      default: {
        const on = { input: tell((input) => input.value || undefined) };
        // Texts that stand where something else may are shown as they are.
        const shown = typeof value === "string" || value === undefined ? value : JSON.stringify(value);
        if (field.long) return h("textarea", { ...common, rows: 4, spellcheck: "false", on }, shown ?? "");
        return h("input", { ...common, type: "text", value: shown, placeholder: field.default, spellcheck: "false", autocomplete: "off", on });
      }
    }
  }

  /** A list of the resources that a field may refer to. */
  reference(collection, value, common, path) {
    const select = h("select", common);
    const draw = (choices) => {
      const option = ({ id, text }) => h("option", { value: id, selected: id === String(this.at(path)) }, text);
      fill(select, h("option", { value: "" }, "none"), choices.map(option));
    };
    select.addEventListener("change", () => this.set(path, select.value || undefined));
    // Until the list is there, and without it, the field shows the value that it has.
    draw(value === undefined ? [] : [{ id: String(value), text: String(value) }]);
    if (!this.collections.has(collection)) this.collections.set(collection, listAll(collection, this.signal));
    this.collections.get(collection).then(
      (items) => draw(choicesOf(collection, items, this.at(path))),
      () => {},
    );
    return select;
  }

  group(body, field, schema, path) {
    const open = () => fill(body, this.members(schema.properties ? schema : objectIn(schema), path));
    if (this.at(path) !== undefined) open();
    else body.append(fold("Show the settings", open));
  }

  /** Objects in a row. */
  list(body, field, schema, path) {
    const title = titleOf(path.at(-1));
    const draw = () => {
      const items = this.at(path) ?? [];
      const item = (_, at) =>
        h(
          "fieldset",
          { "data-path": mark([...path, at]), tabindex: "-1" },
          h("legend", {}, `${title} ${at + 1}`),
          errorLine(),
          this.members(field.schema, [...path, at]),
          !this.readOnly && button("Remove", () => (this.set([...path, at], undefined), draw()), { "aria-label": `Remove ${title} ${at + 1}` }),
        );
      const add = () => (this.set(path, [...items, blank(field.item)]), draw());
      fill(body, items.map(item), !this.readOnly && button("Add an entry", add, { "aria-label": `Add an entry to ${title}` }));
    };
    draw();
  }

  /** Names with a value each. */
  map(body, field, schema, path) {
    const title = titleOf(path.at(-1));
    const names = path.at(-1) === "nodes" ? ["Address", "weight"] : ["Name", "value"];
    const draw = () => {
      const entries = Object.entries(this.at(path) ?? {});
      const rename = (from) => (event) => {
        const next = entries.map(([name, value]) => [name === from ? event.target.value : name, value]);
        this.set(path, Object.fromEntries(next));
        draw();
      };
      const read = (input) => (field.item.kind === "number" ? Number(input.value) : input.value);
      const change = (name) => (event) => this.set([...path, name], read(event.target));
      const type = field.item.kind === "number" ? "number" : "text";
      const row = ([name, value]) =>
        h(
          "div",
          { class: "pair", "data-path": mark([...path, name]) },
          h("input", { type: "text", value: name, "aria-label": `${title}: ${names[0].toLowerCase()}`, placeholder: names[0].toLowerCase(), disabled: this.readOnly, on: { change: rename(name) } }),
          h("input", { type, value, "aria-label": `${title}: ${names[1]} of ${name}`, placeholder: names[1], disabled: this.readOnly, on: { input: change(name) } }),
          !this.readOnly && button("Remove", () => (this.set([...path, name], undefined), draw()), { "aria-label": `Remove ${name}` }),
          errorLine(),
        );
      const add = () => {
        this.set(path, { ...this.at(path), "": blank(field.item) });
        draw();
        body.querySelector(".pair:last-of-type input")?.focus();
      };
      fill(body, entries.map(row), !this.readOnly && button("Add an entry", add, { "aria-label": `Add an entry to ${title}` }));
    };
    draw();
  }

  /** Plugins by name, each with a form of its own schema. */
  plugins(body, field, schema, path) {
    const choices = h("datalist", { id: unique("plugins") });
    once(`plugins/list${this.scope === "stream" ? "?subsystem=stream" : ""}`).then(
      (names) => fill(choices, [...names].sort().map((name) => h("option", { value: name }))),
      // A name can be written without the list.
      () => {},
    );
    const draw = () => {
      const names = Object.keys(this.at(path) ?? {});
      const input = h("input", { type: "text", list: choices.id, "aria-label": "Name of a plugin to add", placeholder: "name of a plugin", autocomplete: "off" });
      const add = () => {
        const name = input.value.trim();
        if (!name || names.includes(name)) return input.focus();
        this.set([...path, name], {});
        draw();
      };
      const adding = h("div", { class: "pair" }, input, button("Add plugin", add), choices);
      fill(body, names.map((name) => this.plugin(name, [...path, name], draw)), !this.readOnly && adding);
    };
    draw();
  }

  plugin(name, path, draw) {
    const place = h("div", { class: "group-body" });
    const parameters = { stream: "?subsystem=stream", consumer: "?schema_type=consumer" }[this.scope] ?? "";
    const where = `schema/${encoded("plugins", name)}`;
    const ask = parameters ? once(where + parameters).catch(() => once(where)) : once(where);
    ask.then(
      (schema) => fill(place, schema.properties ? this.members(schema, path) : this.raw(path)),
      () => fill(place, this.raw(path)),
    );
    return h(
      "fieldset",
      { "data-path": mark(path), tabindex: "-1" },
      h("legend", {}, name),
      errorLine(),
      place,
      !this.readOnly && button("Remove", () => (this.set(path, undefined), draw()), { "aria-label": `Remove plugin ${name}` }),
    );
  }

  raw(path) {
    return this.field({ kind: "json" }, {}, path, { title: "Configuration" });
  }

  /** Shows an error at its field, or at the nearest part around it that is there; false if there is none. */
  point(path, reason) {
    this.clear();
    this.unfold(path);
    for (let length = path.length; length > 0; length -= 1) {
      const place = this.find(path.slice(0, length));
      const error = place?.querySelector(":scope > .field-error");
      if (!error) continue;
      error.textContent = reason;
      error.hidden = false;
      place.classList.add("invalid");
      const control = place.querySelector(":scope > input, :scope > textarea, :scope > select") ?? place;
      control.setAttribute("aria-invalid", "true");
      if (error.id) control.setAttribute("aria-errormessage", error.id);
      control.focus();
      return true;
    }
    return false;
  }

  clear() {
    for (const place of this.element.querySelectorAll(".invalid")) place.classList.remove("invalid");
    for (const control of this.element.querySelectorAll("[aria-invalid]")) {
      control.removeAttribute("aria-invalid");
      control.removeAttribute("aria-errormessage");
    }
    for (const error of this.element.querySelectorAll(".field-error")) error.hidden = true;
  }

  find(path) {
    return this.element.querySelector(`[data-path=${CSS.escape(mark(path))}]`);
  }

  /** Opens what hides a field, from the outside in, and no more than that. */
  unfold(path) {
    let around = this.element;
    for (let length = 1; length <= path.length; length += 1) {
      const wanted = path.slice(0, length);
      if (!this.find(wanted)) {
        const own = (details) => (details.closest("[data-path]") ?? this.element) === around;
        [...around.querySelectorAll("details:not([open])")].filter(own).forEach(reveal);
      }
      const place = this.find(wanted);
      if (!place) return;
      for (let at = place.closest("details"); at; at = at.parentElement.closest("details")) reveal(at);
      around = place;
    }
  }
}

/** Fields of a resource that are shown though they are not set. */
const FIRST = new Set(["name", "desc", "uri", "methods", "host", "nodes", "type", "plugins", "upstream_id", "service_id", "plugin_config_id", "group_id", "username", "snis"]);

/** What folds hold, until it is looked at. */
const folded = new WeakMap();

/** What is made when it is opened. */
function fold(title, make) {
  const details = h("details", {}, h("summary", {}, title), h("div", { class: "fold" }));
  folded.set(details, make);
  details.addEventListener("toggle", () => details.open && unfolded(details));
  return details;
}

/** Opens a fold; what it holds is there at once, not with the event. */
function reveal(details) {
  details.open = true;
  unfolded(details);
}

function unfolded(details) {
  const make = folded.get(details);
  if (make && folded.delete(details)) fill(details.querySelector(":scope > .fold"), make());
}

/** The line for the error of a field. Screen readers read it when it appears. */
function errorLine(id) {
  return h("p", { class: "field-error", id, role: "alert", hidden: true });
}

/** The name that the API has for a field, beside its title. */
function raw({ name, required }) {
  return [name && [" ", h("code", { class: "raw" }, name)], required && h("span", { class: "raw" }, " required")];
}

/** A description without marks for code. */
function plain(description) {
  return description?.replaceAll("`", "");
}

function objectIn(schema) {
  return (schema.anyOf ?? schema.oneOf ?? []).find((one) => one.properties) ?? {};
}

function hintOf(field) {
  const limits =
    field.min !== undefined && field.max !== undefined && field.max < 4_294_967_295 ? `From ${field.min} to ${field.max}.`
    : field.min !== undefined ? `At least ${field.min}.`
    : "";
  const kinds = { list: "One per line.", json: "Written as JSON." };
  const choices = field.kind === "list" && field.item.kind === "choice" ? `Possible: ${field.item.choices.join(", ")}.` : "";
  return [kinds[field.kind], choices, field.kind === "number" && limits].filter(Boolean).join(" ");
}

function lines(common, value, field, tell) {
  const read = (line) => (field.item.kind === "number" ? Number(line) : field.item.kind === "choice" ? choiceOf(field.item, line) : line);
  const input = (event) => {
    const items = event.target.value.split("\n").map((line) => line.trim()).filter(Boolean).map(read);
    tell(items.length ? items : undefined);
  };
  const shown = Array.isArray(value) ? value.map(String) : [];
  return h("textarea", { ...common, rows: Math.max(2, shown.length + 1), spellcheck: "false", on: { input } }, shown.join("\n"));
}

/** Choices may be numbers; an unknown text stays as it is, for the gateway to refuse. */
function choiceOf(item, line) {
  return item.choices.find((choice) => String(choice) === line) ?? line;
}

function json(common, value, tell) {
  const input = (event) => {
    const text = event.target.value.trim();
    try {
      tell(text === "" ? undefined : JSON.parse(text));
      event.target.setCustomValidity("");
    } catch (error) {
      event.target.setCustomValidity(error.message);
    }
    event.target.classList.toggle("unreadable", !event.target.validity.valid);
  };
  const shown = value === undefined ? "" : JSON.stringify(value, null, 2);
  return h("textarea", { ...common, class: "code", rows: Math.min(16, shown.split("\n").length + 1), spellcheck: "false", on: { input } }, shown);
}
