// Numbers and times as people read them.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export function count(value) {
  return whole.format(value ?? 0);
}

export function rate(value) {
  return `${short.format(value ?? 0)}/s`;
}

/** A share of a whole, `0 %` if there is no whole. */
export function percent(part, of) {
  return `${short.format(of ? (100 * part) / of : 0)} %`;
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  return value >= 1000 ? `${short.format(value / 1000)} s` : `${short.format(value)} ms`;
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let [amount, unit] = [value ?? 0, 0];
  while (amount >= 1024 && unit < units.length - 1) [amount, unit] = [amount / 1024, unit + 1];
  return `${short.format(amount)} ${units[unit]}`;
}

/** The two largest units of so many seconds. */
export function duration(seconds) {
  const units = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];
  let rest = Math.max(0, Math.floor(seconds ?? 0));
  const parts = [];
  for (const [unit, size] of units) {
    const many = Math.floor(rest / size);
    rest -= many * size;
    if (many || (parts.length === 0 && unit === "s")) parts.push(`${many} ${unit}`);
    else if (parts.length) break;
  }
  return parts.slice(0, 2).join(" ");
}

/** A Unix time in seconds, to the second and in the zone of the browser. */
export function time(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const at = new Date(seconds * 1000);
  const two = (part) => String(part).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}
