// Code of users: Lua scripts, and the plugin runner.

/** A row for each plugin with scripts, the busiest first. */
export function scriptRows(lua) {
  const rows = Object.entries(lua?.plugins ?? {}).map(([plugin, counts]) => {
    const { runs, cpu_us: micros, errors, aborted, refused } = counts;
    const millis = runs > 0 ? micros / runs / 1_000 : 0;
    return { plugin, runs, millis, errors, aborted, refused };
  });
  return rows.sort((one, other) => other.runs - one.runs || one.plugin.localeCompare(other.plugin));
}

/** The colour of a runner's state. */
export function runnerTone(state) {
  return { running: "good", external: "good", waiting: "bad" }[state] ?? "";
}
