// The part of Markdown that the reference of plugins is written in, as a tree: no text becomes markup.

/** Blocks: `{kind: heading|paragraph|code|list|table, ...}`; texts are lists of spans, see `spans`. */
export function blocks(source) {
  const lines = source.split("\n");
  const found = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const heading = /^(#{1,6}) (.*)$/.exec(line);
    if (line.trim() === "") at += 1;
    else if (heading) {
      found.push({ kind: "heading", level: heading[1].length, text: spans(heading[2]) });
      at += 1;
    } else if (line.startsWith("```")) {
      const end = endOf(lines, at + 1, (one) => !one.startsWith("```"));
      found.push({ kind: "code", text: lines.slice(at + 1, end).join("\n") });
      at = end + 1;
    } else {
      const kind = ["|", "- "].find((mark) => line.startsWith(mark));
      const belongs = (one) => one.trim() !== "" && (kind ? one.startsWith(kind) : !/^(#|```|\||- )/.test(one));
      const end = Math.max(at + 1, endOf(lines, at, belongs));
      found.push(blockOf(kind, lines.slice(at, end)));
      at = end;
    }
  }
  return found;
}

function endOf(lines, from, belongs) {
  let end = from;
  while (end < lines.length && belongs(lines[end])) end += 1;
  return end;
}

function blockOf(kind, lines) {
  if (kind === "- ") return { kind: "list", items: lines.map((line) => spans(line.slice(2))) };
  if (kind === "|") {
    const [head, , ...rows] = lines.map((line) => cells(line).map(spans));
    return { kind: "table", head, rows };
  }
  return { kind: "paragraph", text: spans(lines.join(" ")) };
}

/** The cells of a row; `\|` is none of the bars between them. */
function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

/** `[{code, text}]`; links are their texts, as they lead to files that are not here. */
export function spans(text) {
  const plain = (part) => part.replace(/\[([^\]]+)\]\([^)]*\)/g, "$1").replace(/\*\*([^*]+)\*\*/g, "$1");
  return text
    .split(/(`[^`]+`)/)
    .filter(Boolean)
    .map((part) => (/^`.+`$/.test(part) ? { code: true, text: part.slice(1, -1) } : { code: false, text: plain(part) }));
}
