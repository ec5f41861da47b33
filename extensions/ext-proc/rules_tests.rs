//! Tests of the changes of fields.

use serde_json::{Value, json};
use sigma_plugin::OwnedFields;
use sigma_plugin_kit::envoy::{BoolValue, HeaderValue};

use super::*;
use crate::testing::Case;

fn option(name: &str, value: &str) -> HeaderOption {
    let header = HeaderValue { key: name.into(), raw_value: value.into(), ..HeaderValue::default() };
    HeaderOption { header: Some(header), ..HeaderOption::default() }
}

fn set(name: &str, value: &str) -> HeaderMutation {
    HeaderMutation { set_headers: vec![option(name, value)], remove_headers: Vec::new() }
}

fn remove(name: &str) -> HeaderMutation {
    HeaderMutation { set_headers: Vec::new(), remove_headers: vec![name.into()] }
}

fn rules(rules: Value) -> MutationRules {
    let rules: MutationRules = serde_json::from_value(rules).unwrap();
    rules.check().unwrap();
    rules
}

fn apply(
    rules: &MutationRules,
    mutation: &HeaderMutation,
    place: ChangeTarget,
    ctx: &mut Context,
) -> Result<u64, Invalid> {
    let claims = Rc::default();
    let changes = Changes { rules, append_by_default: false, ignore_actions: false, claims: &claims };
    changes.apply(mutation, place, ctx, None)
}

fn request() -> Case {
    Case::new("GET /a?b HTTP/1.1\nHost: h\nA: 1\nContent-Length: 3")
}

#[test]
fn permitted_names() {
    let check = |given: Value, name: &str, expected: bool| {
        assert_eq!(rules(given.clone()).permit(name), expected, "{given} {name}");
    };
    for name in ["x-a", ":path", ":status", "cookie"] {
        check(json!({}), name, true);
        check(json!({"disallow_all": true}), name, false);
    }
    for name in ["host", ":authority", ":scheme", ":method"] {
        check(json!({}), name, false);
        check(json!({"allow_all_routing": true}), name, true);
        check(json!({"allow_expression": {"regex": ".*"}}), name, true);
    }
    check(json!({}), "x-envoy-a", false);
    check(json!({"allow_envoy": true}), "x-envoy-a", true);
    check(json!({"disallow_system": true}), ":path", false);
    check(json!({"disallow_system": true, "allow_all_routing": true}), "host", true);
    check(json!({"disallow_all": true, "allow_expression": {"regex": "x-a"}}), "x-a", true);
    check(json!({"disallow_all": true, "allow_expression": {"regex": "x-a"}}), "x-ab", false);
    let both = json!({"allow_expression": {"regex": "x-.*"}, "disallow_expression": {"regex": "X-A"}});
    check(both.clone(), "x-a", false);
    check(both, "x-b", true);
    for broken in ["(", "a)|(b"] {
        let broken: MutationRules =
            serde_json::from_value(json!({"allow_expression": {"regex": broken}})).unwrap();
        assert!(broken.check().unwrap_err().contains("mutation_rules.allow_expression"));
    }
}

#[test]
fn fields_of_a_request() {
    let check =
        |mutation: HeaderMutation, expected: Result<u64, &'static str>, name: &str, value: Option<&str>| {
            let mut case = request();
            let result = apply(&rules(json!({})), &mutation, ChangeTarget::Request, &mut case.ctx);
            assert_eq!(result, expected.map_err(Invalid), "{mutation:?}");
            assert_eq!(case.sent(name).as_deref(), value, "{mutation:?}");
        };
    let invalid = Err("the processor sets a field with an invalid name or value");
    check(set("X-New", "1"), Ok(0), "x-new", Some("1"));
    check(set("A", "2"), Ok(0), "a", Some("2"));
    check(remove("A"), Ok(0), "a", None);
    check(remove("Host"), Ok(1), "host", Some("h"));
    check(remove(":path"), Ok(1), "host", Some("h"));
    check(set("host", "x"), Ok(1), "host", Some("h"));
    // Framing stays with the gateway.
    check(set("content-length", "9"), Ok(1), "content-length", Some("3"));
    check(remove("content-length"), Ok(1), "content-length", Some("3"));
    check(set("transfer-encoding", "chunked"), Ok(1), "transfer-encoding", None);
    check(set("connection", "a"), Ok(1), "connection", None);
    check(set("upgrade", "h2c"), Ok(1), "upgrade", None);
    check(set("a b", "1"), invalid, "a", Some("1"));
    check(set("a", "1\r\nb: 2"), invalid, "a", Some("1"));
    check(set("", "1"), invalid, "a", Some("1"));
    check(set("x-empty", ""), Ok(0), "x-empty", None);
    check(set("a", ""), Ok(0), "a", None);
}

#[test]
fn actions_of_fields() {
    let check = |append: Option<bool>, action: i32, expected: [&str; 2]| {
        let mut option = option("a", "2");
        option.append = append.map(|value| BoolValue { value });
        option.append_action = action;
        let absent = HeaderOption {
            header: Some(HeaderValue { key: "n".into(), ..option.header.clone().unwrap() }),
            ..option.clone()
        };
        let mutation = HeaderMutation { set_headers: vec![option, absent], remove_headers: Vec::new() };
        let mut case = request();
        apply(&rules(json!({})), &mutation, ChangeTarget::Request, &mut case.ctx).unwrap();
        let all = |name: &[u8]| {
            let mine = case.ctx.request.headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
            mine.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).collect::<Vec<_>>().join(",")
        };
        assert_eq!([all(b"a"), all(b"n")], expected, "{append:?} {action}");
    };
    check(None, 0, ["2", "2"]);
    check(None, 1, ["1", "2"]);
    check(None, 2, ["2", "2"]);
    check(None, 3, ["2", ""]);
    check(Some(true), 0, ["1,2", "2"]);
    check(Some(false), 1, ["2", "2"]);
    let mut case = request();
    let unknown = HeaderOption { append_action: 9, ..option("a", "2") };
    let mutation = HeaderMutation { set_headers: vec![unknown], remove_headers: Vec::new() };
    assert!(apply(&rules(json!({})), &mutation, ChangeTarget::Request, &mut case.ctx).is_err());
}

#[test]
fn settings_for_actions() {
    let run = |append_by_default, ignore_actions, option: HeaderOption| {
        let (claims, rules, mut case) = (Rc::default(), rules(json!({})), request());
        let changes = Changes { rules: &rules, append_by_default, ignore_actions, claims: &claims };
        let mutation = HeaderMutation { set_headers: vec![option], remove_headers: Vec::new() };
        changes.apply(&mutation, ChangeTarget::Request, &mut case.ctx, None).unwrap();
        let headers = &case.ctx.request.headers;
        let all = headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"a"));
        all.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(run(true, false, option("a", "2")), ["1", "2"]);
    assert_eq!(run(false, true, HeaderOption { append_action: 1, ..option("a", "2") }), ["2"]);
    assert_eq!(run(false, true, option("a", "")), [""]);
    assert_eq!(run(false, false, HeaderOption { keep_empty_value: true, ..option("a", "") }), [""]);
}

#[test]
fn fields_of_other_plugins_stay() {
    let mut case = request();
    case.ctx.owned.push(std::sync::Arc::new(OwnedFields::new([OwnedField::sole("X-User")])));
    let (claims, rules) = (Rc::default(), rules(json!({})));
    let changes = Changes { rules: &rules, append_by_default: false, ignore_actions: false, claims: &claims };
    let mut apply = |mutation, place| changes.apply(&mutation, place, &mut case.ctx, None);
    assert_eq!(apply(set("x-user", "root"), ChangeTarget::Request), Ok(1));
    assert_eq!(apply(set("x_user", "root"), ChangeTarget::Request), Ok(1));
    assert_eq!(apply(remove("x-user"), ChangeTarget::Request), Ok(1));
    // The processor changes its own fields again, and fields of responses.
    assert_eq!(apply(set("x-own", "1"), ChangeTarget::Request), Ok(0));
    assert_eq!(apply(set("x-own", "2"), ChangeTarget::Request), Ok(0));
    assert_eq!(apply(set("x-user", "1"), ChangeTarget::Response), Ok(0));
    assert_eq!(case.sent("x-own").as_deref(), Some("2"));
    assert_eq!(case.sent("x-user"), None);
}

#[test]
fn pseudo_fields() {
    let all = json!({"allow_all_routing": true});
    let mut case = request();
    let mut apply = |name, value, place| {
        super::tests::apply(&rules(all.clone()), &set(name, value), place, &mut case.ctx)
    };
    assert_eq!(apply(":path", "/x?y", ChangeTarget::Request), Ok(0));
    assert_eq!(apply(":method", "PUT", ChangeTarget::Request), Ok(0));
    assert_eq!(apply(":authority", "x.y:1", ChangeTarget::Request), Ok(0));
    assert_eq!(apply(":method", "CONNECT", ChangeTarget::Request), Ok(1));
    assert_eq!(apply(":scheme", "https", ChangeTarget::Request), Ok(1));
    assert_eq!(apply(":status", "200", ChangeTarget::Request), Ok(1));
    assert_eq!(apply(":other", "x", ChangeTarget::Request), Ok(1));
    for path in ["x", "", "/a b", "/a#b", "/a/../b", "/\u{e9}"] {
        assert!(apply(":path", path, ChangeTarget::Request).is_err(), "{path}");
    }
    for (name, value) in [(":method", "A B"), (":authority", "a b"), ("host", "a/b")] {
        assert!(apply(name, value, ChangeTarget::Request).is_err(), "{name}");
    }
    assert_eq!((&case.ctx.target[..], case.ctx.request.method_token()), (&b"/x?y"[..], &b"PUT"[..]));
    assert_eq!(case.ctx.host.as_deref(), Some(&b"x.y:1"[..]));
}

#[test]
fn statuses_keep_the_framing() {
    let check = |before: u16, value: &str, expected: Result<u64, ()>, after: u16| {
        let mut case = request();
        case.respond(before, "");
        let result = apply(&rules(json!({})), &set(":status", value), ChangeTarget::Response, &mut case.ctx);
        assert_eq!((result.map_err(|_| ()), case.ctx.response.status), (expected, after), "{before} {value}");
    };
    check(200, "404", Ok(0), 404);
    check(200, "204", Ok(1), 200);
    check(304, "200", Ok(1), 304);
    check(200, "101", Err(()), 200);
    check(200, "x", Err(()), 200);
    check(200, "700", Err(()), 200);
}

#[test]
fn a_change_that_is_not_permitted_can_be_an_error() {
    let mut case = request();
    let strict = rules(json!({"disallow_is_error": true}));
    let result = apply(&strict, &set("host", "x"), ChangeTarget::Request, &mut case.ctx);
    assert_eq!(result, Err(Invalid("the processor changes a field that it may not change")));
    assert_eq!(apply(&strict, &set("x-a", "1"), ChangeTarget::Request, &mut case.ctx), Ok(0));
}

#[test]
fn trailers_are_changed_alone() {
    let (mut case, mut trailers) = (request(), Headers::default());
    trailers.append("a", b"9");
    let (claims, rules) = (Rc::default(), rules(json!({})));
    let changes = Changes { rules: &rules, append_by_default: false, ignore_actions: false, claims: &claims };
    let mutation = HeaderMutation { set_headers: vec![option("b", "2")], remove_headers: vec!["a".into()] };
    changes.apply(&mutation, ChangeTarget::RequestTrailers, &mut case.ctx, Some(&mut trailers)).unwrap();
    assert_eq!(trailers.find(b"b"), Some(&b"2"[..]));
    assert_eq!(trailers.len(), 1);
    assert_eq!(case.sent("a").as_deref(), Some("1"));
}
