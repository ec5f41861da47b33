// The traffic of the last minute.

import { get } from "../api.js";
import * as format from "../lib/format.js";
import { busiest, erring, failing, memory } from "../lib/traffic.js";
import { to } from "../router.js";
import { mayWrite } from "../store.js";
import { chart, sparkline } from "../ui/chart.js";
import { fill, h } from "../ui/dom.js";
import { badge, figures, heading, link, note, poll, section } from "../ui/page.js";
import { table } from "../ui/table.js";
import { lastErrors } from "./errors.js";

/** Seconds that charts show. */
const SECONDS = 60;
/** The labels of their time axis. */
const TIMES = ["60 s ago", "30 s ago", "now"];

export function show(root, _place, signal) {
  const body = h("div", {});
  let reasons = {};
  // What the page has seen itself: the gateway counts nothing more for it.
  const rates = memory();
  // A tap needs the role admin.
  const errors = mayWrite() && lastErrors(signal, () => reasons);
  root.append(heading("Live traffic"), body, errors || "");
  return poll(signal, 2, () => get("live", signal), body, (seen) => {
    reasons = seen.reasons ?? {};
    rates.add(seen.window.routes.map((row) => [row.id, row.rate]));
    fill(body, draw(seen, rates));
  });
}

function draw(seen, rates) {
  return [now(seen), charts(seen.series, seen.watched_seconds), failingNodes(seen), topConsumers(seen), erringConsumers(seen), byRoute(seen, rates), byNode(seen), sinceStart(seen.since_start, seen.reasons ?? {})];
}

function errorsOf(row) {
  return row.client_errors + row.server_errors;
}

function now({ window, watched_seconds, percentile_error_percent }) {
  const { total } = window;
  const length = format.duration(window.seconds);
  const about = watched_seconds > 1 ? `Figures of the last ${length}.` : "Counting has just begun. It continues while this page is open.";
  return section(
    "Now",
    figures([
      ["Requests", format.rate(total.rate)],
      ["Client errors", format.percent(total.client_errors, total.requests)],
      ["Server errors", format.percent(total.server_errors, total.requests), total.server_errors > 0 ? "bad" : ""],
      ["p50", format.milliseconds(total.p50_ms)],
      ["p90", format.milliseconds(total.p90_ms)],
      ["p99", format.milliseconds(total.p99_ms)],
    ]),
    note(about, ` Latencies are accurate to within ${percentile_error_percent} %.`),
  );
}

/** The values of each of the last seconds; those without requests are 0, or unknown as those before the page was open. */
function charts(series, watched) {
  const bySecond = new Map(series.map((second) => [second.age, second]));
  const ages = Array.from({ length: SECONDS }, (_, at) => SECONDS - at);
  const values = (read, without) => ages.map((age) => (bySecond.has(age) ? read(bySecond.get(age)) : age > watched ? null : without));
  const line = (name, tone, read, without = 0) => ({ name, tone, values: values(read, without) });
  const requests = [
    line("requests", "one", (second) => second.requests),
    line("errors", "bad", errorsOf),
  ];
  const times = [
    line("p50", "one", (second) => second.p50_ms, null),
    line("p90", "two", (second) => second.p90_ms, null),
    line("p99", "three", (second) => second.p99_ms, null),
  ];
  return h(
    "div",
    { class: "columns" },
    h("section", { class: "card" }, chart("Requests per second, last minute", requests, format.rate, TIMES)),
    h("section", { class: "card" }, chart("Latency, last minute", times, format.milliseconds, TIMES)),
  );
}

const COLUMNS = [
  { title: "Requests", numeric: true, value: (row) => format.count(row.requests) },
  { title: "Rate", numeric: true, value: (row) => format.rate(row.rate) },
  { title: "4xx", numeric: true, value: (row) => format.count(row.client_errors) },
  { title: "5xx", numeric: true, value: (row) => (row.server_errors ? badge(format.count(row.server_errors), "bad") : "0") },
  { title: "Faults", numeric: true, value: (row) => format.count(row.faults) },
  { title: "p50", numeric: true, value: (row) => format.milliseconds(row.p50_ms) },
  { title: "p99", numeric: true, value: (row) => format.milliseconds(row.p99_ms) },
];

function byRoute({ window }, rates) {
  const named = { title: "Route", value: (row) => link(row.name ? `${row.id} (${row.name})` : row.id, to("resource", "routes", row.id)) };
  const trend = { title: "Trend", value: (row) => sparkline(rates.of(row.id), `Rate of ${row.name ?? row.id}, now ${format.rate(row.rate)}`) };
  const more = window.unlisted > 0 && note(`${format.count(window.unlisted)} requests belong to routes or nodes that are not listed.`);
  return section("By route", table("Figures by route", [named, trend, ...COLUMNS], window.routes, { empty: "There were no requests in the last minute." }), more);
}

const NODE = { title: "Node", value: (row) => (row.address.startsWith(row.host) ? row.address : `${row.host} (${row.address})`) };

/** The nodes that failed most in the last minute; nothing while all work. */
function failingNodes({ window }) {
  const rows = failing(window.nodes);
  const share = { title: "Failed", numeric: true, value: (row) => badge(format.percent(row.server_errors + row.faults, row.requests), "bad") };
  return rows.length > 0 && section("Failing nodes", table("Nodes that failed most", [NODE, share, ...COLUMNS], rows));
}

const CONSUMER = { title: "Consumer", value: (row) => link(row.name, to("resource", "consumers", row.name)) };

/** The consumers with most requests; nothing if no request had a consumer. */
function topConsumers({ window }) {
  const rows = busiest(window.consumers);
  return rows.length > 0 && section("Top consumers", table("Consumers with most requests", [CONSUMER, ...COLUMNS], rows));
}

/** The consumers with most errors; nothing without errors. */
function erringConsumers({ window }) {
  const rows = erring(window.consumers);
  const share = { title: "Errors", numeric: true, value: (row) => badge(format.percent(errorsOf(row), row.requests), "bad") };
  return rows.length > 0 && section("Consumers with errors", table("Consumers with most errors", [CONSUMER, share, ...COLUMNS], rows));
}

function byNode({ window }) {
  return section(
    "By node",
    table("Figures by node", [NODE, ...COLUMNS], window.nodes, { empty: "No node received a request in the last minute." }),
    note("Each attempt counts. The time of a node ends with the head of its response."),
  );
}

function sinceStart({ uptime_seconds, workers, counters }, reasons) {
  const faults = Object.entries(counters.faults).sort((a, b) => b[1] - a[1]);
  return section(
    "Since the start",
    figures([
      ["Up for", format.duration(uptime_seconds)],
      ["Workers", format.count(workers)],
      ["Requests", format.count(counters.requests)],
      ["2xx", format.count(counters.responses_2xx)],
      ["4xx", format.count(counters.responses_4xx)],
      ["5xx", format.count(counters.responses_5xx)],
      ["Connections now", format.count(counters.connections_active)],
      ["Received", format.bytes(counters.bytes_in)],
      ["Sent", format.bytes(counters.bytes_out)],
    ]),
    faults.length > 0 &&
      table("Faults since the start", [
        { title: "Reason", value: ([name]) => name },
        { title: "Count", numeric: true, value: ([, many]) => format.count(many) },
        { title: "Meaning", value: ([name]) => plain(reasons[name]?.meaning) },
        { title: "Remedy", value: ([name]) => plain(reasons[name]?.remedy) },
      ], faults),
  );
}

/** A text of the table of reasons without marks for code. */
function plain(text) {
  return text?.replaceAll("`", "") ?? "–";
}
