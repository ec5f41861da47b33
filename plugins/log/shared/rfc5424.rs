//! Entries as lines of syslog, RFC 5424.

use serde_json::{Map, Value};

use sigma_plugin_kit::utc;

/// The priority of the facility syslog and the severity info (§6.2.1).
pub(crate) const SYSLOG_INFO: u8 = 46;

/// The form of missing structured data (§6.3).
pub(crate) const NO_DATA: &str = "-";

/// A line without its end. `host` is from the client: bytes that a line cannot have there are shown as `-`.
pub(crate) fn line(priority: u8, host: &[u8], unix_ms: u64, data: &str, entry: Map<String, Value>) -> String {
    // §6.2.4.
    let is_name = !host.is_empty() && host.len() <= 255 && host.iter().all(u8::is_ascii_graphic);
    let host = std::str::from_utf8(host).ok().filter(|_| is_name).unwrap_or("-");
    let (time, pid, entry) = (utc::rfc3339(unix_ms), std::process::id(), Value::Object(entry));
    format!("<{priority}>1 {time} {host} apisix {pid} - {data} {entry}")
}

/// A value of structured data, which ends where its writer says (§6.3.3).
pub(crate) fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', r#"\""#).replace(']', r"\]")
}
