//! Rules for HTTP/3 to nodes: options that contradict each other.

use serde_json::Value;

use super::Object;
use sigma_schema::problem::Problem;

/// Returns the contradictions of an upstream with this `tls`.
pub(crate) fn rules(upstream: &Object, tls: &Object) -> Vec<Problem> {
    let problem =
        |place: &str, message: &str, hint: &'static str| Problem::new(place, "conflict", message).hint(hint);
    let mut found = Vec::new();
    let offered = tls.get("alpn").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let at = offered.iter().position(|name| name == "h3");
    let learns =
        ["alt_svc", "https_records"].into_iter().filter(|key| tls.get(*key) == Some(&Value::Bool(true)));
    let learns: Vec<&str> = learns.collect();
    let place = match (at, learns.first()) {
        (Some(_), _) => "tls.alpn".to_owned(),
        (None, Some(key)) => format!("tls.{key}"),
        (None, None) => return found,
    };
    if at.is_some_and(|at| at > 0) {
        found.push(problem("tls.alpn", "`h3` is tried before TCP", "write `h3` first"));
    }
    for key in learns {
        if at.is_some() {
            let message =
                format!("`{key}` has no effect with `h3` in `alpn`: the gateway already tries HTTP/3");
            found.push(problem(&format!("tls.{key}"), &message, "remove one of them"));
        } else if tls.get("verify") != Some(&Value::Bool(true)) {
            let message = format!(
                "`{key}` needs `verify: true`: only the certificate shows that the announced port is the node's"
            );
            found.push(problem(&format!("tls.{key}"), &message, "write `verify: true`"));
        }
    }
    let scheme = upstream.get("scheme").and_then(Value::as_str).unwrap_or("http");
    // Cleartext schemes get a warning about the whole of `tls`.
    if !matches!(scheme, "https" | "grpcs" | "http" | "grpc") {
        let message = format!("`scheme: {scheme}` does not support HTTP/3");
        found.push(problem(&place, &message, "write `scheme: https` or `grpcs`, or remove it"));
    }
    if upstream.contains_key("proxy_protocol") {
        let message = "HTTP/3 cannot carry the PROXY protocol";
        found.push(problem(&place, message, "remove one of them"));
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn contradictions_are_refused() {
        let check = |upstream: Value, want: &[&str]| {
            let upstream = upstream.as_object().expect("an object");
            let found = rules(upstream, upstream["tls"].as_object().expect("an object"));
            let places: Vec<&str> = found.iter().map(|problem| problem.pointer.as_str()).collect();
            assert_eq!(places, want, "{upstream:?}");
        };
        check(json!({ "scheme": "https", "tls": {} }), &[]);
        for alpn in [json!(["h3", "h2", "http/1.1"]), json!(["h3"]), json!(["h2", "http/1.1"])] {
            check(json!({ "scheme": "https", "tls": { "alpn": alpn } }), &[]);
        }
        check(json!({ "scheme": "grpcs", "tls": { "alpn": ["h3", "h2"] } }), &[]);
        check(json!({ "scheme": "https", "tls": { "alt_svc": true, "verify": true } }), &[]);
        check(json!({ "scheme": "https", "tls": { "https_records": true, "verify": true } }), &[]);
        check(json!({ "scheme": "https", "tls": { "https_records": true } }), &["tls.https_records"]);
        let of_dns = json!({ "scheme": "https", "tls": { "alpn": ["h3"], "https_records": true } });
        check(of_dns, &["tls.https_records"]);
        let of_dns = json!({ "scheme": "tls", "tls": { "verify": true, "https_records": true } });
        check(of_dns, &["tls.https_records"]);
        check(json!({ "scheme": "https", "tls": { "alpn": ["h2", "h3"] } }), &["tls.alpn"]);
        check(json!({ "scheme": "https", "tls": { "alt_svc": true } }), &["tls.alt_svc"]);
        let both = json!({ "alpn": ["h3", "h2"], "alt_svc": true, "verify": true });
        check(json!({ "scheme": "https", "tls": both }), &["tls.alt_svc"]);
        check(json!({ "scheme": "tls", "tls": { "alpn": ["h3"] } }), &["tls.alpn"]);
        let proxied = json!({ "scheme": "https", "proxy_protocol": "v2", "tls": { "alpn": ["h3"] } });
        check(proxied, &["tls.alpn"]);
    }
}
