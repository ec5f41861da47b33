// The warnings of an answer of the Admin API.

/**
 * The texts of `X-Sigma-Warning` fields. A browser joins fields with commas, which texts may hold too: each text but the
 * last, `and 3 more`, begins with the place that it is about.
 */
export function warningsOf(joined) {
  if (!joined) return [];
  return joined.split(/, (?=[A-Za-z_][\w./-]*(?:\[[^\]]*\][\w./-]*)*: |and \d+ more$)/);
}
