// Versions of the history.

/** The newest version that changed resources, of those that are listed newest first. Settings are in the file. */
export function lastChange(versions) {
  return versions.find(({ summary, keys }) => {
    const all = summary.created + summary.changed + summary.deleted;
    return all > 0 && keys.some((key) => !key.startsWith("settings/"));
  });
}

const AUTHORS = {
  admin: "Admin API",
  file: "file",
  etcd: "another writer of etcd",
  expiry: "end of a time to live",
  unknown: "unknown",
};

/** The author of a version, with the key, certificate or file, and the address or occasion. */
export function authorOf({ by, key, certificate, file, address, trigger }) {
  const name = key ?? certificate ?? file;
  const from = address ?? trigger;
  return [AUTHORS[by] ?? by, name && `: ${name}`, from && ` (${from})`].filter(Boolean).join("");
}
