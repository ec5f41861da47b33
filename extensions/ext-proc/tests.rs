//! Tests of the plugin with a scripted stream.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{self, Poll};

use prost::Message;
use serde_json::{Value, json};
use sigma_plugin::outbound::{
    Call, CallError, Calling, MessageStream, Missing, Outbound, StreamCall, StreamError,
};
use sigma_plugin::{Entry, Env, Reply};

use crate::messages::{
    CommonAnswer, CommonResponse, HeaderMutation, HttpStatus, ImmediateResponse, Part, PartResponse,
    ProcessingRequest, ProcessingResponse,
};
use crate::testing::{Case, assert_refusal, entry, warned};
use sigma_plugin_kit::envoy::{HeaderOption, HeaderValue};

/// The end of a script.
#[derive(Clone)]
enum End {
    Silence,
    Clean,
    Broken(Missing),
}

/// A processor with fixed responses: each message gets the next list of them.
struct Script {
    answers: RefCell<VecDeque<Vec<Vec<u8>>>>,
    end: End,
    got: Rc<RefCell<Vec<ProcessingRequest>>>,
}

struct Scripted {
    answers: VecDeque<Vec<Vec<u8>>>,
    ready: VecDeque<Vec<u8>>,
    end: End,
    got: Rc<RefCell<Vec<ProcessingRequest>>>,
}

impl MessageStream for Scripted {
    fn poll_sent(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), StreamError>> {
        Poll::Ready(Ok(()))
    }

    fn send(&mut self, message: &[u8]) {
        self.got.borrow_mut().push(ProcessingRequest::decode(message).unwrap());
        self.ready.extend(self.answers.pop_front().unwrap_or_default());
    }

    fn finish(&mut self) {}

    fn poll_message(&mut self, _: &mut task::Context<'_>) -> Poll<Result<Option<Vec<u8>>, StreamError>> {
        if let Some(message) = self.ready.pop_front() {
            return Poll::Ready(Ok(Some(message)));
        }
        match &self.end {
            _ if !self.answers.is_empty() => Poll::Pending,
            End::Silence => Poll::Pending,
            End::Clean => Poll::Ready(Ok(None)),
            End::Broken(missing) => {
                Poll::Ready(Err(StreamError { reason: "broken".to_owned(), missing: *missing }))
            }
        }
    }
}

impl Outbound for Script {
    fn call(&self, _: Call) -> Calling {
        Box::pin(std::future::ready(Err(CallError("not here".to_owned()))))
    }

    fn open_stream(&self, _: StreamCall) -> Box<dyn MessageStream> {
        Box::new(Scripted {
            answers: std::mem::take(&mut self.answers.borrow_mut()),
            ready: VecDeque::new(),
            end: self.end.clone(),
            got: Rc::clone(&self.got),
        })
    }
}

fn message(answer: PartResponse) -> Vec<u8> {
    ProcessingResponse { response: Some(answer), ..ProcessingResponse::default() }.encode_to_vec()
}

fn headers(response: CommonResponse) -> Vec<u8> {
    message(PartResponse::RequestHeaders(CommonAnswer { response: Some(response) }))
}

fn sets(key: &str, value: &str) -> CommonResponse {
    let header = Some(HeaderValue { key: key.into(), raw_value: value.into(), ..HeaderValue::default() });
    let set_headers = vec![HeaderOption { header, ..HeaderOption::default() }];
    let header_mutation = Some(HeaderMutation { set_headers, remove_headers: Vec::new() });
    CommonResponse { header_mutation, ..CommonResponse::default() }
}

fn conf(more: Value) -> Value {
    crate::testing::merged(json!({"grpc_service": {"uri": "http://127.0.0.1:1"}}), &more)
}

fn built(more: Value) -> Entry {
    entry("ext-proc", conf(more)).unwrap()
}

/// Runs the access hook; the reply, the request's field `x-new`, and the messages.
fn run(
    more: Value,
    answers: Vec<Vec<Vec<u8>>>,
    end: End,
) -> (Option<u16>, Option<String>, Vec<ProcessingRequest>) {
    let entry = built(more);
    let mut case = Case::new("GET /a HTTP/1.1\nHost: h\nX-A: 1");
    let script = Script { answers: RefCell::new(answers.into()), end, got: Rc::default() };
    let env = Env { outbound: &script, ..Env::new(&case.node, &case.local, &case.consumers) };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let reply: Option<Reply> = runtime
        .block_on(async {
            entry.plugin.access(&mut case.ctx, &env).settled(&mut case.ctx, &env, Vec::new()).await
        })
        .unwrap();
    let got = script.got.borrow().clone();
    (reply.map(|reply| reply.status), case.sent("x-new"), got)
}

#[test]
fn head_of_the_request() {
    let (reply, new, got) = run(json!({}), vec![vec![headers(sets("x-new", "1"))]], End::Silence);
    assert_eq!((reply, new.as_deref()), (None, Some("1")));
    let [ProcessingRequest { request: Some(Part::RequestHeaders(head)), protocol_config: Some(_), .. }] =
        &got[..]
    else {
        panic!("{got:?}");
    };
    assert!(head.end_of_stream);
    let fields: Vec<_> = head.headers.iter().flat_map(|map| &map.headers).collect();
    let texts: Vec<_> = fields.iter().map(|field| (&*field.key, &field.raw_value[..])).collect();
    let expected: [(&str, &[u8]); 5] =
        [(":method", b"GET"), (":scheme", b"http"), (":authority", b"h"), (":path", b"/a"), ("x-a", b"1")];
    assert_eq!(texts, expected);
}

#[test]
fn failures_have_their_status() {
    let check = |more: Value, answers: Vec<Vec<Vec<u8>>>, end: End, expected: Option<u16>| {
        let (reply, ..) = run(more.clone(), answers, end);
        assert_eq!(reply, expected, "{more}");
    };
    let ok = || headers(CommonResponse::default());
    let other = || message(PartResponse::ResponseHeaders(CommonAnswer::default()));
    check(json!({}), vec![], End::Broken(Missing::Node), Some(500));
    check(json!({}), vec![], End::Broken(Missing::Time), Some(504));
    check(json!({"status_on_error": 502}), vec![], End::Broken(Missing::Response), Some(502));
    check(json!({"failure_mode_allow": true}), vec![], End::Broken(Missing::Node), None);
    check(json!({}), vec![vec![]], End::Silence, Some(504));
    check(json!({"failure_mode_allow": true}), vec![vec![]], End::Silence, None);
    check(json!({}), vec![], End::Clean, None);
    check(json!({}), vec![vec![b"garbage".to_vec()]], End::Silence, Some(500));
    check(json!({}), vec![vec![Vec::new()]], End::Silence, Some(500));
    check(json!({}), vec![vec![other()]], End::Silence, Some(500));
    check(json!({}), vec![vec![ok()]], End::Silence, None);
    check(json!({}), vec![vec![ok(), ok()]], End::Silence, Some(500));
    check(json!({"failure_mode_allow": true}), vec![vec![ok(), ok()]], End::Silence, None);
    check(json!({}), vec![vec![headers(sets("a b", "1"))]], End::Silence, Some(500));
    check(json!({}), vec![vec![headers(sets("host", "x"))]], End::Silence, None);
    check(
        json!({"mutation_rules": {"disallow_is_error": true}}),
        vec![vec![headers(sets("host", "x"))]],
        End::Silence,
        Some(500),
    );
}

#[test]
fn responses_by_the_processor() {
    let status = Some(HttpStatus { code: 403 });
    let answer =
        || message(PartResponse::Immediate(ImmediateResponse { status, ..ImmediateResponse::default() }));
    assert_eq!(run(json!({}), vec![vec![answer()]], End::Silence).0, Some(403));
    let disabled = json!({"disable_immediate_response": true});
    assert_eq!(run(disabled, vec![vec![answer()]], End::Silence).0, Some(500));
}

#[test]
fn timeouts_can_be_extended_within_limits() {
    let more = |seconds| {
        let override_message_timeout = Some(crate::messages::Duration { seconds, nanos: 0 });
        ProcessingResponse { override_message_timeout, ..ProcessingResponse::default() }.encode_to_vec()
    };
    // The clock is paused: it jumps to the next timer. So a longer timeout and none differ in the time that passed.
    for (limit, seconds) in [(0, 5), (9000, 5), (9000, 60)] {
        let (reply, ..) = run(json!({"max_message_timeout": limit}), vec![vec![more(seconds)]], End::Silence);
        assert_eq!(reply, Some(504), "{limit} {seconds}");
    }
}

#[test]
fn a_skipped_head_sends_nothing() {
    let skip = json!({"processing_mode": {"request_header_mode": "SKIP"}});
    let (reply, _, got) = run(skip, vec![], End::Silence);
    assert_eq!((reply, got.len()), (None, 0));
}

#[test]
fn forward_rules_hide_fields() {
    let rules = json!({"forward_rules": {"disallowed_headers": {"patterns": [{"exact": "x-a"}, {"exact": ":path"}]}}});
    let (.., got) = run(rules, vec![vec![headers(CommonResponse::default())]], End::Silence);
    let Some(Part::RequestHeaders(head)) = &got[0].request else { panic!("{got:?}") };
    let names: Vec<_> = head.headers.iter().flat_map(|map| &map.headers).map(|field| &*field.key).collect();
    assert_eq!(names, [":method", ":scheme", ":authority"]);
}

#[test]
fn refusals_of_configurations() {
    let check = |more: Value, expected: &str| assert_refusal("ext-proc", &conf(more), expected);
    check(json!({}), "");
    check(json!({"message_timeout": 0}), "message_timeout");
    check(json!({"status_on_error": 200}), "status_on_error");
    check(json!({"http_service": {"uri": "http://a"}}), "not both");
    check(json!({"grpc_service": {"uri": "http://a/x"}}), "remove `/x`");
    let metadata = |name: &str, value: &str| {
        let mut metadata = json!({});
        metadata[name] = value.into();
        json!({"grpc_service": {"uri": "http://a", "initial_metadata": metadata}})
    };
    check(metadata("x-a", "1"), "");
    check(metadata("te", "1"), "`te` cannot be set");
    check(metadata("grpc-timeout", "1"), "`grpc-timeout` cannot be set");
    check(metadata("content-length", "1"), "`content-length` cannot be set");
    check(metadata("x-a", "a\r\nb"), "control characters");
    let mode = |mode: Value| json!({"processing_mode": mode});
    check(mode(json!({"request_body_mode": "GRPC"})), "request_body_mode");
    check(mode(json!({"request_body_mode": "FULL_DUPLEX_STREAMED"})), "request_trailer_mode");
    check(mode(json!({"response_body_mode": "FULL_DUPLEX_STREAMED"})), "response_trailer_mode");
    let duplex = json!({"request_body_mode": "FULL_DUPLEX_STREAMED", "request_trailer_mode": "SEND"});
    check(mode(duplex.clone()), "");
    check(
        json!({"allow_mode_override": true, "allowed_override_modes": [duplex]}),
        "allowed_override_modes[0]",
    );
    check(json!({"allowed_override_modes": [{}]}), "set allow_mode_override too");
    let buffered = json!({"request_body_mode": "BUFFERED"});
    check(json!({"observability_mode": true, "processing_mode": buffered}), "NONE or STREAMED");
    check(json!({"request_attributes": ["request.other"]}), "request_attributes");
    check(json!({"mutation_rules": {"allow_expression": {"regex": "("}}}), "mutation_rules.allow_expression");
    let http = |more: Value| crate::testing::merged(json!({"http_service": {"uri": "http://a/x"}}), &more);
    assert_refusal("ext-proc", &http(json!({})), "");
    assert_refusal("ext-proc", &http(json!({"observability_mode": true})), "http_service allows neither");
    assert_refusal("ext-proc", &http(mode(json!({"request_body_mode": "STREAMED"}))), "headers only");
    assert_refusal("ext-proc", &json!({}), "set grpc_service or http_service");
}

#[test]
fn warnings_about_services() {
    let scope = sigma_schema::plugins::PluginScope::Http;
    let warned = |service: Value| warned("ext-proc", scope, &json!({"grpc_service": service}));
    assert_eq!(warned(json!({"uri": "http://a"})), ["grpc_service/uri"]);
    assert_eq!(warned(json!({"uri": "https://a", "ssl_verify": false})), ["grpc_service/ssl_verify"]);
    assert!(warned(json!({"uri": "https://a"})).is_empty());
}
