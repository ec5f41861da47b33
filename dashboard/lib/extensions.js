// Code of users: Lua scripts, and the plugin runner.

/** A row for each plugin with scripts, the busiest first. */
export function scriptRows(lua) {
  const rows = Object.entries(lua?.plugins ?? {}).map(([plugin, { runs, cpu_us: micros, errors, aborted }]) => {
    const millis = runs > 0 ? micros / runs / 1_000 : 0;
    return { plugin, runs, millis, errors, aborted };
  });
  return rows.sort((one, other) => other.runs - one.runs || one.plugin.localeCompare(other.plugin));
}

/** The colour of a runner's state. */
export function runnerTone(state) {
  return { running: "good", external: "good", waiting: "bad" }[state] ?? "";
}
