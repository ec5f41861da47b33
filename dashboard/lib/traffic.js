// Figures of live traffic that the page itself remembers and orders.

/** Values that a row of a sparkline shows. */
export const REMEMBERED = 30;
/** Rows that are remembered; the gateway lists no more. */
const ROWS_MAX = 1_000;

/** The last rates of rows by their name, as far as they were seen while the page was open. */
export function memory() {
  const rates = new Map();
  return {
    /** Adds a turn: `rows` are `[name, rate]`. A row that was not seen in it had no requests. */
    add(rows) {
      const seen = new Map(rows.slice(0, ROWS_MAX));
      for (const name of new Set([...rates.keys(), ...seen.keys()])) {
        const values = [...(rates.get(name) ?? []), seen.get(name) ?? 0].slice(-REMEMBERED);
        if (values.some((value) => value > 0)) rates.set(name, values);
        else rates.delete(name);
      }
    },
    of: (name) => rates.get(name) ?? [],
  };
}

/** The nodes with failures, those that failed most first. */
export function failing(nodes, most = 5) {
  const failures = (node) => node.server_errors + node.faults;
  const share = (node) => (node.requests > 0 ? failures(node) / node.requests : 0);
  const bad = nodes.filter((node) => failures(node) > 0);
  return bad.sort((a, b) => failures(b) - failures(a) || share(b) - share(a)).slice(0, most);
}

/** The consumers with the most requests; `most` of them, and among those with equally many the ones with more errors. */
export function busiest(consumers, most = 5) {
  const errors = (row) => row.client_errors + row.server_errors;
  return [...consumers].sort((a, b) => b.requests - a.requests || errors(b) - errors(a)).slice(0, most);
}

/** The consumers with errors, those with most errors first. */
export function erring(consumers, most = 5) {
  const errors = (row) => row.client_errors + row.server_errors;
  return consumers.filter((row) => errors(row) > 0).sort((a, b) => errors(b) - errors(a) || a.requests - b.requests).slice(0, most);
}

/** The points of a line for values between 0 and their maximum, in a drawing of this size. */
export function points(values, width, height) {
  const highest = Math.max(...values, 0) || 1;
  const step = width / Math.max(1, REMEMBERED - 1);
  const start = width - step * (values.length - 1);
  const point = (value, at) => `${(start + at * step).toFixed(1)},${(height - 1 - (value / highest) * (height - 2)).toFixed(1)}`;
  return values.map(point).join(" ");
}
