//! Fields of a response that describe its path and its timing. `Proxy-Status` (RFC 9209) and `Server-Timing`
//! (W3C).

use sigma_config::settings::Settings;
use sigma_http::Headers;
use sigma_plugin::record::{Attempt, Record};

const PROXY_STATUS: &str = "Proxy-Status";
const SERVER_TIMING: &str = "Server-Timing";

/// Adds to a response of the gateway the reason why it did not come from a node, if the settings ask for it.
pub(super) fn tell_status(headers: &mut Headers, record: &Record, settings: &Settings) {
    if let Some(name) = &settings.proxy_status {
        headers.append(PROXY_STATUS, proxy_status(name.as_str(), record).as_bytes());
    }
}

/// Adds to a response how long it took until here, if the settings ask for it. The node's own timing stays first.
pub(super) fn tell_timing(headers: &mut Headers, record: &Record, settings: &Settings) {
    if settings.server_timing
        && let Some(timing) = server_timing(record)
    {
        headers.append(SERVER_TIMING, timing.as_bytes());
    }
}

fn proxy_status(name: &str, record: &Record) -> String {
    // A name that is no token of structured fields (RFC 9651 §3.3.4) is a string, without anything to escape.
    let is_token = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '*');
    let name = if is_token { name.to_owned() } else { format!("\"{name}\"") };
    match (record.fault, record.upstream_statuses.last()) {
        // Reasons are our own constants, free of characters that a string escapes.
        (Some(fault), _) => {
            format!("{name}; error={}; details=\"{}\"", fault.kind.proxy_error(), fault.reason)
        }
        // A plugin's response replaces the node's.
        (None, Some(status)) if *status != 0 => format!("{name}; received-status={status}"),
        (None, _) => format!("{name}; error=proxy_internal_response"),
    }
}

fn server_timing(record: &Record) -> Option<String> {
    let total = record.elapsed_ms()?;
    // The current attempt is not over.
    let waited = |attempt: &Attempt| attempt.response_ms.or(attempt.header_ms).unwrap_or_default();
    Some(match record.attempts.is_empty() {
        true => format!("total;dur={total:.3}"),
        false => {
            let upstream: f64 = record.attempts.iter().map(waited).sum();
            format!("total;dur={total:.3}, upstream;dur={upstream:.3}")
        }
    })
}

#[cfg(test)]
mod tests {
    use sigma_http::{Fault, FaultKind};

    use super::*;

    #[test]
    fn status_names_the_reason_of_local_responses() {
        let check = |name: &str, fault: Option<FaultKind>, statuses: &[u16], expected: &str| {
            let fault = fault.map(|kind| Fault::new(kind, "why"));
            let record = Record { fault, upstream_statuses: statuses.to_vec(), ..Record::default() };
            assert_eq!(proxy_status(name, &record), expected);
        };
        check("edge", Some(FaultKind::NoRoute), &[], "edge; error=destination_not_found; details=\"why\"");
        check("1", Some(FaultKind::ConnectRefused), &[0], "\"1\"; error=connection_refused; details=\"why\"");
        check("edge", None, &[], "edge; error=proxy_internal_response");
        check("edge", None, &[0], "edge; error=proxy_internal_response");
        check("edge", None, &[0, 502], "edge; received-status=502");
    }

    #[test]
    fn timing_leaves_out_phases_without_a_measurement() {
        assert_eq!(server_timing(&Record::default()), None);
    }
}
