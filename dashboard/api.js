// Calls of the Admin API. The key is sent in `X-API-KEY` and nowhere else, and is kept until the tab is closed.

import { warningsOf } from "./lib/warnings.js";

const ROOT = "../apisix/admin/";
const KEY = "sigma.key";

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.name = "ApiError";
    this.status = status;
  }
}

export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

/** The message of a refusal, which has several forms. */
function reasonOf(status, body) {
  if (typeof body === "string" && body.trim()) return body.trim();
  const errors = Array.isArray(body?.errors) ? body.errors.map((one) => one.error ?? JSON.stringify(one)) : [];
  const said = [body?.error_msg ?? body?.message, body?.description, ...errors].filter(Boolean);
  return said.length ? said.join(": ") : `the gateway responded with status ${status}`;
}

async function read(response) {
  const text = await response.text();
  if (!(response.headers.get("content-type") ?? "").startsWith("application/json")) return text;
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    throw new ApiError(response.status, "the response of the gateway is not valid JSON");
  }
}

/** Sends a request below `/apisix/admin/`. */
async function send(method, path, { body, ifMatch, signal, headers: more = {} } = {}) {
  const headers = { Accept: "application/json", ...more };
  if (hasKey()) headers["X-API-KEY"] = sessionStorage.getItem(KEY);
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (ifMatch) headers["If-Match"] = ifMatch;
  const options = { method, headers, signal, credentials: "omit", cache: "no-store", redirect: "error" };
  if (body !== undefined) options.body = JSON.stringify(body);
  try {
    return await fetch(ROOT + path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the gateway does not respond");
  }
}

/** One call of the API. Returns `{body, etag, warnings}`. */
export async function call(method, path, options = {}) {
  const response = await send(method, path, options);
  const said = await read(response);
  if (!response.ok) throw new ApiError(response.status, reasonOf(response.status, said));
  const warnings = warningsOf(response.headers.get("x-sigma-warning"));
  return { body: said, etag: response.headers.get("etag"), warnings };
}

/** The lines of JSON of a response that goes on until it ends or the view is left. */
export async function* lines(path, signal) {
  const response = await send("GET", path, { signal });
  if (!response.ok) throw new ApiError(response.status, reasonOf(response.status, await read(response)));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const whole = (rest + part.value).split("\n");
      rest = whole.pop();
      for (const line of whole.filter(Boolean)) yield JSON.parse(line);
    }
  } finally {
    // Ends the response where its reader stops early. One that has failed cannot be ended again.
    reader.cancel().catch(() => {});
  }
}

/**
 * A write that a view began. It is not sent once the view is left. One that was sent comes to its end, as the gateway
 * may have done it already, but the view that was left gets an AbortError instead of the result.
 */
export async function write(signal, method, where, options) {
  signal.throwIfAborted();
  try {
    return await call(method, where, options);
  } finally {
    signal.throwIfAborted();
  }
}

/** A path with its parts encoded. */
export function path(...parts) {
  return parts.flatMap((part) => String(part).split("/")).map(encodeURIComponent).join("/");
}

export function query(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

export async function get(where, signal) {
  return (await call("GET", where, { signal })).body;
}

/** The same; undefined if this gateway has no such call. */
export async function getIfAny(where, signal) {
  try {
    return await get(where, signal);
  } catch (error) {
    if (error.status === 404) return undefined;
    throw error;
  }
}

/**
 * A page of a collection, in either form of the API: `{items: [{key, value, ...}], total}`. An empty collection below a
 * resource may be missing.
 */
export async function list(collection, parameters, signal) {
  const ask = collection.includes("/") ? getIfAny : get;
  const body = (await ask(collection + query(parameters), signal)) ?? {};
  const items = body.list ?? body.node?.nodes;
  return { items: Array.isArray(items) ? items : [], total: body.total ?? body.count ?? 0 };
}

/** Entries of a page when a whole collection is read: the most that the API gives. */
const PAGE_MAX = 500;

/** All entries of a collection. */
export async function listAll(collection, signal) {
  const all = [];
  for (let page = 1; ; page += 1) {
    const { items, total } = await list(collection, { page: String(page), page_size: PAGE_MAX }, signal);
    all.push(...items);
    if (items.length < PAGE_MAX || all.length >= total) return all;
  }
}

/** One resource, with the tag that a change of it names. */
export async function one(where, signal) {
  const { body, etag } = await call("GET", where, { signal });
  const entry = body.node ?? body;
  return { value: entry.value, modified: entry.modifiedIndex, etag };
}
