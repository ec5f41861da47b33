// The list of plugins.

/** The plugins of `plugins/summaries` in the order in which they run, as `[{name, ...}]`. */
export function ordered(summaries) {
  const all = Object.entries(summaries).map(([name, about]) => ({ name, ...about }));
  return all.sort((a, b) => b.priority - a.priority || a.name.localeCompare(b.name));
}

/** The plugins that have every word in their name, description, group or phases. */
export function found(plugins, search) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  return plugins.filter(({ name, description, group, phases }) => {
    const text = [name, description, group, ...phases].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
}
