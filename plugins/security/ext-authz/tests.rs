//! Checks of an authoriser's responses, and the results for requests.

use std::sync::Arc;

use serde_json::{Value, json};
use sigma_http::Headers;
use sigma_plugin::outbound::ServiceResponse;
use sigma_plugin::{Build, Node};
use sigma_plugin_kit::envoy::{
    BoolValue, HeaderOption, HeaderValue, Kind, ListValue, Struct, Value as Metadatum,
};
use sigma_schema::expr::{VarName, Variables};

use super::ExtAuthz;
use super::messages::{
    CheckResponse, DeniedHttpResponse, HttpStatus, OkHttpResponse, QueryParameter, Status,
};
use super::verdict::{self, Verdict, framed};
use crate::shared::inquiry::told_by;
use crate::testing::{Case, refusal, summary, warned};

fn status(code: i32) -> Option<Status> {
    Some(Status { code })
}

fn field(name: &str, value: &str, append: Option<bool>, append_action: i32) -> HeaderOption {
    let header = HeaderValue { key: name.to_owned(), value: value.to_owned(), raw_value: Vec::new() };
    HeaderOption {
        header: Some(header),
        append: append.map(|value| BoolValue { value }),
        append_action,
        keep_empty_value: false,
    }
}

/// A response as it comes: trailers with the status of the call.
fn answer(response: &CheckResponse) -> ServiceResponse {
    let mut trailers = Headers::default();
    trailers.append("grpc-status", b"0");
    ServiceResponse { status: 200, headers: Headers::default(), body: framed(response), trailers }
}

fn ok(ok: OkHttpResponse) -> ServiceResponse {
    answer(&CheckResponse { status: status(0), ok_response: Some(ok), ..CheckResponse::default() })
}

fn denied(denied: DeniedHttpResponse) -> ServiceResponse {
    answer(&CheckResponse { status: status(7), denied_response: Some(denied), ..CheckResponse::default() })
}

fn told(answer: &ServiceResponse) -> String {
    match verdict::of(answer) {
        Ok(Verdict::Pass(_)) => "passed".to_owned(),
        Ok(Verdict::Refuse(reply)) => summary(Some(&reply)),
        Ok(Verdict::None(_)) => unreachable!("an answer that is read decides"),
        Err(reason) => format!("none: {reason}"),
    }
}

#[test]
fn decisions_that_are_believed() {
    let check = |answer: ServiceResponse, expected: &str| assert_eq!(told(&answer), expected);
    let bare = |code| answer(&CheckResponse { status: status(code), ..CheckResponse::default() });
    check(bare(0), "passed");
    check(bare(7), "403");
    check(ok(OkHttpResponse::default()), "passed");
    check(denied(DeniedHttpResponse::default()), "403");
    let page = |code, body: &str| DeniedHttpResponse {
        status: Some(HttpStatus { code }),
        body: body.to_owned(),
        ..DeniedHttpResponse::default()
    };
    check(denied(page(401, "who are you?")), "401 who are you?");
    // A decision without a status is invalid, with any other content.
    let ok_alone = CheckResponse { ok_response: Some(OkHttpResponse::default()), ..CheckResponse::default() };
    check(answer(&ok_alone), "none: the authorizer's response has no decision");
    check(answer(&CheckResponse::default()), "none: the authorizer's response has no decision");
    let both = CheckResponse {
        status: status(0),
        ok_response: Some(OkHttpResponse::default()),
        denied_response: Some(DeniedHttpResponse::default()),
        ..CheckResponse::default()
    };
    check(answer(&both), "none: the authorizer allows and denies the request at once");
    check(denied(page(99, "")), "none: the authorizer denies with an invalid status");
    check(denied(page(-1, "")), "none: the authorizer denies with an invalid status");
}

/// An invalid response of the protocol is no decision.
#[test]
fn answers_that_lie() {
    let passing = || ok(OkHttpResponse::default());
    let check = |change: &dyn Fn(&mut ServiceResponse), expected: &str| {
        let mut answer = passing();
        change(&mut answer);
        assert_eq!(told(&answer), format!("none: {expected}"));
    };
    let not_one = "the authorizer's response is malformed";
    check(&|answer| answer.status = 404, "the authorizer responded with the HTTP status 404");
    check(&|answer| answer.trailers = Headers::default(), "the authorizer's response has no gRPC status");
    check(
        &|answer| answer.trailers.replace("grpc-status", b"14"),
        "the authorizer responded with the gRPC status 14",
    );
    check(
        &|answer| answer.trailers.replace("grpc-status", b"00"),
        "the authorizer responded with the gRPC status 0",
    );
    check(&|answer| answer.body[0] = 1, not_one);
    check(&|answer| answer.body.push(0), not_one);
    check(&|answer| answer.body.truncate(3), not_one);
    check(&|answer| answer.body.clear(), not_one);
    check(&|answer| answer.body.extend_from_within(..), not_one);
    check(&|answer| answer.body = [&[0, 0, 0, 0, 2][..], b"\xff\xff"].concat(), not_one);
    let fields = |field: HeaderOption| OkHttpResponse { headers: vec![field], ..OkHttpResponse::default() };
    let unset = "none: the authorizer sets a field that it may not set";
    for (name, value) in [
        ("x-a", "b\r\nx-c: d"),
        ("x a", "b"),
        ("", "b"),
        (":path", "/"),
        ("Host", "other"),
        ("content-length", "5"),
        ("transfer-encoding", "chunked"),
    ] {
        assert_eq!(told(&ok(fields(field(name, value, None, 0)))), unset, "{name}");
        let headers = vec![field(name, value, None, 0)];
        assert_eq!(told(&denied(DeniedHttpResponse { headers, ..DeniedHttpResponse::default() })), unset);
    }
    let strange = told(&ok(fields(field("x-a", "b", None, 9))));
    assert_eq!(strange, "none: the authorizer requests an unknown change of a field");
}

#[test]
fn a_request_that_passes_is_changed() {
    let mut case =
        Case::new("GET /a?x=1&token=t&y=2 HTTP/1.1\nHost: h\nX-Set: 1\nX-Add: 1\nX-Out: 1\nX-Here: 1");
    let answer = ok(OkHttpResponse {
        headers: vec![
            field("x-set", "2", None, 0),
            field("x-add", "2", Some(true), 0),
            field("x-here", "2", None, 1),
            field("x-new", "2", None, 1),
            field("x-gone", "2", None, 3),
            field("x-unset", "2", Some(false), 0),
        ],
        headers_to_remove: ["x-out", "host", "content-length", "x out"].map(str::to_owned).to_vec(),
        query_parameters_to_set: vec![QueryParameter { key: "y".to_owned(), value: "a&b=c".to_owned() }],
        query_parameters_to_remove: vec!["token".to_owned()],
        ..OkHttpResponse::default()
    });
    let Ok(Verdict::Pass(changes)) = verdict::of(&answer) else { panic!("it passes") };
    changes.apply(&mut case.ctx);
    let all = |name: &str| {
        let fields = case.ctx.request.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name.as_bytes()));
        fields.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).collect::<Vec<_>>().join("|")
    };
    for (name, expected) in [
        ("x-set", "2"),
        ("x-add", "1|2"),
        ("x-out", ""),
        ("x-here", "1"),
        ("x-new", "2"),
        ("x-gone", ""),
        ("x-unset", "2"),
        ("host", "h"),
    ] {
        assert_eq!(all(name), expected, "{name}");
    }
    assert_eq!(case.ctx.outgoing_target(), b"/a?x=1&y=a%26b%3Dc");
}

#[test]
fn metadata_are_variables() {
    let mut case = Case::new("GET / HTTP/1.1\nHost: h");
    let value = |kind| Metadatum { kind: Some(kind) };
    let list = ListValue { values: vec![value(Kind::Text("a".to_owned())), value(Kind::Bool(true))] };
    let mut fields: std::collections::HashMap<_, _> = [
        ("user", value(Kind::Text("jack".to_owned()))),
        ("level", value(Kind::Number(5.0))),
        ("share", value(Kind::Number(0.5))),
        ("roles", value(Kind::List(list))),
        ("none", value(Kind::Null(0))),
        ("bad name", value(Kind::Bool(true))),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    fields.extend((0..100).map(|n| (format!("z{n:03}"), value(Kind::Bool(true)))));
    let response = CheckResponse {
        status: status(0),
        dynamic_metadata: Some(Struct { fields }),
        ..CheckResponse::default()
    };
    let Ok(Verdict::Pass(changes)) = verdict::of(&answer(&response)) else { panic!("it passes") };
    changes.apply(&mut case.ctx);
    for (name, expected) in [
        ("user", Some("jack")),
        ("level", Some("5")),
        ("share", Some("0.5")),
        ("roles", Some(r#"["a",true]"#)),
        ("none", None),
        ("z000", Some("true")),
        ("z099", None),
    ] {
        let name = VarName::parse(&format!("ext_authz_{name}"));
        assert_eq!(case.ctx.get(&name), expected.map(sigma_schema::expr::VarValue::text), "{name}");
        assert_eq!(name.unknown(), None);
    }
}

#[test]
fn configurations() {
    let check = |conf: Value, expected: &str| assert_eq!(refusal("ext-authz", &conf), expected, "{conf}");
    check(json!({"uri": "http://authz:9000"}), "");
    check(json!({}), "property \"uri\" is required");
    check(json!({"uri": "authz:9000"}), "`authz:9000` has no scheme");
    check(json!({"uri": "http://authz/check"}), "uri: the gRPC method sets the path: remove `/check`");
    check(
        json!({"uri": "http://authz", "timeout": 0}),
        "property \"timeout\" validation failed: expected 0 to be at least 1",
    );
    check(
        json!({"uri": "http://authz", "with_request_body": {}}),
        "property \"with_request_body\" validation failed: property \"max_request_bytes\" is required",
    );
    check(
        json!({"uri": "http://authz", "upstream_headers": ["Host"]}),
        "upstream_headers: an authorizer may not set `Host`",
    );
    check(json!({"uri": "http://authz", "cache": {"ttl": 10, "key": ["$uri"]}}), "");
    check(
        json!({"uri": "http://authz", "cache": {"ttl": 10}, "with_request_body": {"max_request_bytes": 1}}),
        "cache: with the body, the authorizer must decide about each request; remove with_request_body or cache",
    );
    let names = |pattern: Value| json!({"uri": "http://authz", "allowed_headers": {"patterns": [pattern]}});
    check(names(json!({"exact": "X-A"})), "");
    check(names(json!({"prefix": ""})), "a pattern is empty");
    for broken in ["x)|(y", "("] {
        let refused = refusal("ext-authz", &names(json!({"safe_regex": {"regex": broken}})));
        assert!(refused.contains("regex parse error"), "{refused}");
    }
    for unknown in [json!({"ignore_case": true}), json!({"exact": "a", "prefix": "b"}), json!("x-a")] {
        assert_ne!(refusal("ext-authz", &names(unknown.clone())), "", "{unknown}");
    }
    let unknown =
        refusal("ext-authz", &json!({"uri": "http://authz", "context_extensions": {"a": "$nonsense"}}));
    assert!(unknown.contains("nonsense"), "{unknown}");
    let scope = sigma_schema::plugins::PluginScope::Http;
    let secure = json!({"uri": "https://authz", "ssl_verify": false});
    let inline = crate::testing::roster().upstreams("ext-authz", scope, secure);
    assert_eq!(
        (&inline[0].upstream["scheme"], &inline[0].upstream["tls"]["verify"]),
        (&json!("grpcs"), &json!(false))
    );
    assert_eq!(
        warned("ext-authz", scope, &json!({"uri": "http://a", "ssl_verify": false})),
        ["uri", "ssl_verify"]
    );
}

/// Without a key all data for the authoriser counts, but for time and id.
#[test]
fn requests_with_equal_data_share_a_decision() {
    let node = Arc::new(Node::default());
    let told = |more: Value, head: &str| {
        let mut conf = json!({"uri": "http://a", "timeout": 1, "ssl_verify": true, "failure_mode_allow": false,
            "failure_mode_allow_header_add": false, "status_on_error": 403, "upstream_headers": [],
            "include_peer_certificate": false, "encode_raw_headers": false});
        conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let plugin = ExtAuthz::new(&Build::new("ext-authz", &conf, "r", &Value::Null, &node)).unwrap();
        let case = Case::new(&format!("{head}\nHost: h\nX-A: 1\nX-B: 2\nX-C: 3\nX-D: 4"));
        told_by(&*plugin.0, &case)
    };
    let all = json!({"context_extensions": {"a": "1", "b": "2", "c": "3", "d": "4"}});
    let one = told(all.clone(), "GET /a HTTP/1.1");
    for _ in 0..8 {
        assert_eq!(one, told(all.clone(), "GET /a HTTP/1.1"));
    }
    for other in ["GET /b HTTP/1.1", "PUT /a HTTP/1.1", "GET /a?b HTTP/1.1", "GET /a HTTP/1.1\nX-E: 1"] {
        assert_ne!(one, told(all.clone(), other), "{other}");
    }
    let names = json!({"allowed_headers": {"patterns": [{"prefix": "x-a"}]}});
    assert_eq!(told(names.clone(), "GET /a HTTP/1.1"), told(names, "GET /a HTTP/1.1\nX-E: 1"));
}
