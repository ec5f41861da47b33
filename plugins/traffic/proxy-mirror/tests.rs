//! The content of copies, and which requests have copies.

use serde_json::json;

use super::*;
use crate::testing::{Case, config_of};

fn config(conf: serde_json::Value) -> Config {
    config_of(conf)
}

#[test]
fn targets() {
    let check = |more: serde_json::Value, line: &str, rewritten: &str, expected: &str| {
        let conf = crate::testing::merged(json!({"host": "http://a"}), &more);
        let mut case = Case::new(&format!("GET {line} HTTP/1.1\nHost: h"));
        case.ctx.target = rewritten.as_bytes().to_vec();
        let got = asked(&config(conf.clone()).first, &case.ctx);
        assert_eq!(String::from_utf8(got).unwrap(), expected, "{conf} {line} {rewritten}");
    };
    check(json!({}), "/a%20b?c=%20d", "", "/a%20b?c=%20d");
    check(json!({}), "/a%3Fb", "", "/a%3Fb");
    check(json!({}), "/a%2Fb%2f%7e//c", "", "/a%2Fb%2f%7e//c");
    check(json!({}), "/a?b", "/c?d", "/c?d");
    let replaced = json!({"path": "/x"});
    check(replaced.clone(), "/a?b", "", "/x?b");
    check(replaced.clone(), "/a", "", "/x");
    // An argument that was hidden stays so.
    check(replaced, "/a?key=1&b", "/a?b", "/x?b");
    let prefixed = json!({"path": "/x", "path_concat_mode": "prefix"});
    check(prefixed.clone(), "/a?b", "", "/x/a?b");
    check(prefixed.clone(), "/a%2Fb?c", "", "/x/a%2Fb?c");
    // The path of this case is decoded, and not normalised.
    check(prefixed.clone(), "/a/%2E%2e/b%20c%2Fd?e", "", "/x/a/../b%20c/d?e");
    check(prefixed, "/a?b", "/c?d", "/x/c?d");
}

#[test]
fn fields_hidden_from_the_node_are_hidden_from_copies() {
    let check = |target: &str, rewritten: &str, expected: &str| {
        let mut case = Case::new("GET /a?key=1&b=2 HTTP/1.1\nHost: h");
        case.ctx.target = rewritten.as_bytes().to_vec();
        let got = without_hidden(target.as_bytes().to_vec(), &case.ctx);
        assert_eq!(String::from_utf8(got).unwrap(), expected, "{target} {rewritten}");
    };
    check("/x?key=1&b=2", "", "/x?key=1&b=2");
    check("/x?key=1&b=2", "/a?b=2", "/x?b=2");
    check("/x?key=1", "/a", "/x");
    // An argument that an earlier plugin added stays.
    check("/x?b=2&c=3", "/a?b=2", "/x?b=2&c=3");
    check("/x", "/a", "/x");
}

#[test]
fn shares() {
    let check = |ratio, bits, expected| assert_eq!(is_sampled(ratio, bits), expected, "{ratio} {bits:x}");
    check(1.0, u64::MAX, true);
    check(0.5, (1 << 63) - 1, true);
    check(0.5, 1 << 63, false);
    check(0.00001, 0, true);
}

#[test]
fn framing_fields_are_not_copied() {
    let conf = json!({"host": "http://a", "headers": {"X-Mirror": "of $host", "X-A": "new"}});
    let conf = crate::testing::merged(
        conf,
        &json!({
            "path_concat_mode": "replace", "sample_ratio": 1, "max_req_body_size": 1, "max_resp_body_size": 1,
            "ssl_verify": false
        }),
    );
    let node = Arc::new(sigma_plugin::Node::default());
    let build = Build::new("proxy-mirror", &conf, "/apisix/routes/1", &serde_json::Value::Null, &node);
    let mirror = Mirror::new(&build).unwrap();
    let case = Case::new(
        "POST / HTTP/1.1\nHost: h\nContent-Length: 3\nExpect: 100-continue\nConnection: close\nCDN-Loop: a\nX-A: old\nX-B: 1",
    );
    let headers = mirror.headers(&case.ctx);
    let shown: Vec<String> = headers
        .iter()
        .map(|(name, value)| format!("{}: {}", String::from_utf8_lossy(name), String::from_utf8_lossy(value)))
        .collect();
    assert_eq!(shown, ["X-B: 1", "X-Mirror: of h", "X-A: new"]);
    let call = mirror.call(0, b"/".to_vec(), &headers, &case.ctx);
    assert_eq!((&*call.host, &call.passes[..]), ("h", &b"a"[..]));
}
