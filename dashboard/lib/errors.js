// Where in a resource an error of the API is: its sentences name the place from the outside in.

const STEPS = [
  // The order matters: the sentence of an item begins as that of a member does.
  [/^failed to validate item (\d+): /, (found) => [Number(found[1]) - 1]],
  [/^failed to validate additional property ([^\s:]+): /, (found) => [found[1]]],
  [/^failed to validate ([^\s]+) \(matching "(?:[^"\\]|\\.)*"\): /, (found) => [found[1]]],
  [/^property "([^"]+)" validation failed: /, (found) => [found[1]]],
  [/^failed to check the configuration of plugin ([^\s]+) err: /, (found) => ["plugins", found[1]]],
  [/^failed to check the configuration of stream plugin \[([^\]]+)\]: /, (found) => ["plugins", found[1]]],
];

const LAST = [
  [/^property "([^"]+)" is required/, (found) => [found[1]]],
  [/^additional properties forbidden, found ([^\s,]+)/, (found) => [found[1]]],
  [/^unknown plugin \[([^\]]+)\]/, (found) => ["plugins", found[1]]],
  [/^invalid plugin conf .* for plugin \[([^\]]+)\]/, (found) => ["plugins", found[1]]],
  [/^failed to fetch (\w+) info by \w+ id/, (found) => [`${found[1]}_id`]],
  [/^(upstream|service|plugin_config)_id\b/, (found) => [`${found[1]}_id`]],
];

/** `{path, reason}`: the path is empty if the sentence names no place. */
export function place(message) {
  let reason = message.replace(/^invalid configuration: /, "");
  const path = [];
  for (let step = first(STEPS, reason); step; step = first(STEPS, reason)) {
    path.push(...step.path);
    reason = reason.slice(step.length);
  }
  const last = first(LAST, reason);
  if (last) path.push(...last.path);
  return { path, reason };
}

function first(patterns, text) {
  for (const [pattern, pathOf] of patterns) {
    const found = pattern.exec(text);
    if (found) return { path: pathOf(found), length: found[0].length };
  }
  return undefined;
}
