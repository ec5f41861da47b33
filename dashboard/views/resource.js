// One resource: a form and its JSON, what would change, and its end. A part of the address that is empty is a new one.

import { call, one, path as encoded, query, write } from "../api.js";
import { place as placeOf } from "../lib/errors.js";
import { collectionOf, draft, written } from "../lib/resources.js";
import { equal, isObject, shown as shownPath } from "../lib/pointer.js";
import { go, to } from "../router.js";
import { mayWrite, once } from "../store.js";
import { confirmChange } from "../ui/dialog.js";
import { announce, fill, h } from "../ui/dom.js";
import { Form } from "../ui/form.js";
import { button, heading, link, note, problem } from "../ui/page.js";
import { below } from "./resources.js";

export async function show(root, place, signal) {
  const path = place.parts[0];
  const id = place.parts.slice(1).join("/");
  const collection = collectionOf(path);
  if (!collection) return root.append(heading("Page not found"), note(`The Admin API has no collection ${path}.`));
  const isNew = id === "";
  const [schema, found] = await Promise.all([
    schemaOf(collection, id),
    isNew ? { value: draft(collection.segment) } : one(encoded(path, id), signal),
  ]);
  if (signal.aborted) return;
  const editor = new Editor({ signal, path, id, collection, schema, isNew, before: isNew ? undefined : written(found.value), etag: found.etag });
  editor.value = written(found.value);
  root.append(...editor.draw());
  const inner = !isNew && (await below(path, id, signal));
  if (inner) root.append(inner);
}

/** The schema of a collection; secrets and metadata have one for each manager and plugin. */
async function schemaOf(collection, id) {
  try {
    if (collection.plugin) return id ? await once(`schema/${encoded("plugins", id)}?schema_type=${collection.plugin}`) : {};
    return collection.schema ? await once(`schema/${collection.schema}`) : {};
  } catch (error) {
    if (error.status === 400 || error.status === 404) return {};
    throw error;
  }
}

class Editor {
  constructor(about) {
    Object.assign(this, about);
    this.readOnly = !mayWrite();
    this.errors = h("div", {});
    this.hasForm = isObject(this.schema.properties);
  }

  draw() {
    const { collection, id, isNew, readOnly } = this;
    this.form = this.hasForm && new Form(this.schema, this.value, { changed: (value) => this.changed(value), signal: this.signal, collection: collection.segment, readOnly, scope: scopeOf(collection) });
    this.text = h("textarea", {
      id: "json", class: "code", rows: 24, spellcheck: "false", readonly: readOnly, "aria-describedby": "json-error",
      on: { input: () => this.typed() },
    });
    this.textError = h("p", { id: "json-error", class: "field-error", hidden: true });
    const owner = collection.parent ? ` of ${collection.parent}` : "";
    const title = isNew ? `New ${collection.word}${owner}` : `${collection.word[0].toUpperCase()}${collection.word.slice(1)} ${id}${owner}`;
    const up = collection.parent && link(`Consumer ${collection.parent}`, to("resource", "consumers", collection.parent));
    return [
      heading(title, up, link(collection.title, to("resources", ...this.path.split("/")))),
      this.errors,
      isNew && this.idField(),
      this.tabs(),
      this.actions(),
    ].filter(Boolean);
  }

  idField() {
    // A consumer's name stands in its body.
    if (this.collection.id) return null;
    const hint = this.collection.idHint ?? (this.collection.post ? "Leave it empty to let the gateway make one." : "Required.");
    this.idInput = h("input", { id: "id", type: "text", autocomplete: "off", spellcheck: "false", "aria-describedby": "id-hint" });
    return h("div", { class: "field card" }, h("label", { for: "id" }, "Id"), this.idInput, h("p", { class: "hint", id: "id-hint" }, hint));
  }

  tabs() {
    const raw = h("div", { class: "field" }, h("label", { for: "json" }, "JSON"), this.text, this.textError);
    const panels = [this.form && ["Form", this.form.element], ["JSON", raw]].filter(Boolean);
    const bodies = panels.map(([name, body]) => h("div", { role: "tabpanel", id: `panel-${name}`, "aria-labelledby": `tab-${name}` }, body));
    const tabs = panels.map(([name], at) => h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`, on: { click: () => choose(at) } }, name));
    const choose = (chosen) => {
      tabs.forEach((tab, at) => {
        tab.setAttribute("aria-selected", String(at === chosen));
        tab.tabIndex = at === chosen ? 0 : -1;
      });
      bodies.forEach((body, at) => (body.hidden = at !== chosen));
      this.showsForm = panels[chosen][0] === "Form";
      if (this.showsForm) this.form.show(this.value);
      else this.text.value = JSON.stringify(this.value, null, 2);
      this.complain(null);
    };
    const turn = (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = (tabs.indexOf(event.target) + step + tabs.length) % tabs.length;
      choose(next);
      tabs[next].focus();
    };
    this.showForm = () => this.form && choose(0);
    choose(0);
    return h("section", { class: "card" }, h("div", { role: "tablist", "aria-label": "View of the resource", on: { keydown: turn } }, tabs), bodies);
  }

  actions() {
    if (this.readOnly) return note("Your key has the role viewer: it cannot change resources and sees *** instead of secrets.");
    return h(
      "div",
      { class: "actions sticky" },
      button("Review and save", () => this.save(), { kind: "primary", "data-key": "s", shortcut: "s" }),
      !this.isNew && button("Delete", () => this.remove(), { kind: "danger" }),
    );
  }

  changed(value) {
    this.value = value;
  }

  typed() {
    try {
      const value = JSON.parse(this.text.value);
      if (!isObject(value)) throw new SyntaxError("a resource must be a JSON object");
      this.value = value;
      this.complain(null);
    } catch (error) {
      this.complain(error.message);
    }
  }

  /** What is wrong with the text; null for nothing. */
  complain(reason) {
    this.textError.textContent = reason ?? "";
    this.textError.hidden = !reason;
    this.text.setAttribute("aria-invalid", String(Boolean(reason)));
    this.isUnreadable = Boolean(reason);
  }

  /** Where it is written, and how. A new one without an id is given one. */
  target() {
    const { path, id, isNew, collection } = this;
    if (!isNew) return ["PUT", encoded(path, id)];
    if (collection.id) return ["PUT", encoded(path)];
    const given = this.idInput.value.trim();
    if (given) return ["PUT", encoded(path, given)];
    return collection.post ? ["POST", encoded(path)] : undefined;
  }

  async save() {
    // A second press while the first one is checked would open a second dialog.
    if (this.isSaving) return;
    this.isSaving = true;
    try {
      await this.review();
    } finally {
      this.isSaving = false;
    }
  }

  async review() {
    fill(this.errors);
    this.form?.clear();
    const unreadable = this.form && this.showsForm && this.form.element.querySelector(".unreadable");
    if (this.isUnreadable || unreadable) {
      (unreadable ?? this.text).focus();
      return this.refuse("The marked text is not valid JSON.");
    }
    const target = this.target();
    if (!target) {
      this.idInput.focus();
      return this.refuse(`Enter an id for this ${this.collection.word}.`);
    }
    const [method, where] = target;
    const { signal, value: body, etag: ifMatch } = this;
    try {
      const { warnings } = await call(method, where + query({ dry_run: "true" }), { body, ifMatch, signal });
      if (!this.isNew && equal(this.before, body)) return announce("There is no change to save.");
      if (!(await confirmChange(signal, `Save this ${this.collection.word}?`, this.before, body, { warnings }))) return;
      await write(signal, method, where, { body, ifMatch });
      announce("Saved.");
      go(to("resources", ...this.path.split("/")));
    } catch (error) {
      if (!signal.aborted) this.point(error);
    }
  }

  /** Shows an error, at its field if its sentence names one. */
  point(error) {
    if (error.status === 412) return this.refuse("Another operator has changed this resource since. Load the page again before you save.");
    const { path, reason } = placeOf(error.message);
    if (path.length === 0 || !this.form) return this.refuse(error.message);
    if (!this.showsForm) this.showForm();
    const isShown = this.form.point(path, reason);
    this.refuse(isShown ? `${shownPath(path)}: ${reason}` : error.message);
  }

  refuse(reason) {
    fill(this.errors, problem(reason));
  }

  async remove() {
    const { signal } = this;
    const title = `Delete this ${this.collection.word}?`;
    const where = encoded(this.path, this.id);
    try {
      // What another resource uses is refused before there is a question.
      const { warnings } = await call("DELETE", where + query({ dry_run: "true" }), { ifMatch: this.etag, signal });
      if (!(await confirmChange(signal, title, this.before, undefined, { label: "Delete", kind: "danger", warnings }))) return;
      await write(signal, "DELETE", where, { ifMatch: this.etag });
      announce("Deleted.");
      go(to("resources", ...this.path.split("/")));
    } catch (error) {
      if (!signal.aborted) this.refuse(error.message);
    }
  }
}

/** How the plugins of a collection are checked. */
function scopeOf(collection) {
  if (collection.segment === "stream_routes") return "stream";
  return ["consumers", "credentials"].includes(collection.segment) ? "consumer" : "http";
}
