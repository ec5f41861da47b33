// The last failed requests, from a tap that is open while they are watched.

import { lines } from "../api.js";
import { failure } from "../lib/exchange.js";
import * as format from "../lib/format.js";
import { to } from "../router.js";
import { fill, h } from "../ui/dom.js";
import { badge, button, link, note, problem, section } from "../ui/page.js";
import { table } from "../ui/table.js";

/** Rows that are kept. */
const ROWS = 20;

const COLUMNS = [
  { title: "Time", value: (row) => format.time(row.time) },
  { title: "Status", value: (row) => badge(row.status === null ? "none" : String(row.status), "bad") },
  { title: "Request", value: (row) => row.request },
  { title: "Route", value: (row) => (row.route ? link(row.routeName ? `${row.route} (${row.routeName})` : row.route, to("resource", "routes", row.route)) : "–") },
  { title: "Node", value: (row) => row.node },
  { title: "Reason", value: (row) => row.reason },
  { title: "Meaning", value: (row) => row.meaning },
  { title: "Remedy", value: (row) => row.remedy },
];

/** A section with a button that begins to watch. `reasonsOf` gives the table of reasons. */
export function lastErrors(signal, reasonsOf) {
  const place = h("div", {}, note("The gateway reports failed requests (5xx) with their reasons while you watch them."));
  const watch = async () => {
    begin.remove();
    const rows = [];
    const draw = () => fill(place, table("Last errors", COLUMNS, rows, { empty: "Watching. No request has failed yet." }));
    draw();
    try {
      for await (const line of lines("tap?status=5xx", signal)) {
        if (line.type === "end") throw new Error(`The gateway has ended the tap: ${line.reason}.`);
        if (line.type !== "exchange") continue;
        rows.unshift(failure(line, reasonsOf()));
        rows.length = Math.min(rows.length, ROWS);
        draw();
      }
      throw new Error("The connection to the gateway has ended.");
    } catch (error) {
      if (!signal.aborted) place.append(problem(error), begin);
    }
  };
  const begin = button("Watch errors", watch);
  return section("Last errors", place, begin);
}
