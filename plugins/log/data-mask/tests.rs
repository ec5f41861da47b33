//! Tests of `data-mask`: masked data, bodies that are not logged, and that no marked value gets through.

use proptest::prelude::*;
use sigma_schema::expr::{VarName, VarValue, Variables};

use super::*;
use crate::testing::{Case, assert_refusal, entry};

const MARK: &str = "MARKED";

fn masked(rules: &Value, head: &str, pieces: &[&[u8]]) -> Case {
    masked_with(&json!({ "request": rules }), head, pieces)
}

/// A request whose body passes in these pieces, after the masks.
fn masked_with(conf: &Value, head: &str, pieces: &[&[u8]]) -> Case {
    let entry = entry("data-mask", conf.clone()).unwrap();
    let mut case = Case::new(head);
    assert!(case.run(&entry, Phase::Access).is_none());
    if let Some(copy) = &case.ctx.request_copy {
        pieces.iter().for_each(|piece| copy.see(piece));
    }
    case.log(&entry);
    case
}

fn variable(case: &Case, name: &str) -> String {
    let value = case.ctx.get(&VarName::parse(name));
    match value {
        Some(VarValue::Text(text)) => String::from_utf8_lossy(&text).into_owned(),
        _ => String::new(),
    }
}

fn logged(case: &Case) -> Option<String> {
    case.ctx.seen_request_body(1 << 20).map(|body| String::from_utf8(body).unwrap())
}

#[test]
fn queries() {
    let rules = json!([
        {"type": "query", "name": "token", "action": "remove"},
        {"type": "query", "name": "card", "action": "regex", "regex": "^(\\d{4})\\d+", "value": "$1-****"},
        {"type": "query", "name": "pass", "action": "replace", "value": "* *"},
    ]);
    let check = |query: &str, expected: &str| {
        let case = masked(&rules, &format!("GET /a%20b{query} HTTP/1.1\nHost: h"), &[]);
        assert_eq!(variable(&case, "request_uri"), format!("/a b{expected}"), "{query}");
        assert_eq!(variable(&case, "real_request_uri"), format!("/a%20b{expected}"));
        assert_eq!(variable(&case, "request"), format!("GET /a%20b{expected} HTTP/1.1"));
        assert_eq!(case.target(), format!("/a%20b{expected}"));
    };
    check("?a=%2f&b", "?a=%2f&b");
    check("?token=1&to%6ben=2&token", "");
    check("?a=1&token=1", "?a=1");
    check("?card=12345678&card=x", "?card=1234-****&card=x");
    check("?pass&p%61ss=2&b=%ff", "?pass=*%20*&pass=*%20*&b=%FF");
    check("", "");
    let mut case = masked(&rules, "GET /?token=1&a=2 HTTP/1.1\nHost: h", &[]);
    assert_eq!((variable(&case, "args"), variable(&case, "arg_token")), ("a=2".into(), String::new()));
    case.ctx.target = b"/other?token=1".to_vec();
    case.log(&entry("data-mask", json!({ "request": rules })).unwrap());
    assert_eq!(case.target(), "/other");
}

#[test]
fn fields() {
    let rules = json!([
        {"type": "header", "name": "X-Token", "action": "remove"},
        {"type": "header", "name": "cookie", "action": "regex", "regex": "sid=[^;]*", "value": "sid=*"},
        {"type": "header", "name": "X-Card", "action": "replace", "value": "*"},
    ]);
    let head = "GET / HTTP/1.1\nHost: h\nx-token: 1\nX_Token: 2\nCookie: a=b; sid=MARKED\nX-Card: 1\nX-Card: 2\nX-Other: 3";
    let case = masked(&rules, head, &[]);
    assert_eq!(variable(&case, "http_x_token"), "");
    assert_eq!(variable(&case, "http_cookie"), "a=b; sid=*");
    assert_eq!(variable(&case, "cookie_sid"), "*");
    assert_eq!(variable(&case, "http_x_card"), "*, *");
    assert_eq!(variable(&case, "http_x_other"), "3");
    assert!(!case.ctx.request.headers.iter().any(|(name, _)| name == b"X_Token"));
}

#[test]
fn bodies_of_json() {
    let rules = json!([
        {"type": "body", "body_format": "json", "name": "$.password", "action": "remove"},
        {"type": "body", "body_format": "json", "name": "$..card", "action": "regex", "regex": "\\d{4}$", "value": "****"},
        {"type": "body", "body_format": "json", "name": "$.users[*].name", "action": "replace", "value": "x"},
    ]);
    let check = |head: &str, body: &str, expected: Option<&str>| {
        let case = masked(&rules, &format!("POST / HTTP/1.1\nHost: h\n{head}"), &[body.as_bytes()]);
        assert_eq!(logged(&case).as_deref(), expected, "{body}");
    };
    check("", r#"{"a": 1, "password": "MARKED"}"#, Some(r#"{"a":1}"#));
    check("", r#"{"password": "MARKED", "a": 1, "password": {"x": "MARKED"}}"#, Some(r#"{"a":1}"#));
    check("", r#"{"p\u0061ssword": "MARKED"}"#, Some("{}"));
    check(
        "",
        r#"{"card": "12345678", "b": [{"card": 12345678}, {"card": ["55555555"]}]}"#,
        Some(r#"{"card":"1234****","b":[{"card":"1234****"},{"card":["5555****"]}]}"#),
    );
    check(
        "",
        r#"{"users": [{"name": 1}, {"name": {"a": 2}}, 3]}"#,
        Some(r#"{"users":[{"name":"x"},{"name":"x"},3]}"#),
    );
    check("", r#"{"password": "MARKED""#, None);
    check("", "password=MARKED", None);
    check("Content-Encoding: gzip", "\u{1f}\u{8b}", None);
    check("Content-Type: application/x-www-form-urlencoded\nContent-Length: 15", "password=MARKED", None);
    check("", "", None);
    let nested = format!("{}{}", "[".repeat(200), "]".repeat(200));
    check("", &nested, None);
    let small = json!({"request": rules, "max_body_size": 8});
    assert_eq!(logged(&masked_with(&small, "POST / HTTP/1.1\nHost: h", &[b"{\"a\": ", b"12}"])), None);
    assert_eq!(
        logged(&masked_with(&small, "POST / HTTP/1.1\nHost: h", &[b"{\"a\": ", b"1}"])).as_deref(),
        Some(r#"{"a":1}"#)
    );
}

#[test]
fn forms() {
    let rules = json!([
        {"type": "body", "body_format": "urlencoded", "name": "pass", "action": "replace", "value": "*"},
        {"type": "body", "body_format": "urlencoded", "name": "card", "action": "remove"},
    ]);
    let check = |more: Value, length: usize, body: &str, expected: Option<&str>| {
        let conf = crate::testing::merged(json!({ "request": rules }), &more);
        let head = "Content-Type: Application/x-www-form-urlencoded; charset=utf-8";
        let head = format!("POST / HTTP/1.1\nHost: h\n{head}\nContent-Length: {length}");
        let case = masked_with(&conf, &head, &[body.as_bytes()]);
        assert_eq!(logged(&case).as_deref(), expected, "{body}");
    };
    check(json!({}), 20, "a=1&pass=2&card=3&b=", Some("a=1&pass=*&b="));
    check(json!({}), 14, "a=%20&b=+&c=~x", Some("a=%20&b=+&c=~x"));
    check(json!({}), 9, "p%61ss=12", Some("pass=*"));
    check(json!({}), 99, "pass=12", None);
    check(json!({"max_req_post_args": 1}), 14, "a=1&b=2&pass=3", Some("a=1"));
    check(json!({"max_req_post_args": 0}), 10, "a=1&pass=3", Some("a=1&pass=*"));
}

#[test]
fn a_body_without_rules_stays() {
    let rules = json!([{"type": "query", "name": "a", "action": "remove"}]);
    let mut case = masked(&rules, "POST /?a=1 HTTP/1.1\nHost: h", &[]);
    assert!(case.ctx.request_copy.is_none());
    case.ctx.body = Some(b"not json".to_vec());
    case.log(&entry("data-mask", json!({ "request": rules })).unwrap());
    assert_eq!(logged(&case).as_deref(), Some("not json"));
}

#[test]
fn bad_configurations_are_refused() {
    let check =
        |rule: Value, expected: &str| assert_refusal("data-mask", &json!({ "request": [rule] }), expected);
    check(json!({"type": "query", "name": "a", "action": "remove"}), "");
    check(json!({"type": "path", "name": "a", "action": "remove"}), "matches none of the enum values");
    check(json!({"type": "body", "name": "a", "action": "remove"}), "then clause did not match");
    check(json!({"type": "query", "name": "a", "action": "replace"}), "then clause did not match");
    check(json!({"type": "query", "name": "a", "action": "regex", "value": ""}), "then clause did not match");
    check(
        json!({"type": "query", "name": "a", "action": "regex", "regex": "(", "value": ""}),
        "request[0]: ",
    );
    check(
        json!({"type": "body", "body_format": "json", "name": "$.a[?(@.x)]", "action": "remove"}),
        "is not a supported JSONPath",
    );
}

/// JSON in which each value of a member `secret` is marked, at any place.
fn document() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![Just(json!(1)), Just(json!("text")), Just(json!(null)), Just(json!("é\"\\"))];
    leaf.prop_recursive(5, 40, 5, |inner| {
        let name = prop_oneof![Just("a".to_owned()), Just("b".to_owned())];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            (prop::collection::vec((name, inner), 0..4), prop::bool::ANY).prop_map(|(members, is_marked)| {
                let mut members: serde_json::Map<String, Value> = members.into_iter().collect();
                if is_marked {
                    members.insert("secret".to_owned(), json!([MARK, { "a": MARK }]));
                }
                Value::Object(members)
            }),
        ]
    })
}

proptest! {
    /// However a body comes in, and wherever it is cut off, no marked value is logged.
    #[test]
    fn no_marked_value_is_logged(
        value in document(),
        cuts in prop::collection::vec(0..400_usize, 0..8),
        end in prop::option::of(0..400_usize),
        limit in 1..500_usize,
        remove in prop::bool::ANY,
        spaced in prop::bool::ANY,
    ) {
        let action = if remove { "remove" } else { "replace" };
        let rule = json!({"type": "body", "body_format": "json", "name": "$..secret", "action": action, "value": "*"});
        let text = if spaced { serde_json::to_string_pretty(&value).unwrap() } else { value.to_string() };
        let text = &text.as_bytes()[..end.unwrap_or(text.len()).min(text.len())];
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        let conf = json!({"request": [rule], "max_body_size": limit});
        let shown = logged(&masked_with(&conf, "POST / HTTP/1.1\nHost: h", &pieces));
        prop_assert!(!shown.as_deref().unwrap_or_default().contains(MARK), "{shown:?}");
        // The mask does not hide everything: a whole body within the limit is shown.
        if end.is_none() && text.len() <= limit {
            prop_assert!(shown.is_some());
        }
    }

    /// The same for arguments, in any spelling of their name.
    #[test]
    fn no_marked_argument_is_logged(
        names in prop::collection::vec(prop_oneof![Just("secret"), Just("s%65cret"), Just("%73ecret"), Just("a"), Just("")], 0..8),
    ) {
        let query = names.iter().map(|name| match *name {
            "a" | "" => format!("{name}=1"),
            secret => format!("{secret}={MARK}"),
        });
        let query = query.collect::<Vec<_>>().join("&");
        let rules = json!([{"type": "query", "name": "secret", "action": "replace", "value": "*"}]);
        let case = masked(&rules, &format!("GET /?{query} HTTP/1.1\nHost: h"), &[]);
        for name in ["request_uri", "real_request_uri", "args", "request", "arg_secret"] {
            prop_assert!(!variable(&case, name).contains(MARK), "{name}: {query}");
        }
        prop_assert!(!case.target().contains(MARK));
    }

    /// The same for the fields of a form, however it comes in and wherever it is cut off.
    #[test]
    fn no_marked_field_of_a_form_is_logged(
        names in prop::collection::vec(prop_oneof![Just("secret"), Just("s%65cret"), Just("%73ecret"), Just("a"), Just("")], 0..8),
        cuts in prop::collection::vec(0..200_usize, 0..8),
        end in prop::option::of(0..200_usize),
        limit in 1..250_usize,
        remove in prop::bool::ANY,
    ) {
        let pairs = names.iter().map(|name| match *name {
            "a" | "" => format!("{name}=1"),
            secret => format!("{secret}={MARK}"),
        });
        let text = pairs.collect::<Vec<_>>().join("&");
        let text = &text.as_bytes()[..end.unwrap_or(text.len()).min(text.len())];
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        let action = if remove { "remove" } else { "replace" };
        let rule = json!({"type": "body", "body_format": "urlencoded", "name": "secret", "action": action, "value": "*"});
        let conf = json!({"request": [rule], "max_body_size": limit});
        let head = "POST / HTTP/1.1\nHost: h\nContent-Type: application/x-www-form-urlencoded";
        let shown = logged(&masked_with(&conf, head, &pieces));
        prop_assert!(!shown.as_deref().unwrap_or_default().contains(MARK), "{shown:?}");
    }

    /// The same for header fields, with any neighbours and any spelling of their names.
    #[test]
    fn no_marked_header_field_is_logged(
        names in prop::collection::vec(prop_oneof![Just("X-Secret"), Just("x-secret"), Just("X-SECRET"), Just("X-A")], 0..6),
        replace in prop::bool::ANY,
    ) {
        let fields = names.iter().map(|name| match *name {
            "X-A" => "\nX-A: 1".to_owned(),
            secret => format!("\n{secret}: {MARK}"),
        });
        let head = format!("GET / HTTP/1.1\nHost: h{}", fields.collect::<String>());
        let action = if replace { "replace" } else { "remove" };
        let case = masked(&json!([{"type": "header", "name": "X-Secret", "action": action, "value": "*"}]), &head, &[]);
        prop_assert!(!variable(&case, "http_x_secret").contains(MARK));
    }
}
