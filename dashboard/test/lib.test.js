// The modules without a page: `node --test dashboard/test/`.

import assert from "node:assert/strict";
import { test } from "node:test";

import { changes, sections } from "../lib/configs.js";
import { FORMATS, merged, shownRemarks } from "../lib/convert.js";
import { curl } from "../lib/curl.js";
import { diff, folded, text } from "../lib/diff.js";
import { place } from "../lib/errors.js";
import { failure } from "../lib/exchange.js";
import { runnerTone, scriptRows } from "../lib/extensions.js";
import * as format from "../lib/format.js";
import { blocks, spans } from "../lib/markdown.js";
import { SHOWN_MAX, overview } from "../lib/overview.js";
import { steps } from "../lib/path.js";
import { found, ordered } from "../lib/plugins.js";
import { equal, getAt, setAt, shown } from "../lib/pointer.js";
import { choicesOf, collectionOf, idOf, summary } from "../lib/resources.js";
import { blank, fieldOf, membersOf } from "../lib/schema.js";
import { ticks } from "../ui/chart.js";
import { standing } from "../lib/revision.js";
import { REMEMBERED, busiest, erring, failing, memory, points } from "../lib/traffic.js";
import { warningsOf } from "../lib/warnings.js";
import { effects } from "../lib/explain.js";
import { authorOf, lastChange } from "../lib/history.js";
import { helpOf, titleOf } from "../lib/labels.js";
import { parse, to } from "../router.js";

test("a difference turns one text into the other, with the fewest changes", () => {
  const check = (before, after, expected) => {
    const lines = diff(before, after);
    assert.equal(lines.map(({ sign }) => sign).join(""), expected, `${before} ${after}`);
    const side = (without) => lines.filter(({ sign }) => sign !== without).map(({ line }) => line).join("\n");
    assert.deepEqual([side("+"), side("-")], [before, after]);
  };
  check("", "", "");
  check("a", "a", " ");
  check("", "a\nb", "++");
  check("a\nb", "", "--");
  check("a\nb\nc", "a\nx\nc", " -+ ");
  check("a\nb\nc\nd", "b\nc\nd\ne", "-   +");
  check("a\na\na", "a\na", "  -");
});

test("what is equal is folded away", () => {
  const lines = diff(text({ a: [1, 2, 3, 4, 5, 6, 7, 8], b: 1 }), text({ b: 2, a: [1, 2, 3, 4, 5, 6, 7, 8] }));
  const short = folded(lines, 1);
  assert.deepEqual(short.map(({ sign }) => sign), ["…", " ", "-", "+", " "]);
  assert.equal(short[0].skipped, lines.length - 4);
  assert.deepEqual(folded(diff("a", "a")), [{ sign: "…", skipped: 1 }]);
});

test("the order of members is no difference", () => {
  assert.equal(text({ b: 1, a: { d: 1, c: 2 } }), text({ a: { c: 2, d: 1 }, b: 1 }));
  assert.ok(equal({ a: [1, { b: 2 }] }, { a: [1, { b: 2 }] }));
  for (const other of [{ a: [1] }, { a: [1, { b: 3 }] }, [], null, { a: [1, { b: 2 }], c: 1 }]) {
    assert.ok(!equal({ a: [1, { b: 2 }] }, other));
  }
});

test("sentences of the API name their place", () => {
  const check = (message, path, reason) => assert.deepEqual(place(message), { path, reason }, message);
  check("no such thing", [], "no such thing");
  check('invalid configuration: property "uri" is required', ["uri"], 'property "uri" is required');
  check(
    'invalid configuration: property "methods" validation failed: failed to validate item 2: matches none of the enum values',
    ["methods", 1],
    "matches none of the enum values",
  );
  check(
    'invalid configuration: property "upstream" validation failed: property "checks" validation failed: property "active" validation failed: expected 255 to be at most 254',
    ["upstream", "checks", "active"],
    "expected 255 to be at most 254",
  );
  check(
    'invalid configuration: property "labels" validation failed: failed to validate env (matching ".*"): wrong type: expected string, got table',
    ["labels", "env"],
    "wrong type: expected string, got table",
  );
  check(
    'failed to check the configuration of plugin limit-count err: property "count" is required',
    ["plugins", "limit-count", "count"],
    'property "count" is required',
  );
  check("invalid configuration: additional properties forbidden, found urii", ["urii"], "additional properties forbidden, found urii");
  check("unknown plugin [nothing]", ["plugins", "nothing"], "unknown plugin [nothing]");
});

test("places are read and written without touching what is around", () => {
  const value = { a: { b: [1, 2] }, c: 3 };
  assert.equal(getAt(value, ["a", "b", 1]), 2);
  assert.equal(getAt(value, ["a", "x", 1]), undefined);
  assert.deepEqual(setAt(value, ["a", "b", 0], 9), { a: { b: [9, 2] }, c: 3 });
  assert.deepEqual(setAt(value, ["c"], undefined), { a: { b: [1, 2] } });
  assert.deepEqual(setAt({ a: { b: 1 }, c: 3 }, ["a", "b"], undefined), { c: 3 });
  assert.deepEqual(setAt(undefined, ["a", 0, "b"], 1), { a: [{ b: 1 }] });
  assert.deepEqual(setAt(value, ["a", "b", 0], undefined), { a: { b: [2] }, c: 3 });
  assert.deepEqual(value, { a: { b: [1, 2] }, c: 3 });
  assert.equal(shown(["upstream", "nodes", 0, "host"]), "upstream.nodes[0].host");
});

test("schemas become fields", () => {
  const kind = (schema, value, name) => fieldOf(schema, value, name).kind;
  assert.equal(kind({ type: "string" }), "text");
  assert.equal(kind({ type: "integer", minimum: 1 }), "number");
  assert.equal(kind({ type: "boolean", default: true }), "truth");
  assert.equal(kind({ enum: [1, 0] }), "choice");
  assert.equal(kind({ type: "array", items: { type: "string" } }), "list");
  assert.equal(kind({ type: "array" }), "json");
  assert.equal(kind({ type: "object", properties: { a: { type: "string" } } }), "object");
  assert.equal(kind({ type: "object" }, {}, "plugins"), "plugins");
  assert.equal(kind({ type: "object" }), "json");
  assert.equal(kind({}), "json");
  const nodes = {
    anyOf: [
      { type: "object", patternProperties: { ".*": { type: "integer", minimum: 0 } } },
      { type: "array", items: { type: "object", properties: { host: { type: "string" }, port: { type: "integer" } }, required: ["host"] } },
    ],
  };
  assert.equal(kind(nodes), "map");
  assert.equal(kind(nodes, { "a:1": 1 }), "map");
  assert.equal(kind(nodes, [{ host: "a" }]), "list");
  assert.deepEqual(blank(fieldOf(nodes, []).item), { host: "" });
  assert.deepEqual(fieldOf({ type: "integer", maximum: 2 ** 63 }).max, undefined);
  const id = { anyOf: [{ type: "string" }, { type: "integer" }] };
  assert.deepEqual(fieldOf(id, undefined, "upstream_id"), { kind: "reference", collection: "upstreams" });
  assert.equal(kind(id, undefined, "other_id"), "text");
  assert.equal(kind({ type: "string" }, undefined, "group_id"), "text");
});

test("a reference is chosen by name, and one to a missing resource stays", () => {
  const items = [
    { key: "/apisix/upstreams/2", value: {} },
    { key: "/apisix/upstreams/1", value: { name: "app" } },
  ];
  const texts = (value) => choicesOf("upstreams", items, value).map(({ text }) => text);
  assert.deepEqual(texts(undefined), ["2", "app (1)"]);
  assert.deepEqual(texts(2), ["2", "app (1)"]);
  assert.deepEqual(texts("gone"), ["gone (missing)", "2", "app (1)"]);
  const ssls = [{ key: "/apisix/ssls/s", value: { type: "server" } }, { key: "/apisix/ssls/c", value: { type: "client" } }];
  assert.deepEqual(choicesOf("ssls", ssls).map(({ id }) => id), ["c"]);
});

test("members stand in the order in which they matter", () => {
  const schema = { properties: { id: {}, far: { type: "string" }, set: { type: "string" }, must: { type: "string" } }, required: ["must"] };
  assert.deepEqual(membersOf(schema, { set: "x" }).map(({ name }) => name), ["must", "set", "far"]);
});

test("figures are short", () => {
  assert.equal(format.count(1234567), "1,234,567");
  assert.equal(format.rate(0.1234), "0.123/s");
  assert.equal(format.percent(1, 3), "33.3 %");
  assert.equal(format.percent(0, 0), "0 %");
  assert.equal(format.milliseconds(null), "–");
  assert.equal(format.milliseconds(1.2345), "1.23 ms");
  assert.equal(format.milliseconds(12345), "12.3 s");
  assert.equal(format.bytes(0), "0 B");
  assert.equal(format.bytes(1536), "1.5 KiB");
  assert.equal(format.duration(0), "0 s");
  assert.equal(format.duration(61), "1 min 1 s");
  assert.equal(format.duration(90061), "1 d 1 h");
  assert.equal(format.duration(86401), "1 d");
  assert.match(format.time(0), /^19(69|70)-\d\d-\d\d \d\d:\d\d:\d\d$/);
});

test("fields have titles that people read", () => {
  for (const [name, title] of [
    ["time_window", "Time window"],
    ["upstream_id", "Upstream"],
    ["uri", "Path"],
    ["client_ids", "Client IDs"],
    ["https_port", "HTTPS port"],
    ["dns", "DNS"],
    ["constructor", "Constructor"],
  ]) {
    assert.equal(titleOf(name), title);
  }
  assert.match(helpOf("routes", ["methods"]), /^The HTTP methods/);
  assert.match(helpOf("routes", ["desc"]), /^A note/);
  for (const none of [["plugins", "uri"], ["unknown"]]) assert.equal(helpOf("routes", none), undefined);
});

test("the effects of plugins are told in words", () => {
  const check = (would, ...texts) => assert.deepEqual(effects(would), texts);
  check(null);
  check({ limits: [{ rule: 1, limit: 1000, time_window: 600, remaining: 999, reset: 12.3 }] }, "999 of 1,000 requests left, a new window in 13 s");
  check({ limits: [{ conn: 2, burst: 1, now: 1, remaining: 2 }] }, "2 of 3 concurrent requests left");
  check({ limits: [{ rule: 1, limit: 5, time_window: 60, counted_in: "redis" }] }, "at most 5 requests in 60 s, counted in redis");
  check({ rate: 5, burst: 0, delay_ms: 0 }, "no delay");
  check({ rate: 5, burst: 0, refused: true }, "refused: more than 5/s");
  check({ max_failures: 3, time_window: 60, refused: "account", seconds_left: 9 }, "refused for 9 s, because of the account");
  check({ max_failures: 3, time_window: 60 }, "max failures: 3", "time window: 60");
  check({ problem: "no key" }, "no key");
  const rewrite = { uri: "/x", method: null, host: "a", headers: { set: [["X-A", "1"]], remove: ["X-B"] } };
  check(rewrite, "path: /x", "host: a", "set X-A: 1", "remove X-B");
});

test("the change to undo is the newest one of resources", () => {
  const version = (number, changed, ...keys) => ({ version: number, summary: { created: 0, changed, deleted: 0 }, keys });
  const all = [version(4, 0), version(3, 1, "settings/access_log"), version(2, 1, "routes/r"), version(1, 1, "routes/q")];
  assert.equal(lastChange(all).version, 2);
  assert.equal(lastChange(all.slice(0, 2)), undefined);
  assert.equal(authorOf({ by: "admin", key: "admin.key", address: "127.0.0.1" }), "Admin API: admin.key (127.0.0.1)");
  assert.equal(authorOf({ by: "unknown" }), "unknown");
});

test("plugins are found by name, description, group and phase", () => {
  const plugins = ordered({
    cors: { description: "Tells browsers", group: "security", phases: ["rewrite"], priority: 4000 },
    "limit-count": { description: "Limits requests per window", group: "traffic", phases: ["access"], priority: 1002 },
    "acl": { description: "Allows or denies", group: "auth", phases: ["access"], priority: 2410 },
  });
  const names = (search) => found(plugins, search).map(({ name }) => name).join(" ");
  assert.equal(names(""), "cors acl limit-count");
  assert.equal(names("LIMIT"), "limit-count");
  assert.equal(names("access"), "acl limit-count");
  assert.equal(names("access traffic"), "limit-count");
  assert.equal(names("browsers auth"), "");
});

test("a request becomes a command that a shell reads as it is", () => {
  const command = (method, url, ...headers) => curl({ method, url, headers });
  assert.equal(command("GET", "localhost:9080/a?b=c&d"), "curl -i 'http://localhost:9080/a?b=c&d'");
  assert.equal(command("HEAD", "https://a/"), "curl -i --head 'https://a/'");
  assert.equal(command("POST", "a/", "X-A: it's", "$(b): `c`"), "curl -i -X POST -H 'X-A: it'\\''s' -H '$(b): `c`' 'http://a/'");
});

test("a failed exchange has its reason from the table", () => {
  const exchange = {
    time: "2026-11-29T13:21:55+00:00", status: 502, method: "GET", target: "/a", route: "r", route_name: "orders",
    attempts: [{ node: "a:1" }, { node: "b:1" }], source: "fault", fault: { type: "connection_refused", reason: "refused" },
  };
  const row = failure(exchange, { connection_refused: { meaning: "No process listens.", remedy: "Start it." } });
  assert.deepEqual([row.request, row.node, row.reason, row.meaning, row.remedy], ["GET /a", "b:1", "connection_refused", "No process listens.", "Start it."]);
  assert.equal(failure(exchange, {}).meaning, "refused");
  const own = failure({ ...exchange, attempts: [], source: "gateway", fault: null }, {});
  assert.deepEqual([own.node, own.reason, own.meaning], [undefined, "response of the gateway or a plugin", undefined]);
});

test("two whole configurations are compared by resource", () => {
  const before = {
    routes: [{ id: "a", uri: "/a", update_time: 1 }, { id: "b", uri: "/b" }],
    routes_conf_version: 1,
    consumers: [{ username: "jack" }, { id: "jack/credentials/one", plugins: {} }],
  };
  const after = { routes: [{ uri: "/a", id: "a", update_time: 2 }, { id: "c", uri: "/c" }], consumers: [{ username: "jack", desc: "x" }], plugins: [] };
  const found = changes(before, after).map(({ key, operation }) => `${key} ${operation}`);
  assert.deepEqual(found, ["consumers/jack changed", "consumers/jack/credentials/one deleted", "routes/b deleted", "routes/c created"]);
  assert.deepEqual(changes(before, before), []);
  assert.deepEqual(Object.keys(sections({ ...before, plugins: [], "X-Digest": "a" })), ["routes", "consumers"]);
});

test("one line says whether a gateway is up to date", () => {
  const seen = (more) => ({ revision: 7, published: 7, quarantined: [], store: { lost: null }, ...more });
  const check = (more, changed, versions, tone, text) => {
    const found = standing(seen(more), changed, versions);
    assert.equal(found.tone, tone, found.text);
    assert.match(found.text, text);
  };
  check({}, 7, [], "good", /^Up to date \(revision 7\)$/);
  check({}, 0, [], "good", /^Up to date/);
  check({ quarantined: [{}] }, 7, [], "warn", /^Up to date \(revision 7\), except one quarantined object$/);
  check({ revision: 5 }, 0, [], "bad", /^Behind: revision 5 of 7 is in force$/);
  const versions = [8, 7, 6, 5].map((revision) => ({ revision, time_ms: revision * 1000 }));
  check({ revision: 5 }, 8, versions, "bad", new RegExp(`^Behind since ${format.time(6)}: revision 5 of 8 is in force$`));
  const lost = { lost: { since: 9, reason: "refused" } };
  check({ store: lost }, 7, [], "bad", /^Revision 7 is in force; the store has been unreachable since /);
  check({ revision: 5, store: lost }, 0, [], "bad", new RegExp(`^Behind since ${format.time(9)}: `));
});

test("joined warnings are told apart", () => {
  assert.deepEqual(warningsOf(null), []);
  const all = [
    "uri: `x` never matches: a path begins with `/` (for example /hello, /api/* or *)",
    'plugins.limit-count.rules[0]["a"].code: clients get 503, as in an outage (write 429, or 503)',
    "routes/x.uri: wrong, very wrong",
    "and 3 more",
  ];
  assert.deepEqual(warningsOf(all.join(", ")), all);
});

test("the axis of a chart has round steps down to 0", () => {
  for (const [highest, top] of [[0, 1], [NaN, 1], [0.3, 0.5], [1, 1], [11, 20], [499, 500], [501, 1000]]) {
    assert.ok(Math.abs(ticks(highest)[0] - top) < 1e-9, `${highest}`);
    assert.equal(ticks(highest).at(-1), 0, `${highest}`);
  }
  assert.deepEqual(ticks(180), [200, 150, 100, 50, 0]);
  assert.deepEqual(ticks(450), [500, 400, 300, 200, 100, 0]);
});

test("the reference of plugins is read", () => {
  const found = blocks("# name\n\nA `b` [c](d.md).\nMore.\n\n- one\n- two\n\n| a | b |\n|---|---|\n| `x\\|y` | z |\n\n```yaml\n# no heading\n```\n");
  assert.deepEqual(found.map(({ kind }) => kind), ["heading", "paragraph", "list", "table", "code"]);
  assert.deepEqual(found[1].text, [{ code: false, text: "A " }, { code: true, text: "b" }, { code: false, text: " c. More." }]);
  assert.deepEqual(found[3].rows, [[[{ code: true, text: "x|y" }], [{ code: false, text: "z" }]]]);
  assert.equal(found[4].text, "# no heading");
  assert.deepEqual(spans("<b>"), [{ code: false, text: "<b>" }]);
  assert.deepEqual(blocks("```\nnever closed").map(({ text: inner }) => inner), ["never closed"]);
});

test("addresses name views and are made again", () => {
  const { name, parts, query } = parse(to("resource", "consumers/jack/credentials", "a b"));
  assert.deepEqual([name, parts], ["resource", ["consumers/jack/credentials", "a b"]]);
  assert.equal(query.get("key"), null);
  assert.equal(parse("#/history?key=routes%2F1").query.get("key"), "routes/1");
  assert.deepEqual(parse("").name, "");
  assert.deepEqual(parse("#/a/%E0").parts, ["%E0"]);
});

test("collections are known by their paths", () => {
  assert.equal(collectionOf("routes").word, "route");
  assert.deepEqual([collectionOf("consumers/jack/credentials").word, collectionOf("consumers/jack/credentials").parent], ["credential", "jack"]);
  for (const none of ["", "nothing", "routes/1", "routes/1/credentials"]) assert.equal(collectionOf(none), undefined, none);
  assert.equal(idOf("routes", "/apisix/routes/1"), "1");
  assert.equal(idOf("secrets", "/apisix/secrets/vault/1"), "vault/1");
  assert.equal(summary("routes", { uri: "/a", methods: ["GET"], upstream: { nodes: { "a:1": 1 } } }), "GET /a → a:1");
  assert.equal(summary("upstreams", { nodes: [{ host: "a", port: 1 }, { host: "b" }] }), "a:1, b");
});

test("the overview leads from routes to nodes", () => {
  const entry = (collection, id, value) => ({ key: `/apisix/${collection}/${id}`, value });
  const node = (name, more = {}) => ({ node: name, address: name, status: "healthy", state: "ready", in_use: true, ...more });
  const seen = {
    routes: [
      entry("routes", "r1", { uri: "/a/*", service_id: "s" }),
      entry("routes", "r2", { uri: "/b/*", upstream: { nodes: { "n3:80": 1 } } }),
      entry("routes", "r3", { uri: "/c", upstream_id: "gone" }),
    ],
    services: [entry("services", "s", { name: "shop", upstream_id: "u" })],
    upstreams: [entry("upstreams", "u", { name: "nodes of the shop" }), entry("upstreams", "idle", { nodes: {} })],
    health: [
      { upstream: "upstreams/u", nodes: [node("n1:80"), node("n2:80", { status: "unhealthy", in_use: false })] },
      { upstream: "routes/r2", nodes: [node("n3:80")] },
    ],
    traffic: { routes: [{ id: "r1", rate: 5, server_errors: 1 }], nodes: [{ address: "n1:80", rate: 4 }] },
  };
  const keys = (search) => overview(seen, search).columns.map(({ items }) => items.map(({ key }) => key));
  const all = overview(seen);
  assert.deepEqual(all.columns.map(({ title }) => title), ["Routes", "Services", "Upstreams", "Nodes"]);
  assert.deepEqual(all.lines, [
    ["routes/r1", "services/s"],
    ["routes/r2", "inline routes/r2"],
    ["services/s", "upstreams/u"],
    ["upstreams/u", "node n1:80"],
    ["upstreams/u", "node n2:80"],
    ["inline routes/r2", "node n3:80"],
  ]);
  const [routes, , upstreams, nodes] = all.columns.map(({ items }) => items);
  assert.deepEqual([routes[0].rate, routes[0].tone, routes[1].rate], [5, "bad", undefined]);
  assert.deepEqual(upstreams.map(({ title, tone }) => [title, tone]), [["nodes of the shop", "warn"], ["inline, routes/r2", "good"], ["idle", undefined]]);
  assert.deepEqual(nodes.map(({ tone }) => tone), ["good", "bad", "good"]);
  assert.deepEqual(keys("n1:80"), [["routes/r1"], ["services/s"], ["upstreams/u"], ["node n1:80"]]);
  assert.deepEqual(keys("/b/*"), [["routes/r2"], ["inline routes/r2"], ["node n3:80"]]);
  assert.deepEqual(keys("nothing like it"), [[], [], []]);
  const many = { ...seen, routes: Array.from({ length: 1000 }, (_, at) => entry("routes", `x${at}`, { uri: `/${at}`, service_id: "s" })) };
  const cut = overview(many).columns[0];
  assert.deepEqual([cut.items.length, cut.left], [SHOWN_MAX, 1000 - SHOWN_MAX]);
  assert.deepEqual(overview(many, "/999").columns[0].items.map(({ key }) => key), ["routes/x999"]);
});

test("rates are remembered while they are seen", () => {
  const rates = memory();
  rates.add([["a", 2], ["b", 1]]);
  rates.add([["a", 3]]);
  assert.deepEqual([rates.of("a"), rates.of("b"), rates.of("c")], [[2, 3], [1, 0], []]);
  for (let turn = 0; turn < REMEMBERED + 5; turn += 1) rates.add([["a", turn]]);
  assert.equal(rates.of("a").length, REMEMBERED);
  assert.deepEqual(rates.of("b"), [], "a row without requests is forgotten");
});

test("a sparkline ends at the right edge", () => {
  assert.equal(points([], 90, 22), "");
  assert.equal(points([5], 29, 22), "29.0,1.0");
  assert.equal(points([0, 5, 0], 29, 22), "27.0,21.0 28.0,1.0 29.0,21.0");
  assert.equal(points([0, 0], 29, 22), "28.0,21.0 29.0,21.0");
});

test("the nodes that fail most come first", () => {
  const node = (host, requests, server_errors, faults) => ({ host, requests, server_errors, faults });
  const all = [node("a", 10, 0, 0), node("b", 100, 3, 0), node("c", 10, 2, 1), node("d", 5, 0, 9)];
  assert.deepEqual(failing(all).map(({ host }) => host), ["d", "c", "b"]);
  assert.deepEqual(failing(all, 1).map(({ host }) => host), ["d"]);
});

test("consumers are ordered by requests and by errors", () => {
  const consumer = (name, requests, client_errors, server_errors) => ({ name, requests, client_errors, server_errors });
  const all = [consumer("a", 10, 0, 0), consumer("b", 100, 3, 0), consumer("c", 10, 2, 1), consumer("d", 3, 0, 3)];
  assert.deepEqual(busiest(all, 3).map(({ name }) => name), ["b", "c", "a"]);
  assert.deepEqual(erring(all).map(({ name }) => name), ["d", "c", "b"]);
  assert.deepEqual(all.map(({ name }) => name), ["a", "b", "c", "d"], "the order of the list stays");
});

test("the path of a request has its steps in order", () => {
  const plugin = (name, phases, runs = true) => ({ name, phases, runs });
  const seen = {
    route: { key: "routes/1", name: "shop" },
    upstream: { key: "upstreams/2" },
    to_node: { method: "GET", path: "/x" },
    plugins: [plugin("cors", ["header_filter", "rewrite"]), plugin("key-auth", ["rewrite"]), plugin("log", ["log"]), plugin("off", ["access"], false)],
  };
  const titles = (answer) => steps(answer).map(({ title }) => title);
  assert.deepEqual(titles(seen), ["Route", "rewrite", "Upstream", "Node", "header filter", "log"]);
  assert.deepEqual(steps(seen)[1].plugins, ["cors", "key-auth"]);
  assert.equal(steps(seen)[0].detail, "routes/1 (shop)");
  const refused = steps({ ...seen, refused: "401 by key-auth" });
  assert.deepEqual([refused.at(-1).title, refused.at(-1).ends], ["Refused", true]);
  assert.deepEqual(steps({ refused: null }).map(({ ends }) => ends), [true]);
});

test("a conversion adds resources and deletes none", () => {
  const present = { routes: [{ id: "1", uri: "/a" }, { id: "2", uri: "/b" }], consumers: [{ username: "jack" }] };
  const added = { routes: [{ id: "2", uri: "/c" }], consumers: [{ username: "jill" }], upstreams: [{ id: "u" }] };
  assert.deepEqual(merged(present, added), {
    routes: [{ id: "1", uri: "/a" }, { id: "2", uri: "/c" }],
    consumers: [{ username: "jack" }, { username: "jill" }],
    upstreams: [{ id: "u" }],
  });
  assert.equal(new Set(FORMATS.map(([word]) => word)).size, FORMATS.length);
});

test("the worst remarks of a conversion come first", () => {
  const remark = (line, verdict, text = "") => ({ line, verdict, text });
  const report = { remarks: [remark(1, "done"), remark(2, "done with a difference", "x"), remark(3, "not possible", "y"), remark(4, "done", "z")] };
  assert.deepEqual(shownRemarks(report).map(({ line }) => line), [3, 2, 4]);
  assert.equal(shownRemarks(report, 1).length, 1);
  assert.deepEqual(shownRemarks({}), []);
});

test("plugins with scripts are listed by their runs", () => {
  const counts = { runs: 4, cpu_us: 8_000, errors: 1, aborted: 0, refused: 3 };
  const rows = scriptRows({ plugins: { a: { ...counts, runs: 0 }, b: counts } });
  assert.deepEqual(rows.map(({ plugin, millis, refused }) => [plugin, millis, refused]), [["b", 2, 3], ["a", 0, 3]]);
  assert.deepEqual(scriptRows(undefined), []);
  assert.equal(runnerTone("waiting"), "bad");
});
