//! Comparison of two responses to the same request.

use std::collections::BTreeMap;

use super::Probe;
use super::response::Response;

/// Response fields that are not compared: they frame the message or differ from moment to moment.
const IGNORED: [&str; 22] = [
    "date",
    "server",
    "connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
    "etag",
    "accept-ranges",
    "via",
    "alt-svc",
    "age",
    "x-request-id",
    "traceparent",
    "x-envoy-upstream-service-time",
    "x-apisix-upstream-status",
    "proxy-connection",
    "trailer",
    "location",
    "set-cookie",
    "last-modified",
    "expires",
    "server-timing",
];

/// Statuses of a gateway that cannot reach a node: each program has its own choice.
const FAULTS: [u16; 3] = [500, 502, 503];

/// A difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// `status`, `location`, `body`, `cookie NAME`, or the name of a field.
    pub field: String,
    /// The left response's value.
    pub left: Option<String>,
    /// The right response's value.
    pub right: Option<String>,
}

/// Compares two responses. `authorities` are `host:port` of the two servers.
#[must_use]
pub fn differences(
    probe: &Probe,
    left: &Response,
    right: &Response,
    authorities: [&str; 2],
) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut add = |field: &str, left: Option<String>, right: Option<String>| {
        if left != right {
            found.push(Difference { field: field.to_owned(), left, right });
        }
    };
    let word =
        |answer: &Response| Some(answer.status.map_or("closed".to_owned(), |status| status.to_string()));
    let is_fault = |answer: &Response| answer.status.is_some_and(|status| FAULTS.contains(&status));
    if is_fault(left) && is_fault(right) {
        return found;
    }
    add("status", word(left), word(right));
    let location = |answer: &Response, authority: &str| {
        answer.field("location").map(|value| resolved(&value, probe, authority))
    };
    add("location", location(left, authorities[0]), location(right, authorities[1]));
    let (one, two) = (cookies(left), cookies(right));
    for name in one.keys().chain(two.keys().filter(|name| !one.contains_key(*name))) {
        add(&format!("cookie {name}"), one.get(name).cloned(), two.get(name).cloned());
    }
    // The bodies of a gateway's own errors and redirects have their own texts.
    let has_body = left.status.is_some_and(|status| status < 300);
    if has_body && left.status == right.status {
        let text =
            |answer: &Response| Some(String::from_utf8_lossy(&answer.body).chars().take(200).collect());
        if left.body != right.body {
            add("body", text(left), text(right));
        }
    }
    let mut names: Vec<&String> = left.fields.iter().chain(&right.fields).map(|(name, _)| name).collect();
    names.sort_unstable();
    names.dedup();
    for name in names.into_iter().filter(|name| !IGNORED.contains(&name.as_str())) {
        if !has_body && name == "content-type" {
            continue;
        }
        let value = |answer: &Response| answer.field(name).map(|value| value.replace("; ", ";"));
        add(name, value(left), value(right));
    }
    found
}

/// A location as a browser reads it, without the server's own port.
fn resolved(location: &str, probe: &Probe, authority: &str) -> String {
    let host = if probe.host.is_empty() { authority } else { probe.host.as_str() };
    let whole = match location.starts_with('/') && !location.starts_with("//") {
        true => format!("http://{host}{location}"),
        false => location.to_owned(),
    };
    let port = authority.rsplit(':').next().unwrap_or_default();
    whole.replace(&format!(":{port}/"), "/").trim_end_matches(&format!(":{port}")).to_owned()
}

/// Cookies with their attributes, without values and dates.
fn cookies(answer: &Response) -> BTreeMap<String, String> {
    let lines = answer.fields.iter().filter(|(name, _)| name == "set-cookie");
    lines
        .map(|(_, value)| {
            let mut parts = value.split(';').map(str::trim);
            let name = parts.next().and_then(|first| first.split('=').next()).unwrap_or_default().to_owned();
            let mut attributes: Vec<String> = parts
                .map(str::to_ascii_lowercase)
                .map(|part| if part.starts_with("expires") { "expires".to_owned() } else { part })
                .collect();
            attributes.sort_unstable();
            (name, attributes.join("; "))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> Response {
        Response::parse(text.replace('\n', "\r\n").as_bytes(), false)
    }

    #[test]
    fn responses_are_compared_by_their_meaning() {
        let probe = Probe::get("p", "a.test", "/x");
        let check = |one: &str, two: &str, expected: &[&str]| {
            let found = differences(&probe, &answer(one), &answer(two), ["127.0.0.1:80", "127.0.0.1:81"]);
            let fields: Vec<&str> = found.iter().map(|it| it.field.as_str()).collect();
            assert_eq!(fields, expected, "{one} {two}");
        };
        check("HTTP/1.1 200 OK\nDate: a\n\nx", "HTTP/1.1 200 OK\nDate: b\n\nx", &[]);
        check("HTTP/1.1 200 OK\n\nx", "HTTP/1.1 404 No\n\ny", &["status"]);
        check("HTTP/1.1 200 OK\nX-A: 1\n\nx", "HTTP/1.1 200 OK\n\ny", &["body", "x-a"]);
        let moved = "HTTP/1.1 301 M\nLocation: ";
        check(&format!("{moved}/y\n\n"), &format!("{moved}http://a.test/y\n\n"), &[]);
        check(&format!("{moved}http://a.test:80/y\n\n"), &format!("{moved}http://a.test:81/y\n\n"), &[]);
        check(&format!("{moved}/y\n\n"), &format!("{moved}/z\n\n"), &["location"]);
        let cookie = "HTTP/1.1 200 OK\nSet-Cookie: a=";
        check(&format!("{cookie}1; Path=/\n\n"), &format!("{cookie}2; path=/\n\n"), &[]);
        check(&format!("{cookie}1\n\n"), &format!("{cookie}2; HttpOnly\n\n"), &["cookie a"]);
        check("HTTP/1.1 502 B\n\n", "HTTP/1.1 503 S\n\n", &[]);
        check("", "HTTP/1.1 200 OK\n\n", &["status"]);
    }
}
