//! `grpc-transcode`: JSON and messages, requests and calls, answers and how they fail.

use std::sync::OnceLock;
use std::task::{self, Poll};

use proptest::prelude::*;
use prost_reflect::prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage};
use serde_json::{Value, json};
use sigma_http::{Chunk, Frame};
use sigma_plugin::record::Source;
use sigma_plugin::{Entry, Env, Phase};
use sigma_schema::openapi::OpenApi;
use sigma_schema::validation::{Reading, SchemaId, Schemas, Sender};

use super::fuzzing::{DEFINITION, fuzzed, grpc_transcode};
use super::output::{Defaults, Form, LargeIntegers};
use super::{input, size};
use crate::testing::{Case, Given, assert_refusal, entry_beside_proto, summary};

/// As the plugin shows messages with `no_default_values`.
const FORM: Form =
    Form { enums_by_name: true, large_integers: LargeIntegers::Number, defaults: Defaults::None };

fn pool() -> DescriptorPool {
    sigma_schema::proto::pool(DEFINITION).unwrap()
}

fn made(name: &str, json: &Value) -> Result<DynamicMessage, String> {
    let desc = pool().get_message_by_name(name).unwrap();
    input::message(&desc, json).map_err(|input::Unfit(reason)| reason)
}

fn shown(form: Form, message: &DynamicMessage) -> Value {
    serde_json::from_slice(&form.message(message, 1 << 20).unwrap()).unwrap()
}

/// Checks a value after it has been a message; differences are listed.
fn assert_kept(json: &Value, expected: &Value) {
    let bytes = made("p.All", json).unwrap().encode_to_vec();
    let desc = pool().get_message_by_name("p.All").unwrap();
    assert!(size::fits(&desc, &bytes, 100), "{json}");
    assert_eq!(shown(FORM, &DynamicMessage::decode(desc, &bytes[..]).unwrap()), *expected, "{json}");
}

#[test]
fn json_is_there_and_back_again() {
    let check = |json: Value, expected: Value| assert_kept(&json, &expected);
    let same = |json: Value| assert_kept(&json, &json);
    same(json!({}));
    same(
        json!({"name": "a\"b\u{1}", "small": -7, "large": -9_007_199_254_740_993_i64, "huge": u64::MAX, "on": true,
        "share": 1.5, "raw": "AP8=", "color": "BLUE", "numbers": [1, -2], "counts": {"a": 1, "b": 2}}),
    );
    same(json!({"child": {"child": {"children": [{"name": "x"}, {}]}}}));
    same(json!({"maybe": "", "left": ""}));
    same(
        json!({"at": "2026-11-23T21:00:00Z", "text": "x", "time": "1.500s", "open": {"a": [1.0, null, {"b": "c"}]},
        "any": {"@type": "type.googleapis.com/p.Tiny", "n": 5}}),
    );
    same(json!({"any": {"@type": "type.googleapis.com/google.protobuf.Duration", "value": "3s"}}));
    check(
        json!({"small": "12", "large": "#12", "huge": "#0xFF", "on": "true", "share": "0.5", "color": 2, "name": 5}),
        json!({"small": 12, "large": 12, "huge": 255, "on": true, "share": 0.5, "color": "BLUE", "name": "5"}),
    );
    check(json!({"small": "x", "share": null, "nobody": 1, "numbers": "7"}), json!({"numbers": [7]}));
    check(json!({"small": 1.9, "color": 7, "raw": "_w"}), json!({"small": 1, "color": 7, "raw": "/w=="}));
    check(
        json!({"at": {"seconds": 1}, "text": {"value": "y"}}),
        json!({"at": "1970-01-01T00:00:01Z", "text": "y"}),
    );
    check(
        json!({"any": {"type_url": "x/nobody", "value": "AA=="}}),
        json!({"any": {"type_url": "x/nobody", "value": "AA=="}}),
    );
    check(json!({"share": "NaN", "part": "-inf"}), json!({"share": "NaN", "part": "-Infinity"}));
    check(json!({"right": 1, "left": "a"}), json!({"left": "a"}));
}

#[test]
fn invalid_messages_are_refused() {
    let check = |json: Value, expected: &str| {
        assert_eq!(made("p.All", &json).unwrap_err(), expected, "{json}");
    };
    check(json!({"color": "GREEN"}), "p.All.color: unknown value");
    check(json!({"large": "x"}), "p.All.large: the number is out of range");
    check(json!({"huge": -1}), "p.All.huge: the number is out of range");
    check(json!({"small": 3_000_000_000_u32}), "p.All.small: the number is out of range");
    check(json!({"on": "perhaps"}), "p.All.on: a boolean is expected");
    check(json!({"name": {}}), "p.All.name: a string is expected");
    check(json!({"raw": "?"}), "p.All.raw: base64 is expected");
    check(json!({"child": 1}), "an object is expected for p.All");
    check(json!({"counts": []}), "p.All.counts: an object is expected");
    check(json!([]), "an object is expected for p.All");
}

#[test]
fn forms_of_messages() {
    let message =
        made("p.All", &json!({"large": -3_000_000_000_i64, "huge": 7, "color": "BLUE", "child": {}}))
            .unwrap();
    let with = |change: fn(&mut Form)| {
        let mut form = FORM;
        change(&mut form);
        shown(form, &message)
    };
    assert_eq!(with(|form| form.enums_by_name = false)["color"], 2);
    assert_eq!(with(|form| form.large_integers = LargeIntegers::Decimal)["large"], "#-3000000000");
    assert_eq!(with(|form| form.large_integers = LargeIntegers::Decimal)["huge"], 7);
    assert_eq!(with(|form| form.large_integers = LargeIntegers::Hexadecimal)["large"], "#-0xB2D05E00");
    let all = with(|form| form.defaults = Defaults::Proto3);
    assert_eq!(
        all["child"],
        json!({"name": "", "small": 0, "large": 0, "huge": 0, "on": false, "share": 0.0, "raw": "",
        "color": "RED", "children": [], "numbers": [], "counts": {}, "part": 0.0})
    );
    assert!(FORM.message(&message, 10).is_err());
}

#[test]
fn messages_are_measured_before_they_are_held() {
    let fits = |bytes: &[u8], most| size::fits(&pool().get_message_by_name("p.All").unwrap(), bytes, most);
    // A packed list, whose values take a byte each.
    let packed = [&[0x5a, 100][..], &[1; 100]].concat();
    assert!(fits(&packed, 101) && !fits(&packed, 100));
    // Children without anything in them: two bytes each.
    let children = [0x52, 0].repeat(50);
    assert!(fits(&children, 50) && !fits(&children, 49));
    // One within the other.
    let mut deep = Vec::new();
    for _ in 0..150 {
        let mut outer = vec![0x4a];
        prost_reflect::prost::encoding::encode_varint(deep.len() as u64, &mut outer);
        outer.extend_from_slice(&deep);
        deep = outer;
    }
    assert!(!fits(&deep, 1000));
    // Packed into each other, which the decoder does not see.
    let mut any = Vec::new();
    for _ in 0..150 {
        let url = b"/google.protobuf.Any";
        let mut outer = [&[0x0a, url.len() as u8][..], url, &[0x12]].concat();
        prost_reflect::prost::encoding::encode_varint(any.len() as u64, &mut outer);
        outer.extend_from_slice(&any);
        any = outer;
    }
    assert!(!size::fits(&pool().get_message_by_name("google.protobuf.Any").unwrap(), &any, 10_000));
    assert!(!fits(&[0x5b].repeat(150), 1000), "groups");
}

/// The schema of p.All in the document of its definition.
fn described() -> &'static (Schemas, SchemaId) {
    static ALL: OnceLock<(Schemas, SchemaId)> = OnceLock::new();
    ALL.get_or_init(|| {
        let document = sigma_convert::openapi::openapi(&"p".parse().unwrap(), DEFINITION).unwrap();
        let document = OpenApi::of(document).unwrap();
        let mut reading = Reading::new(document.root().value, document.dialect(Sender::Node));
        let id = reading.schema("/components/schemas/p.All").unwrap();
        (reading.finish().unwrap(), id)
    })
}

/// A value of p.All as JSON has it, with what stays as it is.
fn value() -> impl Strategy<Value = Value> {
    let scalars =
        (any::<i32>(), any::<i64>(), any::<u64>(), any::<bool>(), ".{0,8}", any::<u16>(), any::<[u8; 3]>());
    let leaf = scalars.prop_map(|(small, large, huge, on, name, share, raw)| {
        let raw = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, raw);
        json!({"small": small, "large": large, "huge": huge, "on": on, "name": name, "share": f64::from(share) / 8.0,
            "raw": raw, "color": if on { "RED" } else { "BLUE" }})
    });
    leaf.prop_recursive(4, 24, 3, |inner| {
        let parts = (
            prop::collection::vec(inner.clone(), 0..3),
            prop::collection::vec(any::<i32>(), 0..4),
            prop::collection::btree_map("[a-z]{1,3}", any::<i64>(), 0..3),
            prop::option::of(inner),
            prop::option::of("[a-z]{0,3}"),
            0..4_000_000_000_u32,
        );
        parts.prop_map(|(children, numbers, counts, child, maybe, seconds)| {
            let mut made = json!({"children": children, "numbers": numbers, "counts": counts,
                "at": {"seconds": seconds}, "text": maybe, "open": {"a": [true, null, {"b": 1.5}]}});
            made["child"] = child.unwrap_or(Value::Null);
            made
        })
    })
}

proptest! {
    /// A value that was a message once is the same value afterwards, and the same bytes.
    #[test]
    fn values_are_there_and_back_again(value in value()) {
        let message = made("p.All", &value).unwrap();
        let once = shown(FORM, &message);
        let again = |form: Form| shown(FORM, &made("p.All", &shown(form, &message)).unwrap());
        prop_assert_eq!(&once, &again(FORM));
        prop_assert_eq!(&once, &again(Form { defaults: Defaults::All, ..FORM }));
        let odd = Form { enums_by_name: false, large_integers: LargeIntegers::Hexadecimal, ..FORM };
        prop_assert_eq!(&once, &again(odd));
        let bytes = message.encode_to_vec();
        prop_assert_eq!(&once, &shown(FORM, &DynamicMessage::decode(fuzzed().clone(), &bytes[..]).unwrap()));
    }

    /// The document describes all output of the plugin; and input by the document is accepted.
    #[test]
    fn messages_are_as_the_document_says(value in value()) {
        let message = made("p.All", &value).unwrap();
        for defaults in [Defaults::None, Defaults::Proto3, Defaults::All] {
            let shown = shown(Form { defaults, ..FORM }, &message);
            let (schemas, id) = described();
            let outcome = schemas.check_of_stranger(*id, &shown, 100_000);
            prop_assert!(outcome.is_ok(), "{outcome:?} {shown}");
        }
    }

    #[test]
    fn fuzzed_invariants_hold(form in prop_oneof![0..2_u8, 0x80..0x90_u8], bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        grpc_transcode(&[&[form], &bytes[..]].concat());
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let desc = pool().get_message_by_name("p.All").unwrap();
        if size::fits(&desc, &bytes, 1000)
            && let Ok(message) = DynamicMessage::decode(desc, &bytes[..])
        {
            let _ = FORM.message(&message, 4096);
        }
    }
}

fn plugin(more: &Value) -> Entry {
    let conf = crate::testing::merged(json!({"proto_id": 1, "service": "p.S", "method": "One"}), more);
    entry_beside_proto("grpc-transcode", conf, DEFINITION).unwrap()
}

/// Returns target and message of a request's call, or the response.
fn asked(entry: &Entry, head: &str, body: &str) -> (String, Value) {
    let mut case = Case::new(head);
    case.body = body.into();
    if let Some(reply) = case.run(entry, Phase::Access) {
        return (summary(Some(&reply)), Value::Null);
    }
    let frame = case.ctx.body.clone().unwrap();
    assert_eq!(usize::from(frame[4]), frame.len() - 5);
    assert_eq!(case.ctx.request.method_token(), b"POST");
    assert_eq!(case.sent("content-type").as_deref(), Some("application/grpc"));
    let message = DynamicMessage::decode(pool().get_message_by_name("p.All").unwrap(), &frame[5..]).unwrap();
    (case.target(), shown(FORM, &message))
}

#[test]
fn requests_become_calls() {
    let entry = plugin(&json!({}));
    let check = |head: &str, body: &str, expected: Value| {
        let head = format!(
            "{head} HTTP/1.1\nHost: h\nContent-Type: application/json; x=y\nContent-Length: {}",
            body.len()
        );
        assert_eq!(asked(&entry, &head, body), ("/p.S/One".to_owned(), expected), "{head}");
    };
    check("POST /", r#"{"name": "x"}"#, json!({"name": "x"}));
    check("PUT /?name=y", r#"{"small": 1}"#, json!({"small": 1}));
    check("POST /?small=1", "name=a+b&numbers=1&numbers=2", json!({"name": "a b", "numbers": [1, 2]}));
    check("POST /", "[1]", json!({}));
    check("GET /?name=z&on=1", "", json!({"name": "z", "on": true}));
}

#[test]
fn invalid_requests_are_refused() {
    let check = |more: Value, head: &str, body: &str, expected: &str| {
        let head = format!("{head}\nContent-Type: application/json\nContent-Length: {}", body.len());
        assert_eq!(asked(&plugin(&more), &head, body).0, expected, "{head}");
    };
    let post = "POST / HTTP/1.1\nHost: h";
    check(json!({}), post, r#"{"color": "GREEN"}"#, "400");
    check(json!({}), post, "{", "400");
    check(json!({}), post, r#" {"name": "x"} y"#, "400");
    check(json!({"method": "None"}), post, "{}", "503");
    check(json!({"service": "p.T"}), post, "{}", "503");
    check(json!({"max_req_body_size": 1}), post, "{}", "413");
    check(json!({"max_body_values": 2}), post, r#"{"numbers": [1, 2]}"#, "413");
    check(json!({}), &format!("{post}\nContent-Encoding: gzip"), "{}", "415");
}

#[test]
fn annotations_map_requests_to_methods() {
    let conf = json!({"proto_id": "1", "service": "p.S", "http_rules": true});
    let entry = entry_beside_proto("grpc-transcode", conf, DEFINITION).unwrap();
    let check = |head: &str, body: &str, expected: (&str, Value)| {
        let head = format!("{head} HTTP/1.1\nHost: h\nContent-Length: {}", body.len());
        assert_eq!(asked(&entry, &head, body), (expected.0.to_owned(), expected.1), "{head}");
    };
    let one = "/p.S/One";
    check(
        "POST /v1/a/7:make?small=3&child.small=1",
        r#"{"name": "c"}"#,
        (one, json!({"name": "a/7", "small": 3, "child": {"name": "c", "small": 1}})),
    );
    check("GET /v1/x?child.on=true", "", (one, json!({"child": {"name": "x", "on": true}})));
    check("PUT /v1/all?small=3", r#"{"name": "c"}"#, (one, json!({"name": "c"})));
    check("PUT /v1/all", "[]", ("400", Value::Null));
    check("PUT /v1/all", "{", ("400", Value::Null));
    check("DELETE /v1/x", "", ("404", Value::Null));
    check("GET /v1/x?child.name.y=1", "", (one, json!({"child": {"name": "x"}})));
}

/// The messages that the values of a body become, in pieces of it, or why they break off.
fn streamed(more: &Value, line: &str, pieces: &[&[u8]]) -> Result<Vec<Value>, &'static str> {
    let conf = json!({"proto_id": 1, "service": "p.S", "method": "Collect", "http_rules": true});
    let entry = entry_beside_proto("grpc-transcode", crate::testing::merged(conf, more), DEFINITION).unwrap();
    let mut case = Case::new(&format!("{line} HTTP/1.1\nHost: h\nContent-Type: application/x-ndjson"));
    assert!(case.run(&entry, Phase::Access).is_none(), "{line}");
    assert_eq!((case.target().as_str(), case.ctx.body.as_deref()), ("/p.S/Collect", None), "{line}");
    let env = Env::new(&case.node, &case.local, &case.consumers);
    let mut filter = entry.plugin.request_filter(&mut case.ctx, &env).unwrap();
    let frames = pieces.iter().map(|piece| Frame::Data(Chunk::copy_of(piece)));
    let mut source = Given(frames.collect());
    let (mut task, mut sent) = (task::Context::from_waker(task::Waker::noop()), Vec::new());
    loop {
        match filter.poll_frame(&mut source, &mut case.ctx, &mut task) {
            Poll::Ready(Ok(Frame::Data(data))) => sent.extend_from_slice(&data),
            Poll::Ready(Ok(_)) => break,
            Poll::Ready(Err(fault)) => return Err(fault.reason),
            Poll::Pending => panic!("the filter waits for nobody"),
        }
    }
    let (mut messages, mut rest) = (Vec::new(), &sent[..]);
    while let [0, 0, 0, high, low, behind @ ..] = rest {
        let (message, left) = behind.split_at(usize::from(*high) << 8 | usize::from(*low));
        let message = DynamicMessage::decode(pool().get_message_by_name("p.All").unwrap(), message).unwrap();
        messages.push(shown(FORM, &message));
        rest = left;
    }
    assert!(rest.is_empty(), "{}", rest.escape_ascii());
    Ok(messages)
}

#[test]
fn streams_of_messages() {
    let check = |line: &str, pieces: &[&[u8]], expected: Result<Value, &str>| {
        let found = streamed(&json!({}), line, pieces).map(Value::from);
        assert_eq!(found, expected, "{line} {pieces:?}");
    };
    let post = "POST /";
    check(post, &[b"{\"small\": 1}\n{\"sma", b"ll\": 2}"], Ok(json!([{"small": 1}, {"small": 2}])));
    check(post, &[b"[{\"small\": 1},", b" {}", b"]"], Ok(json!([{"small": 1}, {}])));
    check(post, &[], Ok(json!([])));
    check(post, &[b"[", b"]"], Ok(json!([])));
    check(post, &[b"{} x"], Err("the body is not JSON"));
    check(post, &[b"[{}"], Err("the body is not JSON"));
    check(post, &[b"{\"color\": \"GREEN\"}"], Err("cannot convert the request to a message"));
    check(post, &[b"1"], Err("cannot convert the request to a message"));
    // The head belongs to the first message.
    let many = "POST /v1/many/a?small=7";
    check(many, &[b"{\"name\": \"b\"}{\"name\": \"c\"}"], Ok(json!([{"name": "a"}, {"name": "c"}])));
    check(many, &[], Ok(json!([{"name": "a"}])));
    check(
        "POST /v1/children/a?small=7",
        &[b"[{\"on\": true}, {}]"],
        Ok(json!([{"name": "a", "small": 7, "child": {"on": true}}, {"child": {}}])),
    );
}

#[test]
fn messages_of_streams_have_limits() {
    let check = |more: Value, pieces: &[&[u8]], expected: Result<usize, &str>| {
        assert_eq!(streamed(&more, "POST /", pieces).map(|all| all.len()), expected, "{more}");
    };
    let small = json!({"max_req_body_size": 8});
    check(small.clone(), &[b"{\"on\":1}{\"on\":1} {\"on\":1}"], Ok(3));
    check(small.clone(), &[b"{\"on\" :1}"], Err("a message exceeds max_req_body_size"));
    check(small, &[b"{\"on", b"\"  :1"], Err("a message exceeds max_req_body_size"));
    let few = json!({"max_body_values": 2});
    check(few.clone(), &[b"{\"on\":1}{\"on\":1}"], Ok(2));
    check(few, &[b"{\"on\":1,\"small\":1}"], Err("a message has too many values"));
}

/// A body that is not a stream of JSON is one message.
#[test]
fn single_messages_of_streams() {
    let conf = json!({"proto_id": 1, "service": "p.S", "method": "Collect", "http_rules": true});
    let entry = entry_beside_proto("grpc-transcode", conf, DEFINITION).unwrap();
    let check = |head: &str, body: &str, expected: Value| {
        let head = format!("{head}\nContent-Length: {}", body.len());
        assert_eq!(asked(&entry, &head, body), ("/p.S/Collect".to_owned(), expected), "{head}");
    };
    check("GET /v1/nobody/a?small=1 HTTP/1.1\nHost: h", "", json!({"name": "a", "small": 1}));
    check(
        "POST / HTTP/1.1\nHost: h\nContent-Type: application/x-www-form-urlencoded",
        "small=1",
        json!({"small": 1}),
    );
    check("GET /?small=1 HTTP/1.1\nHost: h", "", json!({"small": 1}));
}

#[test]
fn nodes_get_deadlines() {
    let check = |deadline: Value, expected: Option<&str>| {
        let mut case = Case::new("GET / HTTP/1.1\nHost: h");
        case.run(&plugin(&json!({"deadline": deadline})), Phase::Access);
        assert_eq!(case.sent("grpc-timeout").as_deref(), expected, "{deadline}");
    };
    check(json!(0), None);
    check(json!(-5), None);
    check(json!(1500), Some("1500m"));
    check(json!(0.5), Some("1m"));
    check(json!(100_000_000), Some("100000S"));
}

/// Returns status, type and body of the client's response.
fn answered(more: &Value, fields: &str, pieces: &[&[u8]]) -> (u16, String, String) {
    let entry = plugin(more);
    let mut case = Case::new("GET / HTTP/1.1\nHost: h");
    assert!(case.run(&entry, Phase::Access).is_none());
    case.respond(200, fields);
    case.ctx.record.source = Source::Upstream;
    let body = case.filter(&entry, pieces);
    (case.ctx.response.status, case.answered("content-type"), String::from_utf8(body).unwrap())
}

#[test]
fn answers_become_json() {
    let check = |more: Value, fields: &str, pieces: &[&[u8]], expected: (u16, &str, &str)| {
        let (status, media_type, body) = answered(&more, fields, pieces);
        assert_eq!((status, &*media_type, &*body), expected, "{more} {fields}");
    };
    let json = "application/json";
    let quiet = json!({"pb_option": ["no_default_values"]});
    check(quiet.clone(), "", &[b"\0\0\0", b"\0\x02\x10\x07"], (200, json, r#"{"small":7}"#));
    check(quiet.clone(), "", &[b"\0\0\0\0\0"], (200, json, "{}"));
    check(quiet.clone(), "", &[], (500, json, ""));
    let undecoded = (502, "text/plain; charset=utf-8", "failed to decode response data by protobuf");
    check(quiet.clone(), "", &[b"\0\0\0\0\x02\x10"], undecoded);
    check(quiet.clone(), "", &[b"\x01\0\0\0\x02\x10\x07"], undecoded);
    check(quiet.clone(), "", &[b"\0\0\0\0\x02\xff\xff"], undecoded);
    let small = json!({"pb_option": ["no_default_values"], "max_resp_body_size": 6});
    check(small, "", &[b"\0\0\0\0\x02\x10\x07"], undecoded);
    let stream = json!({"pb_option": ["no_default_values"], "method": "Many"});
    check(
        stream,
        "",
        &[b"\0\0\0\0\x02\x10\x07\0\0", b"\0\0\0\0\0\0\0\x02\x10\x08"],
        (200, "application/x-ndjson", "{\"small\":7}\n{}\n{\"small\":8}\n"),
    );
    check(quiet, "grpc-status: 5", &[], (404, json, ""));
}

#[test]
fn statuses_of_calls() {
    let of = |code: &str| super::status::http(code.as_bytes());
    let all: Vec<u16> = (1..=17).map(|code| of(&code.to_string())).collect();
    assert_eq!(all, [499, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 501, 500, 503, 500, 401, 599]);
}

#[test]
fn details_of_failures() {
    let check = |more: Value, details: &str, expected: &str| {
        let conf = crate::testing::merged(
            json!({"show_status_in_body": true, "pb_option": ["no_default_values"]}),
            &more,
        );
        let fields = format!("grpc-status: 14\n{details}");
        let (status, _, body) = answered(&conf, &fields, &[]);
        assert_eq!((status, &*body), (503, expected), "{conf} {details}");
    };
    // Code 14, `down`, and a detail of p.Tiny with n = 5.
    let packed = "grpc-status-details-bin: CA4SBGRvd24aDgoIeC9wLlRpbnkSAggF";
    check(json!({}), "", "");
    check(
        json!({}),
        packed,
        r#"{"error":{"code":14,"message":"down","details":[{"type_url":"x/p.Tiny","value":{"n":5}}]}}"#,
    );
    check(
        json!({"status_detail_type": "p.Tiny"}),
        packed,
        r#"{"error":{"code":14,"message":"down","details":[{"n":5}]}}"#,
    );
    check(
        json!({"status_detail_type": "p.None"}),
        packed,
        "failed to call pb.decode to decode details in grpc-status-details-bin",
    );
    check(
        json!({"status_detail_type": "p.All"}),
        "grpc-status-details-bin: GgQSAv//",
        "failed to decode details in grpc-status-details-bin",
    );
    check(json!({}), "grpc-status-details-bin: ?", "grpc-status-details-bin is not base64 format");
    check(json!({}), "grpc-status-details-bin: //8", "failed to decode grpc-status-details-bin");
}

#[test]
fn configurations_that_are_refused() {
    let check = |more: Value, expected: &str| {
        let conf = crate::testing::merged(json!({"proto_id": "1", "service": "p.S", "method": "One"}), &more);
        assert_refusal("grpc-transcode", &conf, expected);
    };
    check(json!({}), "");
    check(
        json!({"pb_option": []}),
        "property \"pb_option\" validation failed: expect array to have at least 1 items",
    );
    check(json!({"pb_option": ["x"]}), "failed to validate item 1: matches none of the enum values");
    check(json!({"max_resp_body_size": 0}), "expected 0 to be at least 1");
    check(json!({"proto_id": "a b"}), "property \"proto_id\" validation failed");
    assert_refusal(
        "grpc-transcode",
        &json!({"proto_id": "1", "service": "p.S"}),
        "property \"method\" is required",
    );
    assert_refusal(
        "grpc-transcode",
        &json!({"proto_id": "1", "method": "M"}),
        "property \"service\" is required",
    );
    assert_refusal(
        "grpc-transcode",
        &json!({"service": "p.S", "method": "M"}),
        "property \"proto_id\" is required",
    );
    assert_refusal("grpc-transcode", &json!({"proto_id": "1", "service": "p.S", "http_rules": true}), "");
}

/// A node might serve the request as it is.
#[test]
fn request_without_its_proto_is_refused() {
    let missing =
        crate::testing::entry("grpc-transcode", json!({"proto_id": 1, "service": "p.S", "method": "One"}));
    let broken =
        entry_beside_proto("grpc-transcode", json!({"proto_id": 1, "service": "p.S", "method": "One"}), "?");
    for plugin in [missing, broken].map(Result::unwrap) {
        let mut case = Case::new("GET /any?a=1 HTTP/1.1\nHost: h");
        assert!(summary(case.run(&plugin, Phase::Access).as_ref()).starts_with("503"));
    }
}
