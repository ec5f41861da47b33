// A request as a command for curl.

/** The command, quoted for a shell. `headers` are lines such as `X-Name: value`. */
export function curl({ method, url, headers }) {
  const parts = ["curl", "-i"];
  if (method === "HEAD") parts.push("--head");
  else if (method !== "GET") parts.push("-X", method);
  for (const line of headers) parts.push("-H", quoted(line));
  const hasScheme = /^[a-z]+:\/\//i.test(url);
  return [...parts, quoted(hasScheme ? url : `http:${"//"}${url}`)].join(" ");
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
