//! Tests of `oas-validator`: requests that a document describes, and the messages about others.

use std::collections::VecDeque;
use std::io::Write;
use std::task::{self, Poll};

use serde_json::{Value, json};
use sigma_http::{Chunk, Frame};
use sigma_plugin::record::Source;
use sigma_plugin::{Entry, Phase, ResponseStep};

use super::fuzzing::DOCUMENT;
use crate::testing::{Case, Given, assert_refusal, entry, merged, summary};
use sigma_plugin_kit::tallies::Families;

fn plugin(more: &Value) -> Entry {
    entry("oas-validator", merged(json!({"spec": DOCUMENT, "verbose_errors": true}), more)).unwrap()
}

/// Returns the details of a refusal; empty if the request passes.
fn problems(entry: &Entry, head: &str, body: &[u8]) -> String {
    let (line, fields) = head.split_once('\n').unwrap_or((head, ""));
    let fields = if fields.is_empty() { String::new() } else { format!("\n{fields}") };
    let length = if body.is_empty() { String::new() } else { format!("\nContent-Length: {}", body.len()) };
    let mut case = Case::new(&format!("{line} HTTP/1.1\nHost: h{fields}{length}"));
    case.body = body.to_vec();
    let Some(reply) = case.run(entry, Phase::Access) else { return String::new() };
    assert_eq!(reply.status, 400, "{head}: {}", summary(Some(&reply)));
    let told: Value = serde_json::from_slice(reply.body.as_deref().unwrap()).unwrap();
    let told = told["message"].as_str().unwrap();
    told.strip_prefix("failed to validate request. ").unwrap().to_owned()
}

#[test]
fn operations_are_found() {
    let entry = plugin(&json!({}));
    let check = |line: &str, expected: &str| assert_eq!(problems(&entry, line, b""), expected, "{line}");
    check("GET /v1/things/7", "");
    check("GET /v1/things/7/", "");
    check("GET /beta/things/7", "");
    check("GET /v1/things/%37", "");
    check("DELETE /v1//things/7", "");
    check("GET /things/7", "no matching operation found for GET /things/7");
    check("POST /v1/things/7", "no matching operation found for POST /v1/things/7");
    check("GET /v1/things/7%2F8", "no matching operation found for GET /v1/things/7/8");
    check("GET /v1/Things/7", "no matching operation found for GET /v1/Things/7");
}

#[test]
fn parameters() {
    let entry = plugin(&json!({}));
    let check = |request: &str, expected: &str| {
        let (query, fields) = request.split_once('\n').unwrap_or((request, ""));
        assert_eq!(
            problems(&entry, &format!("GET /v1/things/7{query}\n{fields}"), b""),
            expected,
            "{request}"
        );
    };
    check("?limit=100&other=1", "");
    check("?limit=101", "query parameter 'limit': expected 101 to be at most 100");
    check("?limit=x", "query parameter 'limit': wrong type: expected integer, got string");
    check("?limit", "query parameter 'limit': wrong type: expected integer, got string");
    check("?limit=1&limit=2", "query parameter 'limit': it occurs more than once");
    check("?limit=1&l%69mit=200", "query parameter 'limit': it occurs more than once");
    check("?tags=abc&tags=d", "");
    check("?tags=a&tags=b&tags=c", "query parameter 'tags': expect array to have at most 2 items");
    check("?ids=1,2,3", "");
    check(
        "?ids=1%2Cx",
        "query parameter 'ids': failed to validate item 2: wrong type: expected integer, got string",
    );
    check("?ids=1&ids=2", "query parameter 'ids': it occurs more than once");
    check("?piped=true|false", "");
    check(
        "?piped=true|2",
        "query parameter 'piped': failed to validate item 2: wrong type: expected boolean, got string",
    );
    check("?spaced=a%20b", "");
    check(
        "?spaced=a+c",
        "query parameter 'spaced': failed to validate item 2: matches none of the enum values",
    );
    check("?filter[age]=3&filter[kinds]=a&filter[kinds]=b", "");
    check(
        "?filter[age]=x",
        "query parameter 'filter': property \"age\" validation failed: wrong type: expected integer, got string",
    );
    check("?filter[size]=1", "query parameter 'filter': additional properties forbidden, found size");
    check("?filter[a][b]=1", "query parameter 'filter': nested members are not supported");
    check("?filter[age]=3&filter=x", "query parameter 'filter': `filter[…]` is expected");
    check("?filter[age]=3&filter[age]=4", "query parameter 'filter': [age]: it occurs more than once");
    check("?x=1&y=2.5", "");
    check("?x=1", "query parameter 'point': property \"y\" is required");
    check("?where=%7B%22a%22:1%7D", "");
    check("?where=%7B%7D", "query parameter 'where': property \"a\" is required");
    check(
        "?where=%7B%22a%22:1,%22a%22:2%7D",
        "query parameter 'where': invalid JSON: a name is repeated in an object at line 1 column 13",
    );
    check("?flag=", "");
    check("?flag=2", "query parameter 'flag': wrong type: expected boolean, got string");
    check("\nX-Ids: 1, 2\nx-ids: 3", "");
    check(
        "\nX-Ids: 1, x",
        "header parameter 'X-Ids': failed to validate item 2: wrong type: expected integer, got string",
    );
    check("\nX-Map: a=1,b=2", "");
    check(
        "\nX-Map: a=b",
        "header parameter 'X-Map': property \"a\" validation failed: wrong type: expected integer, got string",
    );
    check("\nX-Trace: 12345678", "");
    check("\nX-Trace: 123456789", "header parameter 'X-Trace': string too long, expected at most 8, got 9");
    check("\nX-Trace: 1\nX-Trace: 2", "header parameter 'X-Trace': it occurs more than once");
    check("\nCookie: sid=0f; other=x", "");
    check("\nCookie: sid=0g", "cookie parameter 'sid': failed to match pattern \"^[0-9a-f]+$\" with \"0g\"");
    check("\nCookie: sid=0f; sid=evil", "cookie parameter 'sid': it occurs more than once");
    check(
        "?a=%ff",
        &["limit", "tags", "ids", "piped", "spaced", "filter", "point", "where", "flag"]
            .map(|name| format!("query parameter '{name}': it is not UTF-8"))
            .join("\n"),
    );
    check(
        "?limit=0\nX-Trace: 123456789",
        "query parameter 'limit': expected 0 to be at least 1\nheader parameter 'X-Trace': string too long, expected at most 8, got 9",
    );
}

#[test]
fn parameters_in_the_path_and_those_that_are_missing() {
    let entry = plugin(&json!({}));
    let check = |line: &str, expected: &str| assert_eq!(problems(&entry, line, b""), expected, "{line}");
    check("GET /v1/things/0", "path parameter 'id': expected 0 to be at least 1");
    check("GET /v1/things/a", "path parameter 'id': wrong type: expected integer, got string");
    check("DELETE /v1/things/1e1", "");
    check("GET /v1/labels/.1,2/;b=1;b=2", "");
    check("GET /v1/labels/1/;b=1", "path parameter 'a': a `.` is expected before it");
    check("GET /v1/labels/.1/;c=1", "path parameter 'b': `;b=` is expected before each value");
    check(
        "GET /v1/labels/.x/;b=1",
        "path parameter 'a': failed to validate item 1: wrong type: expected integer, got string",
    );
    let missing = ["query parameter 'q'", "header parameter 'H'", "cookie parameter 'c'"];
    check("GET /v1/needed", &missing.map(|what| format!("{what}: it is required")).join("\n"));
    check("GET /v1/needed?q=\nH: 1\nCookie: c=", "");
}

const JSON: &str = "Content-Type: application/json";
const FORM: &str = "Content-Type: application/x-www-form-urlencoded";

#[test]
fn bodies() {
    let entry = plugin(&json!({}));
    let check = |fields: &str, body: &[u8], expected: &str| {
        let found = problems(&entry, &format!("PUT /v1/things/7\n{fields}"), body);
        assert_eq!(found, expected, "{fields} {}", body.escape_ascii());
    };
    check(JSON, br#"{"name": "a", "inner": {"name": "b"}}"#, "");
    check(JSON, b"", "body: request body is required");
    check(JSON, b"{", "body: invalid JSON body: EOF while parsing an object at line 1 column 1");
    let wrong = "property \"name\" validation failed: wrong type: expected string, got number";
    check(JSON, br#"{"name": 1}"#, &format!("body: {wrong}"));
    check(
        JSON,
        br#"{"name": "a", "inner": {"name": 1}}"#,
        &format!("body: property \"inner\" validation failed: {wrong}"),
    );
    check(
        JSON,
        br#"{"name": "a", "name": "b"}"#,
        "body: invalid JSON body: a name is repeated in an object at line 1 column 26",
    );
    check(JSON, br#"{"name": "a", "id": 1}"#, "body: property \"id\" is read-only");
    check(JSON, br#"{"name": "a", "more": 1}"#, "body: unevaluated properties forbidden, found more");
    check(FORM, b"name=a&sizes=1,2&on=true", "");
    check(
        FORM,
        b"name=a&sizes=1,x",
        "body: property \"sizes\" validation failed: failed to validate item 2: wrong type: expected integer, got string",
    );
    check(FORM, b"name=a&name=b", "body: invalid form: name: it occurs more than once");
    check(FORM, b"name=a&inner=%7B%22name%22%3A%22b%22%7D", "");
    check(
        FORM,
        b"name=a&inner=x",
        "body: invalid form: inner: invalid JSON body: expected value at line 1 column 1",
    );
    check(FORM, b"name=%ff", "body: invalid form: it is not UTF-8");
    check("Content-Type: text/csv", b"anything", "");
    let undeclared = |shown: &str| format!("body: content type {shown} is not declared in the spec");
    check("Content-Type: application/xml", b"<a/>", &undeclared("application/xml"));
    check("X-A: 1", b"{}", &undeclared("(none)"));
    check("Content-Type: application/json-seq", b"{}", &undeclared("application/json-seq"));
    check("Content-Type: APPLICATION/JSON ; charset=\"UTF-8\"", br#"{"name": "a"}"#, "");
    check(
        "Content-Type: application/json; charset=utf-7",
        b"{}",
        "body: its Content-Type names a charset other than UTF-8",
    );
    check(
        "Content-Type: text/plain\nContent-Type: application/json",
        b"{}",
        "body: it has more than one Content-Type",
    );
    check("Content-Type: text/plain, application/json", b"{}", "body: its Content-Type is a list");
    check(
        &format!("{JSON}\nContent-Encoding: gzip"),
        b"{}",
        "body: it has a Content-Encoding; send the body unencoded",
    );
    check(&format!("{JSON}\nContent-Encoding: identity"), br#"{"name": "a"}"#, "");
    check(
        "Content-Type: text/csv\nContent-Encoding: gzip",
        b"x",
        "body: it has a Content-Encoding; send the body unencoded",
    );
}

#[test]
fn bodies_of_parts_and_of_types_with_a_star() {
    let entry = plugin(&json!({}));
    let multipart = |parts: &[(&str, &str, &str)], expected: &str| {
        let mut body = String::new();
        for (name, more, content) in parts {
            body += &format!("--b\r\nContent-Disposition: form-data; name={name}\r\n{more}\r\n{content}\r\n");
        }
        body += "--b--";
        let head = "PUT /v1/things/7\nContent-Type: multipart/form-data; boundary=b";
        assert_eq!(problems(&entry, head, body.as_bytes()), expected, "{body}");
    };
    let file = ("file", "Content-Type: image/png\r\n", "x");
    multipart(&[file, ("files", "", "a"), ("files", "", "b"), ("count", "", "3")], "");
    multipart(&[("count", "", "3")], "body: property \"file\" is required");
    multipart(
        &[file, ("count", "", "x")],
        "body: property \"count\" validation failed: wrong type: expected integer, got string",
    );
    multipart(&[file, file], "body: invalid multipart body: file: it occurs more than once");
    multipart(
        &[("file", "Content-Type: text/html\r\n", "x")],
        "body: invalid multipart body: file: content type text/html is not declared in the spec",
    );
    multipart(&[file, ("thing", "", r#"{"name": "a"}"#)], "");
    multipart(
        &[file, ("thing", "", r#"{"name": 1}"#)],
        "body: property \"thing\" validation failed: property \"name\" validation failed: wrong type: expected string, got number",
    );
    let torn = problems(&entry, "PUT /v1/things/7\nContent-Type: multipart/form-data", b"--b--");
    assert_eq!(torn, "body: invalid multipart body: the Content-Type has no boundary");
    let patch = |content_type: &str, body: &[u8], expected: &str| {
        let head = format!("PATCH /v1/things/7\nContent-Type: {content_type}");
        assert_eq!(problems(&entry, &head, body), expected, "{content_type}");
    };
    patch("application/merge-patch+json", b"{}", "body: property \"name\" is required");
    patch("application/x-www-form-urlencoded", b"on=true", "body: property \"name\" is required");
    patch("application/octet-stream", b"x", "");
    assert_eq!(problems(&entry, "PATCH /v1/things/7", b""), "");
    // Nothing is said of it.
    assert_eq!(problems(&entry, "DELETE /v1/things/7", b"x"), "");
}

/// Status and body of the response to a request; `passed` if the request passes.
fn answer(more: &Value, head: &str, body: &[u8]) -> String {
    let mut case = Case::new(&format!("{head}\nContent-Length: {}", body.len()));
    case.body = body.to_vec();
    summary(case.run(&plugin(more), Phase::Access).as_ref())
}

#[test]
fn answers_as_they_are_wanted() {
    let bad = "GET /v1/things/0 HTTP/1.1\nHost: h";
    let check = |more: Value, expected: &str| assert_eq!(answer(&more, bad, b""), expected, "{more}");
    check(json!({"verbose_errors": false}), r#"400 {"message":"failed to validate request. "}"#);
    let verbose =
        r#"{"message":"failed to validate request. path parameter 'id': expected 0 to be at least 1"}"#;
    check(json!({"rejection_status_code": 599}), &format!("599 {verbose}"));
    check(json!({"reject_if_not_match": false, "rejection_status_code": 400}), "passed");
    check(json!({"skip_path_params_validation": true}), "passed");
    let skips = |skip: &str, head: &str| {
        assert!(answer(&json!({}), head, b"x").starts_with("400"), "{head}");
        assert_eq!(answer(&json!({ skip: true }), head, b"x"), "passed", "{skip}");
    };
    skips("skip_query_param_validation", "GET /v1/things/7?limit=x HTTP/1.1\nHost: h");
    skips("skip_request_header_validation", "DELETE /v1/things/7 HTTP/1.1\nHost: h\nX-Trace: 12345");
    skips("skip_cookie_params_validation", "GET /v1/things/7 HTTP/1.1\nHost: h\nCookie: sid=x");
    skips("skip_request_body_validation", "PUT /v1/things/7 HTTP/1.1\nHost: h\nContent-Type: a/b");
    let put = format!("PUT /v1/things/7 HTTP/1.1\nHost: h\n{JSON}");
    let too_large =
        r#"500 {"message":"error reading the request body. err: the body exceeds max_req_body_size"}"#;
    assert_eq!(answer(&json!({"max_req_body_size": 11}), &put, br#"{"name":"a"}"#), too_large);
    assert_eq!(answer(&json!({"max_req_body_size": 12}), &put, br#"{"name":"a"}"#), "passed");
    let many = answer(&json!({"max_body_values": 2}), &put, br#"{"name":"a","sizes":[1]}"#);
    assert_eq!(many, r#"400 {"message":"failed to validate request. body: it has more than 2 values"}"#);
    let steps = answer(&json!({"max_steps": 1}), &put, br#"{"name":"a"}"#);
    assert!(steps.contains("the value takes too many steps to validate"), "{steps}");
}

/// A missing document denies every request.
#[test]
fn nothing_passes_without_a_document() {
    let entry =
        entry("oas-validator", json!({"spec_url": "http://127.0.0.1:1/spec", "reject_if_not_match": false}))
            .unwrap();
    let mut case = Case::new("GET / HTTP/1.1\nHost: h");
    let reply = case.run(&entry, Phase::Access);
    assert_eq!(summary(reply.as_ref()), r#"500 {"message":"failed to parse openapi spec"}"#);
}

/// The response of a node to a request.
struct Answered<'a> {
    status: u16,
    fields: &'a str,
    body: &'a [u8],
}

/// Returns the client's response: its status and body, or the reply that replaces it.
fn passed(case: &mut Case, entry: &Entry, answer: &Answered<'_>) -> String {
    case.respond(answer.status, answer.fields);
    case.ctx.record.source = Source::Upstream;
    match case.response_step(entry) {
        ResponseStep::Next => {}
        ResponseStep::Replace(reply) => return summary(Some(&reply)),
        _ => panic!("the plugin does more than look"),
    }
    let body = |body: &[u8]| format!("{} {}", answer.status, String::from_utf8_lossy(body));
    let Some(mut filter) = case.body_filter(entry) else { return body(answer.body) };
    let frames = answer.body.chunks(7).map(|piece| Frame::Data(Chunk::copy_of(piece)));
    let mut source = Given(frames.collect::<VecDeque<_>>());
    let (mut task, mut out) = (task::Context::from_waker(task::Waker::noop()), Vec::new());
    loop {
        match filter.poll_frame(&mut source, &mut case.ctx, &mut task) {
            Poll::Ready(Ok(Frame::Data(data))) => out.extend_from_slice(&data),
            Poll::Ready(Ok(_)) => return body(&out),
            Poll::Ready(Err(_)) => {
                assert!(out.is_empty() && filter.holds_head(), "something has left");
                return summary(case.ctx.instead.take().as_deref());
            }
            Poll::Pending => panic!("the filter waits for nobody"),
        }
    }
}

/// The same where answers are refused, of a request with this head.
fn refused(head: &str, more: &Value, answer: &Answered<'_>) -> String {
    let entry = plugin(&merged(json!({"validate_responses": "refuse"}), more));
    let mut case = Case::new(head);
    assert!(case.run(&entry, Phase::Access).is_none(), "{head}");
    passed(&mut case, &entry, answer)
}

const GET: &str = "GET /v1/things/7 HTTP/1.1\nHost: h";
const OF_JSON: &str = "Content-Type: application/json\nX-Left: 1";

fn unfit(details: &str) -> String {
    summary(Some(&sigma_plugin::Reply::new(502).json(&json!({
        "message": format!("failed to validate response. {details}")
    }))))
}

#[test]
fn heads_of_answers() {
    let check = |status, fields: &str, body: &str, expected: &str| {
        let answer = Answered { status, fields, body: body.as_bytes() };
        let expected = if expected.is_empty() { format!("{status} {body}") } else { unfit(expected) };
        assert_eq!(refused(GET, &json!({}), &answer), expected, "{status} {fields}");
    };
    check(200, "Content-Type: text/csv\nX-Left: 0", "x", "");
    check(200, "Content-Type: text/csv", "x", "header 'X-Left' does not match");
    check(200, "Content-Type: text/csv\nX-Left: -1", "x", "header 'X-Left' does not match");
    check(200, "Content-Type: text/csv\nX-Left: 1\nX-Left: 1", "x", "header 'X-Left' does not match");
    check(200, "Content-Type: text/csv\nX-Left: 1\nX-Ids: 1,2\nX-Ids: 3", "x", "");
    check(200, "Content-Type: text/csv\nX-Left: 1\nSet-Cookie: a=1\nSet-Cookie: a=2, b", "x", "");
    let cookie = "header 'Set-Cookie' does not match";
    check(200, "Content-Type: text/csv\nX-Left: 1\nSet-Cookie: a=1\nSet-Cookie: b=2", "x", cookie);
    check(200, "X-Left: 1", "", "content type (none) is not declared in the spec");
    check(
        200,
        "Content-Type: application/xml; a=b",
        "<a/>",
        "header 'X-Left' does not match\ncontent type application/xml is not declared in the spec",
    );
    check(200, "Content-Type: a/b\nContent-Type: c/d\nX-Left: 1", "", "it has more than one Content-Type");
    check(204, "", "", "");
    check(304, "", "", "");
    check(418, "", "", "");
    check(418, "Content-Type: a/b", "", "content type a/b is not declared in the spec");
    check(404, "Content-Type: application/problem+json", r#"{"title":"x"}"#, "");
    check(404, "Content-Type: application/problem+json", r#"{"title":1}"#, "body does not match");
    check(404, "Content-Type: text/html", "x", "");
    // Of the default nothing is said.
    check(500, "Content-Type: application/json", "{", "");
    let head = "HEAD /v1/x HTTP/1.1\nHost: h";
    let document = json!({"openapi": "3.0.3", "paths": {"/v1/x": {"head": {"responses": {"200": {"content": {"a/b": {}}}}}}}});
    let answer = |status| Answered { status, fields: "Content-Type: c/d", body: b"" };
    let more = json!({"spec": document.to_string()});
    assert_eq!(refused(head, &more, &answer(200)), "200 ");
    assert_eq!(refused(head, &more, &answer(201)), unfit("status 201 is not declared in the spec"));
}

#[test]
fn bodies_of_answers() {
    let check = |more: Value, body: &[u8], expected: &str| {
        let found = refused(GET, &more, &Answered { status: 200, fields: OF_JSON, body });
        let expected = match expected {
            "" => format!("200 {}", String::from_utf8_lossy(body)),
            expected => unfit(expected),
        };
        assert_eq!(found, expected, "{more} {}", body.escape_ascii());
    };
    let good = br#"{"name": "a", "id": 7, "inner": {"name": "b"}}"#;
    check(json!({}), good, "");
    check(json!({}), b"", "body does not match");
    check(json!({}), b"{", "body does not match");
    check(json!({}), br#"{"name": "a", "name": "b"}"#, "body does not match");
    check(json!({}), br#"{"name": "a", "pin": "x"}"#, "body does not match");
    check(json!({}), br#"{"name": "secret of somebody"}"#, "body does not match");
    check(json!({"max_resp_body_size": good.len()}), good, "");
    check(json!({"max_resp_body_size": good.len() - 1}), good, "the body exceeds max_resp_body_size");
    check(json!({"max_body_values": 3}), good, "body does not match");
    check(json!({"max_steps": 2}), good, "body does not match");
    let quiet = refused(
        GET,
        &json!({"verbose_errors": false}),
        &Answered { status: 200, fields: OF_JSON, body: b"{" },
    );
    assert_eq!(quiet, unfit(""));
}

fn gzipped(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn bodies_that_are_encoded() {
    let check = |coding: &str, body: &[u8], expected: &str| {
        let fields = format!("{OF_JSON}\nContent-Encoding: {coding}");
        let more = json!({"max_resp_body_size": 500});
        let found = refused(GET, &more, &Answered { status: 200, fields: &fields, body });
        let expected = match expected {
            "" => format!("200 {}", String::from_utf8_lossy(body)),
            expected => unfit(expected),
        };
        assert_eq!(found, expected, "{coding}");
    };
    let mut brotli = brotli::CompressorWriter::new(Vec::new(), 4096, 5, 20);
    brotli.write_all(br#"{"name": "a"}"#).unwrap();
    check("br", &brotli.into_inner(), "");
    check("gzip", &gzipped(br#"{"name": "a"}"#), "");
    check("gzip", &gzipped(br#"{"name": 1}"#), "body does not match");
    check("gzip", br#"{"name": "a"}"#, "the body does not match its Content-Encoding");
    let long = format!(r#"{{"name": "{}"}}"#, "a".repeat(500));
    check("gzip", &gzipped(long.as_bytes()), "the decoded body exceeds max_resp_body_size");
    check("zstd", b"x", "the body has a Content-Encoding other than gzip and br");
    check("identity", br#"{"name": "a"}"#, "");
}

/// A node whose bodies are looked at is requested what can be looked at; others are asked as the client asks.
#[test]
fn nodes_are_asked_for_whole_decodable_answers() {
    let entry = plugin(&json!({"validate_responses": "report"}));
    let check = |line: &str, expected: [Option<&str>; 2]| {
        let fields = "Accept-Encoding: zstd, gzip;q=0.5\nRange: bytes=0-1";
        let mut case = Case::new(&format!("{line} HTTP/1.1\nHost: h\n{fields}"));
        assert!(case.run(&entry, Phase::Access).is_none());
        let sent = ["Accept-Encoding", "Range"].map(|name| case.sent(name));
        assert_eq!(sent.each_ref().map(Option::as_deref), expected, "{line}");
    };
    check("GET /v1/things/7", [Some("gzip;q=0.5"), None]);
    check("DELETE /v1/things/7", [Some("zstd, gzip;q=0.5"), Some("bytes=0-1")]);
}

/// A reported response passes as it came, and so does one that cannot be checked.
#[test]
fn answers_that_are_reported() {
    let more = json!({"validate_responses": "report", "max_resp_body_size": 20});
    let entry = plugin(&more);
    let mut case = Case::new(GET);
    let mut check = |status, fields: &str, body: &str| {
        case.request(GET);
        assert!(case.run(&entry, Phase::Access).is_none());
        let answer = Answered { status, fields, body: body.as_bytes() };
        assert_eq!(passed(&mut case, &entry, &answer), format!("{status} {body}"), "{status} {fields}");
    };
    check(200, OF_JSON, r#"{"name": "a"}"#);
    check(200, OF_JSON, r#"{"name": 1}"#);
    check(200, "Content-Type: application/json", r#"{"name": 1}"#);
    check(200, "Content-Type: a/b", "x");
    check(200, OF_JSON, &format!(r#"{{"name": "{}"}}"#, "a".repeat(500)));
    // The memory of an earlier response over the limit is given back.
    check(200, OF_JSON, r#"{"name": 2}"#);
}

#[test]
fn problems_of_answers_are_counted() {
    use sigma_plugin::{Build, Node};

    let node = std::sync::Arc::new(Node::default());
    let conf = json!({
        "spec": DOCUMENT, "verbose_errors": true, "validate_responses": "report", "max_steps": 1000,
        "ssl_verify": false, "timeout": 1000, "skip_request_body_validation": false,
        "skip_request_header_validation": false, "skip_query_param_validation": false,
        "skip_path_params_validation": false, "skip_cookie_params_validation": false,
        "reject_if_not_match": true, "rejection_status_code": 400, "max_req_body_size": 1,
        "max_resp_body_size": 20, "max_body_values": 100,
    });
    let build = Build::new("oas-validator", &conf, "/apisix/routes/1", &Value::Null, &node);
    let plugin = (super::OAS_VALIDATOR.build)(&build).unwrap();
    let mut case = Case::new(GET);
    case.node = std::sync::Arc::clone(&node);
    let env = sigma_plugin::Env::new(&node, &case.local, &case.consumers);
    assert!(matches!(plugin.access(&mut case.ctx, &env), sigma_plugin::Step::Next));
    case.ctx.response.start(200);
    case.ctx.record.source = Source::Upstream;
    assert!(matches!(plugin.header_filter(&mut case.ctx, &env), ResponseStep::Next));
    let all = node.part(Families::default).all().remove(0).1.all();
    let shown: Vec<(String, u64)> = all
        .into_iter()
        .map(|(labels, count)| {
            let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
            (labels.join(" "), count)
        })
        .collect();
    let of = |problem: &str| (format!("resource=/apisix/routes/1 problem={problem} answer=reported"), 1);
    assert_eq!(shown, [of("header"), of("content_type")]);
}

/// The document does not apply to answers that no node gave, nor to answers to requests that it does not
/// describe.
#[test]
fn answers_of_others_pass() {
    let entry = plugin(&json!({"validate_responses": "refuse", "reject_if_not_match": false}));
    let check = |line: &str, source, cache: Option<&str>, is_looked_at: bool| {
        let mut case = Case::new(&format!("{line} HTTP/1.1\nHost: h"));
        assert!(case.run(&entry, Phase::Access).is_none());
        case.respond(200, "Content-Type: a/b");
        case.ctx.record.source = source;
        if let Some(status) = cache {
            case.ctx.set_variable("upstream_cache_status", status);
        }
        let is_refused = matches!(case.response_step(&entry), ResponseStep::Replace(_));
        assert_eq!(is_refused, is_looked_at, "{line} {source:?} {cache:?}");
    };
    check("GET /v1/things/7", Source::Upstream, None, true);
    check("GET /v1/things/7", Source::Gateway, Some("HIT"), true);
    check("GET /v1/things/7", Source::Gateway, None, false);
    check("GET /v1/things/7", Source::Fault, None, false);
    check("GET /elsewhere", Source::Upstream, None, false);
    // Nothing is said of its responses.
    check("DELETE /v1/things/7", Source::Upstream, None, false);
}

#[test]
fn bad_configurations_are_refused() {
    let check = |conf: Value, expected: &str| assert_refusal("oas-validator", &conf, expected);
    let none = "value should match only one schema, but matches none";
    check(json!({}), none);
    check(
        json!({"spec": "openapi: 3.0.0", "spec_url": "http://a"}),
        "value should match only one schema, but matches both schemas 1 and 2",
    );
    check(json!({"spec": "{"}), "invalid JSON string provided, err: ");
    check(json!({"spec": "{\"a\": 1, \"a\": 2}"}), "invalid JSON string provided, err: ");
    check(json!({"spec": "openapi: 2.0.0"}), "OpenAPI 2.0.0 is not supported; write 3.0 or 3.1");
    check(json!({"spec": ""}), "string too short");
    check(json!({"spec_url": "ftp://a"}), "failed to match pattern");
    check(json!({"spec_url": "http://a", "timeout": 999}), "expected 999 to be at least 1000");
    check(json!({"spec_url": "http://a", "rejection_status_code": 399}), "expected 399 to be at least 400");
    check(json!({"spec_url": "http://a", "rejection_status_code": 600}), "expected 600 to be at most 599");
    let of = |item: Value| json!({"spec": json!({"openapi": "3.1.0", "paths": {"/a": {"get": item}, "/{b}": {}}}).to_string()});
    let with = |parameter: Value| of(json!({"parameters": [parameter]}));
    check(
        with(json!({"name": "a", "in": "body"})),
        "has an invalid `in`; write path, query, header or cookie",
    );
    check(
        with(json!({"name": "a", "in": "query", "style": "simple"})),
        "has the style `simple`, which a query parameter cannot have",
    );
    check(with(json!({"name": "a", "in": "query", "style": "x"})), "has the unknown style `x`");
    check(with(json!({"name": "a", "in": "query", "schema": {"$ref": "http://b/c"}})), "is outside this");
    check(
        with(json!({"name": "a", "in": "query", "schema": {"pattern": "(?<!a)b"}})),
        "schema at `/paths/~1a/get/parameters/0/schema/pattern`",
    );
    check(of(json!({"requestBody": {}})), "has no `content`");
    check(
        of(json!({"requestBody": {"content": {"a/b": {}, "A/B;c": {}}}})),
        "is the same media type as another one",
    );
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    check(
        json!({"spec": format!("{{\"openapi\": \"3.1.0\", \"x\": {deep}}}")}),
        "nested deeper than 64 levels",
    );
    check(json!({"spec": "$secret://vault/1/spec"}), "");
    let answers = |responses: Value, expected: &str| {
        let conf = of(json!({ "responses": responses }));
        check(conf.clone(), "");
        check(merged(conf, &json!({"validate_responses": "refuse"})), expected);
    };
    answers(json!({"200": {}}), "");
    answers(json!({"2xx": {}}), "`/paths/~1a/get/responses/2xx` is not a status such as 404, 4XX or default");
    answers(json!({"200": {"$ref": "#/x"}}), "`#/x` leads nowhere");
    answers(json!({"200": {"headers": {"A": {"style": "form"}}}}), "has the style `form`");
    answers(json!({"200": {"content": {"a/b": {}, "A/B;c": {}}}}), "is the same media type as another one");
    let schema = json!({"schema": {"pattern": "(?<!a)b"}});
    answers(json!({"200": {"content": {"application/json": schema}}}), "application~1json/schema/pattern`");
    check(
        json!({"spec": "openapi: 3.0.0", "validate_responses": "log"}),
        "property \"validate_responses\" validation failed: matches none of the enum values",
    );
    check(json!({"spec": "openapi: 3.0.0", "max_resp_body_size": 0}), "expected 0 to be at least 1");
}

#[test]
fn doubtful_settings_have_warnings() {
    let check = |conf: Value, expected: &[&str]| {
        let found = super::warnings(&conf);
        let found: Vec<&str> = found.iter().map(|problem| problem.pointer.as_str()).collect();
        assert_eq!(found, expected, "{conf}");
    };
    check(json!({"spec": "x"}), &[]);
    check(json!({"spec": "x", "timeout": 1000, "ssl_verify": true}), &["ssl_verify", "timeout"]);
    check(json!({"spec": "x", "reject_if_not_match": false, "verbose_errors": true}), &["verbose_errors"]);
    check(json!({"spec": "x", "max_resp_body_size": 1}), &["max_resp_body_size"]);
    let refuse = json!({"spec": "x", "reject_if_not_match": false, "rejection_status_code": 400,
        "verbose_errors": true, "validate_responses": "refuse", "max_resp_body_size": 1});
    check(refuse, &["rejection_status_code"]);
    check(json!({"spec_url": "http://a"}), &["spec_url"]);
    check(json!({"spec_url": "https://a"}), &["ssl_verify"]);
    check(json!({"spec_url": "https://a", "ssl_verify": true}), &[]);
}
