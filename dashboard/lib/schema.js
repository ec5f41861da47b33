// What a form asks for, from the JSON Schema that writes are checked against.

import { isObject } from "./pointer.js";

/** Texts that may be longer than this have a field of several lines. */
const LINE = 4_096;
/** What only the server sets, or what the address says. */
const HIDDEN = new Set(["create_time", "update_time", "id"]);

/** The collections of fields that hold the id of another resource. */
const REFERENCES = {
  upstream_id: "upstreams",
  service_id: "services",
  plugin_config_id: "plugin_configs",
  group_id: "consumer_groups",
  proto_id: "protos",
  client_cert_id: "ssls",
  superior_id: "stream_routes",
};

/**
 * The field of a schema: `{kind, ...}`, where the kind is one of
 * `text`, `number`, `truth`, `choice`; `reference` to an entry of a `collection`; `list`, `map` of an `item`; `object` of `fields`; `plugins`; `json`,
 * which is anything that no form fits. `value` decides between alternatives.
 */
export function fieldOf(schema, value, name = "") {
  const alternatives = schema?.anyOf ?? schema?.oneOf;
  // An id is a text or a number; a field of the same name with another schema is not a reference.
  if (alternatives && Object.hasOwn(REFERENCES, name)) return { kind: "reference", collection: REFERENCES[name] };
  if (alternatives && schema.type === undefined) {
    const usable = alternatives.filter((one) => isObject(one) && (one.type || one.enum));
    return fieldOf(usable.find((one) => fits(one, value)) ?? usable[0] ?? {}, value, name);
  }
  const about = { default: schema?.default };
  if (!isObject(schema)) return { kind: "json", ...about };
  if (Array.isArray(schema.enum)) return { kind: "choice", choices: schema.enum, ...about };
  const type = Array.isArray(schema.type) ? schema.type.find((one) => matches(one, value)) ?? schema.type[0] : schema.type;
  switch (type) {
    case "boolean":
      return { kind: "truth", ...about };
    case "integer":
    case "number":
      return { kind: "number", whole: type === "integer", min: safe(schema.minimum), max: safe(schema.maximum), ...about };
    case "string":
      return { kind: "text", long: (schema.maxLength ?? 0) > LINE || name === "content", ...about };
    case "array":
      return listOf(schema, value, about);
    case "object":
      return objectOf(schema, value, name, about);
    default:
      return { kind: "json", ...about };
  }
}

/** Limits beyond what a number of JavaScript holds are none. */
function safe(limit) {
  return Number.isSafeInteger(limit) ? limit : undefined;
}

function listOf(schema, value, about) {
  if (!isObject(schema.items)) return { kind: "json", ...about };
  const item = fieldOf(schema.items, Array.isArray(value) ? value[0] : undefined);
  const isPlain = ["text", "number", "choice", "object"].includes(item.kind);
  return isPlain ? { kind: "list", item, schema: schema.items, ...about } : { kind: "json", ...about };
}

function objectOf(schema, value, name, about) {
  if (name === "plugins") return { kind: "plugins", ...about };
  if (isObject(schema.properties) && Object.keys(schema.properties).length) {
    return { kind: "object", fields: membersOf(schema, value), ...about };
  }
  const inner = Object.values(schema.patternProperties ?? {})[0] ?? schema.additionalProperties;
  const item = isObject(inner) ? fieldOf(inner) : undefined;
  return item && ["text", "number"].includes(item.kind) ? { kind: "map", item, ...about } : { kind: "json", ...about };
}

/** `[{name, schema, required, isSet}]`: what is required first, then what is set, then the others. */
export function membersOf(schema, value) {
  const required = new Set(schema.required ?? []);
  const members = Object.entries(schema.properties ?? {})
    .filter(([name, inner]) => !HIDDEN.has(name) && isObject(inner))
    .map(([name, inner]) => ({ name, schema: inner, required: required.has(name), isSet: value?.[name] !== undefined }));
  const rank = (member) => (member.required ? 0 : member.isSet ? 1 : 2);
  return members.sort((a, b) => rank(a) - rank(b));
}

function fits(schema, value) {
  if (value === undefined) return false;
  if (Array.isArray(schema.enum)) return schema.enum.includes(value);
  return [schema.type].flat().some((type) => matches(type, value));
}

function matches(type, value) {
  switch (type) {
    case "array":
      return Array.isArray(value);
    case "object":
      return isObject(value);
    case "integer":
      return Number.isInteger(value);
    default:
      return typeof value === type;
  }
}

/** A new item of a list: what its schema requires. */
export function blank(field) {
  switch (field.kind) {
    case "number":
      return field.default ?? field.min ?? 0;
    case "choice":
      return field.default ?? field.choices[0];
    case "truth":
      return field.default ?? false;
    case "object":
      return Object.fromEntries(
        field.fields.filter((one) => one.required).map((one) => [one.name, blank(fieldOf(one.schema, undefined, one.name))]),
      );
    case "list":
      return [];
    case "map":
    case "plugins":
      return {};
    default:
      return field.default ?? "";
  }
}
