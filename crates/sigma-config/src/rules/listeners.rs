//! Rules for listeners.

use serde_json::Value;

use super::Object;
use sigma_schema::problem::{Problem, element, member};

/// Returns the problems of a whole document; `root` is its long form.
pub(crate) fn of_document(root: &Object) -> Vec<Problem> {
    let listeners = root.get("listeners").and_then(Value::as_array).into_iter().flatten().enumerate();
    let resumes = root.get("tls").and_then(|tls| tls.get("resumption")).is_none_or(|way| way != "off");
    let problems =
        |(index, listener): (usize, &Value)| of_listener(&element("listeners", index), listener, resumes);
    listeners.flat_map(problems).collect()
}

fn of_listener(place: &str, listener: &Value, resumes: bool) -> Vec<Problem> {
    let mut found = of_stream(place, listener);
    found.extend(of_http3(place, listener));
    found.extend(of_tcp(place, listener));
    found.extend(of_early_data(place, listener, resumes));
    found.extend(of_destination(place, listener));
    found
}

/// Reports why the connections of a listener cannot have an original destination.
fn of_destination(place: &str, listener: &Value) -> Option<Problem> {
    listener.get("original_destination").filter(|asks| **asks == Value::Bool(true))?;
    let has = |field: &str| listener.get(field).is_some_and(|value| *value != Value::Null);
    let address = listener.get("address").and_then(Value::as_str).unwrap_or_default();
    let stream = listener.get("stream").and_then(Value::as_str);
    let (message, hint) = match () {
        () if address.starts_with("unix:") => {
            ("connections to a Unix socket have no original destination", "write ip:port, [v6]:port or :port")
        }
        () if stream == Some("udp") => (
            "`original_destination` is for connections over TCP",
            "write `stream: tcp` or `stream: tls`, or remove `stream` for HTTP",
        ),
        () if has("http3") => {
            ("`original_destination` is for connections over TCP, and HTTP/3 needs UDP", "remove `http3`")
        }
        () if has("proxy_protocol") => (
            "the PROXY protocol and `original_destination` would both name the destination",
            "remove one of both",
        ),
        () => return None,
    };
    Some(Problem::new(member(place, "original_destination"), "conflict", message).hint(hint))
}

/// Reports options of TCP on a listener without it.
fn of_tcp(place: &str, listener: &Value) -> Option<Problem> {
    listener.get("tcp").filter(|tcp| **tcp != Value::Null)?;
    let address = listener.get("address").and_then(Value::as_str).unwrap_or_default();
    let message = match () {
        () if address.starts_with("unix:") => "TCP options have no effect on a Unix socket",
        () if listener.get("stream").is_some_and(|stream| stream == "udp") => {
            "TCP options have no effect with `stream: udp`"
        }
        () => return None,
    };
    Some(Problem::new(member(place, "tcp"), "conflict", message).hint("remove it"))
}

/// Reports why a listener cannot have early data. `resumes` is set unless sessions are never resumed.
fn of_early_data(place: &str, listener: &Value, resumes: bool) -> Option<Problem> {
    let tls = listener.get("tls")?;
    tls.get("early_data_bytes").filter(|bytes| bytes.as_u64() != Some(0))?;
    let protocols = tls.get("protocols").and_then(Value::as_array);
    let (message, hint) = match () {
        () if listener.get("stream").is_some_and(|stream| *stream != Value::Null) => {
            ("sessions of `stream` cannot detect replays", "remove it")
        }
        () if protocols.is_some_and(|all| !all.iter().any(|version| version == "TLSv1.3")) => {
            ("early data needs TLS 1.3, which `protocols` does not list", "add `TLSv1.3` to `protocols`")
        }
        () if !resumes => (
            "early data needs session resumption, but `tls.resumption` is `off`",
            "set `tls.resumption: cache`",
        ),
        () => return None,
    };
    let place = member(&member(place, "tls"), "early_data_bytes");
    Some(Problem::new(place, "conflict", message).hint(hint))
}

/// Reports why a listener cannot have HTTP/3.
fn of_http3(place: &str, listener: &Value) -> Option<Problem> {
    listener.get("http3").filter(|http3| **http3 != Value::Null)?;
    let has = |field: &str| listener.get(field).is_some_and(|value| *value != Value::Null);
    let address = listener.get("address").and_then(Value::as_str).unwrap_or_default();
    let protocols = listener.get("tls").and_then(|tls| tls.get("protocols")).and_then(Value::as_array);
    let (message, hint) = match () {
        () if has("stream") => ("`stream` sessions do not use HTTP", "remove `http3` or `stream`"),
        () if address.starts_with("unix:") => (
            "HTTP/3 needs a UDP port, but this listener is a Unix socket",
            "write ip:port, [v6]:port or :port",
        ),
        () if !has("tls") => ("HTTP/3 needs TLS, but the listener has no `tls`", "add `tls`"),
        () if has("proxy_protocol") => {
            ("the PROXY protocol needs TCP, but HTTP/3 uses UDP", "give HTTP/3 a listener of its own")
        }
        () if protocols.is_some_and(|all| !all.iter().any(|version| version == "TLSv1.3")) => {
            ("HTTP/3 needs TLS 1.3, which `tls.protocols` does not list", "add `TLSv1.3` to `tls.protocols`")
        }
        () => return None,
    };
    Some(Problem::new(member(place, "http3"), "conflict", message).hint(hint))
}

/// Reports the fields of a listener that its `stream` does not support.
fn of_stream(place: &str, listener: &Value) -> Vec<Problem> {
    let is_written = |field: &str| listener.get(field).is_some_and(|value| *value != Value::Null);
    let mut found = Vec::new();
    let mut refuse = |field: &str, message: &str, hint: &str| {
        if is_written(field) {
            found.push(Problem::new(member(place, field), "conflict", message).hint(hint));
        }
    };
    match listener.get("stream").and_then(Value::as_str) {
        Some("tcp") => refuse(
            "tls",
            "a listener with `stream: tcp` does not interpret bytes",
            "write `stream: tls` for sessions that begin with TLS",
        ),
        Some("udp") => {
            let datagrams = "a listener with `stream: udp` forwards datagrams unchanged";
            refuse("tls", datagrams, "remove it: DTLS and QUIC end at the node");
            let no_header = "the PROXY protocol needs TCP, but the listener uses UDP";
            refuse("proxy_protocol", no_header, "remove it, or write `stream: tcp`");
            let no_backlog = "UDP has no pending connections";
            for (field, message) in [
                ("backlog", no_backlog),
                ("max_connections", "UDP has no connections"),
                ("max_connections_per_second", "UDP has no connections"),
            ] {
                refuse(field, message, "remove it; `limits.stream_udp_sessions_per_worker` bounds sessions");
            }
            let address = listener.get("address").and_then(Value::as_str).unwrap_or_default();
            if address.starts_with("unix:") {
                let message =
                    "a listener with `stream: udp` needs a UDP port, but this listener is a Unix socket";
                let hint = "write ip:port, [v6]:port or :port";
                found.push(Problem::new(member(place, "address"), "conflict", message).hint(hint));
            }
        }
        _ => {}
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn early_data_needs_resumed_sessions_of_tls_1_3() {
        let check = |listener: Value, resumption: &str, expected: bool| {
            let document = json!({ "listeners": [listener], "tls": { "resumption": resumption } });
            let found = of_document(document.as_object().expect("an object"));
            let places: Vec<&str> = found.iter().map(|problem| &*problem.pointer).collect();
            let all = ["listeners[0].tls.early_data_bytes"];
            assert_eq!(places, &all[usize::from(expected)..], "{document}");
        };
        check(json!({"address": ":1", "tls": {"early_data_bytes": 1}}), "tickets", true);
        check(json!({"address": ":1", "tls": {"early_data_bytes": 1}}), "off", false);
        check(json!({"address": ":1", "tls": {"early_data_bytes": 0}}), "off", true);
        check(json!({"address": ":1", "tls": {"early_data_bytes": 1}, "stream": "tls"}), "cache", false);
        let old = json!({"address": ":1", "tls": {"early_data_bytes": 1, "protocols": ["TLSv1.2"]}});
        check(old, "cache", false);
    }

    #[test]
    fn original_destinations_are_for_connections_over_tcp() {
        let check = |listener: Value, expected: Option<&str>| {
            let document = json!({ "listeners": [listener] });
            let found = of_document(document.as_object().expect("an object"));
            let messages: Vec<&str> = found.iter().map(|problem| &*problem.message).collect();
            assert_eq!(messages.len(), usize::from(expected.is_some()), "{messages:?} {document}");
            assert!(messages.iter().zip(expected).all(|(found, part)| found.contains(part)), "{messages:?}");
        };
        check(json!({"address": ":1", "stream": "tcp", "original_destination": true}), None);
        check(json!({"address": ":1", "stream": "tls", "original_destination": true}), None);
        check(json!({"address": ":1", "original_destination": false}), None);
        check(json!({"address": ":1", "original_destination": true}), None);
        check(json!({"address": ":1", "tls": true, "original_destination": true}), None);
        let quic = json!({"address": ":1", "tls": true, "http3": true, "original_destination": true});
        check(quic, Some("HTTP/3 needs UDP"));
        check(json!({"address": ":1", "stream": "udp", "original_destination": true}), Some("over TCP"));
        let unix = json!({"address": "unix:/a", "stream": "tcp", "original_destination": true});
        check(unix, Some("to a Unix socket"));
        let header =
            json!({"address": ":1", "stream": "tcp", "original_destination": true, "proxy_protocol": true});
        check(header, Some("PROXY protocol"));
    }

    #[test]
    fn fields_of_listeners_fit_their_streams() {
        let check = |listener: Value, expected: &[&str]| {
            let document = json!({ "listeners": [listener] });
            let found = of_document(document.as_object().expect("an object"));
            let places: Vec<&str> = found.iter().map(|problem| &*problem.pointer).collect();
            assert_eq!(places, expected, "{document}");
        };
        check(json!({"address": ":1", "stream": "tcp", "tls": true}), &["listeners[0].tls"]);
        check(json!({"address": ":1", "stream": "tls", "tls": {"certificates": []}}), &[]);
        check(json!({"address": ":1", "stream": "tcp"}), &[]);
        check(json!({"address": ":1", "tls": true}), &[]);
        check(json!(":1"), &[]);
        check(json!({"address": ":1", "stream": "udp"}), &[]);
        check(json!({"address": ":1", "stream": "udp", "tls": {}}), &["listeners[0].tls"]);
        let header = json!({"trusted": ["::1"]});
        check(
            json!({"address": ":1", "stream": "udp", "proxy_protocol": header, "backlog": 5, "max_connections": 1}),
            &["listeners[0].proxy_protocol", "listeners[0].backlog", "listeners[0].max_connections"],
        );
        check(json!({"address": "unix:/a", "tcp": {"keepalive_idle_s": 1}}), &["listeners[0].tcp"]);
        check(json!({"address": ":1", "stream": "udp", "tcp": {}}), &["listeners[0].tcp"]);
        check(json!({"address": ":1", "stream": "tls", "tcp": {"fast_open": 9}}), &[]);
        check(json!({"address": "unix:/a", "stream": "udp"}), &["listeners[0].address"]);
        check(json!({"address": "unix:/a", "stream": "tcp"}), &[]);
        check(json!({"address": ":1", "tls": {}, "http3": {}}), &[]);
        check(json!({"address": ":1", "tls": {"protocols": ["TLSv1.2", "TLSv1.3"]}, "http3": {}}), &[]);
        for listener in [
            json!({"address": ":1", "http3": {}}),
            json!({"address": "unix:/a", "tls": {}, "http3": {}}),
            json!({"address": ":1", "tls": {}, "http3": {}, "stream": "tls"}),
            json!({"address": ":1", "tls": {}, "http3": {}, "proxy_protocol": {"trusted": ["::1"]}}),
            json!({"address": ":1", "tls": {"protocols": ["TLSv1.2"]}, "http3": {}}),
        ] {
            check(listener, &["listeners[0].http3"]);
        }
    }
}
