//! Health checks of `reverse_proxy`.

use serde_json::{Map, Value, json};

use super::parse::Line;
use super::proxy::{Settings, seconds, statuses};
use super::run::Runner;

/// Complete settings of active checks.
pub(super) fn active(mut active: Map<String, Value>) -> Map<String, Value> {
    let mut take = |key: &str, default: Value| active.remove(key).unwrap_or(default);
    let interval = take("interval", 30.into());
    let (passes, fails) = (take("passes", 1.into()), take("fails", 1.into()));
    let statuses = take("statuses", (200..300).collect::<Vec<u16>>().into());
    let failed: Vec<u16> = (200..600)
        .filter(|status| !statuses.as_array().is_some_and(|list| list.contains(&json!(status))))
        .collect();
    active.entry("timeout").or_insert_with(|| 5.into());
    active.insert(
        "healthy".to_owned(),
        json!({"interval": interval, "successes": passes, "http_statuses": statuses}),
    );
    let unhealthy = json!({"interval": interval, "http_failures": fails, "tcp_failures": fails, "timeouts": fails,
        "http_statuses": failed});
    active.insert("unhealthy".to_owned(), unhealthy);
    active
}

/// Reads an option of active checks.
pub(super) fn health(runner: &mut Runner<'_>, line: &Line, settings: &mut Settings) {
    let arg = line.arg(0).unwrap_or_default();
    let whole = |text: &str| super::duration(text).map(|seconds| json!(seconds.ceil().max(1.0) as u64));
    let count = || arg.parse::<u64>().ok().map(Value::from);
    let (key, value) = match line.name() {
        "health_uri" | "health_path" => ("http_path", Some(arg.into())),
        "health_port" => ("port", count()),
        "health_method" => ("http_method", Some(arg.to_ascii_uppercase().into())),
        "health_interval" => ("interval", whole(arg)),
        "health_timeout" => ("timeout", seconds(arg)),
        "health_passes" => ("passes", count()),
        "health_fails" => ("fails", count()),
        "health_status" => ("statuses", Some(json!(statuses(arg)))),
        "health_request_body" => ("http_req_body", Some(arg.into())),
        "health_headers" => {
            let lines: Vec<String> =
                line.lines().iter().map(|row| format!("{}: {}", row.name(), row.args().join(" "))).collect();
            ("req_headers", Some(json!(lines)))
        }
        "health_body" => {
            let text = "Sigma matches a fixed text in the body of a probe, not a pattern.";
            runner.remarks.differs(line.place(), text);
            ("http_expected_body", Some(arg.into()))
        }
        _ => {
            runner.remarks.no_effect(line.place(), "Probes go to each node and follow no redirects.");
            return;
        }
    };
    if let Some(value) = value {
        settings.active.insert(key.to_owned(), value);
    }
}
