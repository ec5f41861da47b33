// The certificates in use, ordered by their expiry.

import { get } from "../api.js";
import * as format from "../lib/format.js";
import { badge, heading, section } from "../ui/page.js";
import { table } from "../ui/table.js";

const TONES = { valid: "good", expires_soon: "warn", expired: "bad", not_yet_valid: "bad", unreadable: "bad" };

const COLUMNS = [
  { title: "Used by", value: (one) => one.resource },
  { title: "Names", value: (one) => one.names.join(", ") || one.subject },
  { title: "Side", value: (one) => one.type },
  { title: "Status", value: (one) => badge(one.status.replaceAll("_", " "), TONES[one.status] ?? "warn") },
  { title: "Expires", value: (one) => format.time(one.chain_validity_end) },
  { title: "Time left", value: (one) => left(one.chain_validity_end) },
  { title: "Issuer", value: (one) => one.issuer },
];

const ORDERS = [
  { title: "SSL resource", value: (one) => one.ssl },
  { title: "Names", value: (one) => one.names.join(", ") },
  { title: "State", value: (one) => badge(String(one.state).replaceAll("_", " ")) },
  { title: "Valid until", value: (one) => format.time(one.not_after) },
  { title: "Next attempt", value: (one) => format.time(one.next_attempt) },
  { title: "Failures", numeric: true, value: (one) => format.count(one.failures) },
  { title: "Last error", value: (one) => one.last_error },
];

function left(end) {
  const seconds = end === null || end === undefined ? undefined : end - Date.now() / 1000;
  if (seconds === undefined) return "–";
  return seconds > 0 ? format.duration(seconds) : `${format.duration(-seconds)} ago`;
}

export async function show(root, _place, signal) {
  root.append(heading("Certificates"));
  const { certificates, orders } = await get("certificates", signal);
  const soonest = [...certificates].sort((a, b) => (a.chain_validity_end ?? 0) - (b.chain_validity_end ?? 0));
  root.append(section("In use", table("Certificates", COLUMNS, soonest, { empty: "No certificate is in use." })));
  if (orders.length > 0) root.append(section("Automatic certificates (ACME)", table("ACME orders", ORDERS, orders)));
}
