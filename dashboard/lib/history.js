// Versions of the history.

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
