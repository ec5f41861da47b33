//! `tls: auto`: adds an ssl of type acme for each host of a route without an ssl.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Map, Value, json};

use sigma_schema::id::Id;

/// Suffixes of names that no public authority certifies (RFC 6761, RFC 6762, RFC 7686, RFC 9476).
const NOBODYS: [&str; 6] = ["localhost", "local", "internal", "invalid", "onion", "alt"];

/// Maximum length of a name (RFC 1035 §2.3.4), and of one label.
const NAME_MAX: usize = 253;
const LABEL_MAX: usize = 63;

/// Adds the ssls. Returns the hosts for which no certificate can be ordered automatically.
pub(crate) fn derive(root: &mut Map<String, Value>) -> Vec<String> {
    let is_auto = |listener: &Value| listener["tls"]["auto"] == true;
    if !root.get("listeners").and_then(Value::as_array).is_some_and(|all| all.iter().any(is_auto)) {
        return Vec::new();
    }
    let shown: BTreeSet<String> = enabled(root, "ssls")
        .filter(|ssl| ssl.get("type").and_then(Value::as_str) != Some("client"))
        .flat_map(|ssl| texts(ssl, "sni", "snis"))
        .collect();
    let hosts: BTreeSet<String> = ["routes", "services"]
        .into_iter()
        .flat_map(|section| enabled(root, section))
        .flat_map(|item| texts(item, "host", "hosts"))
        .filter(|host| !is_covered(&shown, host))
        .collect();
    let (ordered, left): (Vec<String>, Vec<String>) = hosts.into_iter().partition(|host| is_orderable(host));
    if ordered.is_empty() {
        return left;
    }
    let ssl = |host: String| json!({ "id": format!("auto-{host}"), "type": "acme", "snis": [host] });
    // The schema reports a section that is not a list.
    if let Some(ssls) = root.entry("ssls").or_insert_with(|| json!([])).as_array_mut() {
        ssls.extend(ordered.into_iter().map(ssl));
    }
    left
}

/// Returns the enabled items of a section.
fn enabled<'r>(root: &'r Map<String, Value>, section: &str) -> impl Iterator<Item = &'r Value> {
    let items = root.get(section).and_then(Value::as_array).into_iter().flatten();
    items.filter(|item| item.get("status").and_then(Value::as_i64) != Some(0))
}

/// Returns the texts of two fields in the form for name comparison.
pub(super) fn texts<'i>(item: &'i Value, one: &str, several: &str) -> impl Iterator<Item = String> + use<'i> {
    let several = item.get(several).and_then(Value::as_array).into_iter().flatten();
    let all = item.get(one).into_iter().chain(several).filter_map(Value::as_str);
    all.map(|name| name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase())
}

fn is_covered(shown: &BTreeSet<String>, host: &str) -> bool {
    let wildcard = || host.split_once('.').is_some_and(|(_, rest)| shown.contains(&format!("*.{rest}")));
    shown.contains(host) || wildcard() || shown.contains("*")
}

/// Returns whether a public authority can certify a host, and its ssl can have an id.
fn is_orderable(host: &str) -> bool {
    let end = host.rsplit_once('.').map(|(_, end)| end);
    is_dns_name(host)
        && end.is_some_and(|end| !NOBODYS.contains(&end))
        && format!("auto-{host}").parse::<Id>().is_ok()
}

/// Returns whether a text is a host name without a wildcard (RFC 1123 §2.1), and not an address.
pub(crate) fn is_dns_name(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=LABEL_MAX).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_number = |label: &str| label.bytes().all(|b| b.is_ascii_digit());
    name.len() <= NAME_MAX
        && name.split('.').all(is_label)
        // Some address notations have their own parsers (`1.2`, `0x7f.1`), so the last label must be a word.
        && !name.rsplit('.').next().is_some_and(|end| is_number(end) || end.starts_with("0x"))
        && name.parse::<IpAddr>().is_err()
}

/// Returns whether a text is the name of a record or of a key: labels that may have underscores (RFC 8552).
pub(super) fn is_record_name(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=LABEL_MAX).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    name.len() <= NAME_MAX && name.strip_suffix('.').unwrap_or(name).split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinguished_from_addresses_and_odd_texts() {
        let check = |name: &str, expected: (bool, bool)| {
            assert_eq!((is_dns_name(name), is_orderable(name)), expected, "{name:?}");
        };
        check("a.test", (true, true));
        check("xn--bcher-kva.example.com", (true, true));
        check("intranet", (true, false));
        check("a.localhost", (true, false));
        check("printer.local", (true, false));
        check(&format!("{}.test", "a".repeat(60)), (true, false));
        for odd in
            ["", ".", "a..b", "-a.test", "a-.test", "*.a.test", "*", "a_b.test", "a b.test", "a.test/x"]
        {
            check(odd, (false, false));
        }
        for address in ["127.0.0.1", "::1", "[::1]", "1.2", "0x7f.0x1", "a.0x1", "10.0.0.1."] {
            check(address, (false, false));
        }
        check(&format!("{}.test", "a".repeat(64)), (false, false));
        check(
            &["a".repeat(50), "b".repeat(50), "c".repeat(50), "d".repeat(50), "e".repeat(50)].join("."),
            (false, false),
        );
    }

    #[test]
    fn each_host_without_an_ssl_gets_one() {
        let check = |mut root: Value, expected: (&[&str], &[&str])| {
            let root = root.as_object_mut().unwrap();
            let left = derive(root);
            let ssls = root.get("ssls").and_then(Value::as_array).into_iter().flatten();
            let made: Vec<&str> =
                ssls.filter(|ssl| ssl["type"] == "acme").map(|ssl| ssl["id"].as_str().unwrap()).collect();
            assert_eq!((&made[..], &left.iter().map(String::as_str).collect::<Vec<_>>()[..]), expected);
        };
        let routes = json!([
            {"host": "B.test."}, {"hosts": ["a.test", "*.w.test"]}, {"host": "off.test", "status": 0},
            {"host": "has.one.test"}, {"host": "10.0.0.1"}, {"uri": "/"},
        ]);
        let services = json!([{"hosts": ["s.test", "b.test"]}]);
        let ssls = json!([
            {"id": "1", "sni": "*.one.test", "cert": "", "key": ""},
            {"id": "2", "sni": "s.test", "type": "client"},
        ]);
        let listeners = |tls: Value| json!([{"address": ":1"}, {"address": ":2", "tls": tls}]);
        let whole =
            |tls| json!({"listeners": listeners(tls), "routes": routes, "services": services, "ssls": ssls});
        check(
            whole(json!({"auto": true})),
            (&["auto-a.test", "auto-b.test", "auto-s.test"], &["*.w.test", "10.0.0.1"]),
        );
        check(whole(json!({})), (&[], &[]));
        check(json!({"listeners": listeners(json!({"auto": true})), "ssls": 7}), (&[], &[]));
    }
}
