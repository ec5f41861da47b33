// What plugins would do with a request, as texts.

import * as format from "./format.js";

/** One text for each effect of `would` in an answer of `explain`. */
export function effects(would) {
  const { limits = [], problem, ...rest } = would ?? {};
  const texts = [problem, ...limits.map(limit)];
  if (rest.refused !== undefined && rest.refused !== false) texts.push(refusal(rest));
  else if (rest.delay_ms !== undefined) texts.push(rest.delay_ms > 0 ? `delayed by ${format.milliseconds(rest.delay_ms)}` : "no delay");
  else if (rest.headers !== undefined) texts.push(...rewrite(rest));
  else texts.push(...Object.entries(rest).map(([name, value]) => member(name, value)));
  return texts.filter(Boolean);
}

function limit({ limit: most, time_window, reset, conn, burst, remaining, counted_in }) {
  const whole = most ?? conn + burst;
  const unit = conn === undefined ? "requests" : "concurrent requests";
  if (counted_in !== undefined) {
    const window = time_window === undefined ? "" : ` in ${format.count(time_window)} s`;
    return `at most ${format.count(whole)} ${unit}${window}, counted in ${counted_in}`;
  }
  const next = reset === undefined ? "" : `, a new window in ${format.count(Math.ceil(reset))} s`;
  return `${format.count(remaining)} of ${format.count(whole)} ${unit} left${next}`;
}

function refusal({ refused, rate, seconds_left }) {
  if (seconds_left !== undefined) return `refused for ${format.count(seconds_left)} s, because of the ${refused}`;
  return rate === undefined ? "refused" : `refused: more than ${format.rate(rate)}`;
}

function rewrite({ uri, method, host, headers }) {
  const set = headers.set.map(([name, value]) => `set ${name}: ${value}`);
  const removed = headers.remove.map((name) => `remove ${name}`);
  return [uri && `path: ${uri}`, method && `method: ${method}`, host && `host: ${host}`, ...set, ...removed];
}

function member(name, value) {
  if (value === null) return undefined;
  return `${name.replaceAll("_", " ")}: ${typeof value === "object" ? JSON.stringify(value) : value}`;
}
