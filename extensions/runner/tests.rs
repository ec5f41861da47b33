//! The plugins and the client against a scripted runner, over a real Unix socket.

use std::future::Future;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::task;
use std::time::Duration;

use serde_json::{Value, json};
use sigma_config::ext_plugin::ExtPlugin;
use sigma_http::{BodyLength, Chunk, Frame};
use sigma_plugin::record::Source;
use sigma_plugin::{Entry as Instance, Env, Node, Phase, Reply, ResponseStep};

use crate::client::{Client, Conf, Event, Outcome};
use crate::flat::read::Table;
use crate::messages::{Entry, Message, Rewrite, kind, response_call, runner as made};
use crate::runner::Runner;
use crate::scripted::{Act, Got, Scripted, nowhere};
use crate::testing::{Case, Given, assert_refusal, roster, summary};

fn entry<'a>(name: &'a str, value: Option<&'a str>) -> Entry<'a> {
    Entry { name: name.as_bytes(), value: value.map(str::as_bytes) }
}

/// Gives a token, and then acts by `script`.
fn runner(script: impl Fn(usize, &Got) -> Act + Send + Sync + 'static) -> Scripted {
    Scripted::start(move |number, got| match got.kind {
        kind::PREPARE_CONF => Act::Send(made::token(7)),
        _ => script(number, got),
    })
}

/// Always sends the same frame for a call.
fn replying(frame: Vec<u8>) -> Scripted {
    runner(move |_, _| Act::Send(frame.clone()))
}

/// An instance whose runner listens there.
fn instance(name: &str, conf: Value, socket: &Path) -> Instance {
    let attributes = json!({"ext-plugin": {"path": socket}});
    let node = Arc::new(Node::new(|_| {}, attributes, String::new()));
    let conf = Arc::new(conf);
    let resolved = Value::clone(&conf);
    roster().build(name, &conf, resolved, "/apisix/routes/1", &|_: &str| None, &node).unwrap()
}

fn pre_req(socket: &Path) -> Instance {
    instance("ext-plugin-pre-req", json!({"conf": [{"name": "say", "value": "{}"}]}), socket)
}

fn rewriting(rewrite: &Rewrite<'_>) -> Scripted {
    replying(made::rewrite(rewrite))
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn configurations() {
    for name in ["ext-plugin-pre-req", "ext-plugin-post-req", "ext-plugin-post-resp"] {
        let check = |conf: Value, expected: &str| assert_refusal(name, &conf, expected);
        check(json!({}), "");
        check(json!({"conf": [{"name": "a", "value": "{}"}], "allow_degradation": true}), "");
        check(json!({"conf": []}), "expect array to have at least 1 items");
        check(json!({"conf": [{"name": "a"}]}), "property \"value\" is required");
        check(json!({"conf": [{"value": "a"}]}), "property \"name\" is required");
        check(json!({"conf": [{"name": "", "value": "a"}]}), "string too short, expected at least 1, got 0");
        check(json!({"conf": [{"name": "a".repeat(129), "value": "a"}]}), "string too long");
        check(json!({"allow_degradation": 1}), "wrong type: expected boolean");
    }
}

#[test]
fn a_runner_responds_to_the_client() {
    let headers = [entry("x-a", Some("1")), entry("X-A", Some("2")), entry("content-length", Some("9"))];
    let scripted = replying(made::stop(403, &headers, b"no"));
    let plugin = pre_req(&scripted.socket());
    for _ in 0..2 {
        let reply = Case::new("GET /a?b=1 HTTP/1.1\nHost: h").run(&plugin, Phase::Rewrite).unwrap();
        assert_eq!(summary(Some(&reply)), "403 no");
        let values: Vec<&[u8]> = reply.headers.iter().map(|(_, value)| &value[..]).collect();
        assert_eq!(values, [b"1", b"2"]);
    }
    let check = |frame: Vec<u8>, expected: &str| {
        let scripted = replying(frame);
        let reply = Case::new("GET / HTTP/1.1\nHost: h").run(&pre_req(&scripted.socket()), Phase::Rewrite);
        assert_eq!(summary(reply.as_ref()), expected);
        reply
    };
    check(made::stop(0, &[], b"hello"), "200 hello");
    check(made::stop(0, &[], b""), "200");
    check(made::unchanged(), "passed");
    // An invalid part does not open the route.
    check(made::stop(99, &[], b""), "503");
    let reply = check(made::stop(401, &[entry("a b", Some("1")), entry("x", Some("1\r\n"))], b""), "401");
    assert!(reply.unwrap().headers.is_empty());
}

/// The first call requests a token; later ones of the same worker use it, on the same connection.
#[test]
fn a_token_and_a_connection_serve_many_calls() {
    let scripted = replying(made::unchanged());
    let plugin = pre_req(&scripted.socket());
    let mut case = Case::new("GET / HTTP/1.1\nHost: h");
    let env = Env::new(&case.node, &case.local, &case.consumers);
    let mut ctx = std::mem::take(&mut case.ctx);
    block_on(async {
        for _ in 0..3 {
            let step = plugin.plugin.rewrite(&mut ctx, &env);
            assert!(step.settled(&mut ctx, &env, Vec::new()).await.unwrap().is_none());
        }
    });
    assert_eq!((scripted.kinds(), scripted.connections()), (vec![1, 2, 2, 2], 1));
    let got = scripted.got();
    let prepared = Table::root(&got[0].payload).unwrap();
    let key = String::from_utf8(prepared.bytes(1).unwrap().unwrap().to_vec()).unwrap();
    assert!(key.starts_with("route#1#ext-plugin-pre-req#"), "{key}");
    let ids: Vec<u32> =
        got[1..].iter().map(|got| Table::root(&got.payload).unwrap().word(0).unwrap()).collect();
    assert_eq!(ids, [0, 1, 2]);
    assert_eq!(Table::root(&got[1].payload).unwrap().word(6), Ok(7));
}

#[test]
fn a_runner_gets_the_request() {
    let scripted = replying(made::unchanged());
    let mut case = Case::new("POST /a%20b?x=1&flag&x=%32 HTTP/1.1\nHost: h:1\nX-Two: 1\nX-Two: 2");
    assert!(case.run(&pre_req(&scripted.socket()), Phase::Rewrite).is_none());
    let got = scripted.got().pop().unwrap();
    let call = Table::root(&got.payload).unwrap();
    let list = |number: usize| -> Vec<(String, Option<String>)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let tables = call.tables(number).unwrap();
        tables.iter().map(|t| (text(t.bytes(0).unwrap().unwrap()), t.bytes(1).unwrap().map(text))).collect()
    };
    let pair = |name: &str, value: Option<&str>| (name.to_owned(), value.map(str::to_owned));
    assert_eq!((call.byte(2), call.bytes(1)), (Ok(2), Ok(Some(&[127, 0, 0, 1][..]))));
    assert_eq!(call.bytes(3), Ok(Some(&b"/a b"[..])));
    assert_eq!(list(4), [pair("x", Some("1")), pair("flag", None), pair("x", Some("2"))]);
    assert_eq!(list(5), [pair("host", Some("h:1")), pair("x-two", Some("1")), pair("x-two", Some("2"))]);
    // A path that another plugin has changed.
    let mut case = Case::new("GET /a?x=1 HTTP/1.1\nHost: h");
    case.ctx.target = b"/b%20c?y=2".to_vec();
    case.ctx.host = Some(b"node".to_vec());
    assert!(case.run(&pre_req(&scripted.socket()), Phase::Rewrite).is_none());
    let got = scripted.got().pop().unwrap();
    let call = Table::root(&got.payload).unwrap();
    assert_eq!(call.bytes(3), Ok(Some(&b"/b%20c"[..])));
    let first = |number: usize| call.tables(number).unwrap()[0].bytes(1).unwrap().unwrap();
    assert_eq!((first(4), first(5)), (&b"2"[..], &b"node"[..]));
}

#[test]
fn a_runner_changes_the_request() {
    let scripted = rewriting(&Rewrite {
        path: Some(b"/new path"),
        headers: vec![
            entry("X-User", Some("jack")),
            entry("x-old", None),
            entry("host", Some("other")),
            entry("content-length", Some("99")),
        ],
        args: vec![entry("a", None), entry("b", Some("2"))],
        resp_headers: vec![
            entry("X-Done", Some("1")),
            entry("Set-Cookie", Some("r=1")),
            entry("Content-Type", Some("text/evil")),
        ],
        body: b"new body",
    });
    let plugin = pre_req(&scripted.socket());
    let mut case = Case::new("POST /old?a=1&c=3 HTTP/1.1\nHost: h\nX-Old: 1\nX_User: forged\nContent-MD5: x");
    case.body = b"old".to_vec();
    assert!(case.run(&plugin, Phase::Rewrite).is_none());
    assert_eq!(case.target(), "/new%20path?c=3&b=2");
    assert_eq!((case.sent("X-User"), case.sent("X-Old")), (Some("jack".to_owned()), None));
    assert_eq!((case.sent("X_User"), case.sent("Content-MD5")), (None, None));
    assert_eq!(
        (case.ctx.host.as_deref(), case.ctx.body.as_deref()),
        (Some(&b"other"[..]), Some(&b"new body"[..]))
    );
    // The response, of whatever source.
    case.respond(200, "Content-Type: text/plain\nX-Done: node\nSet-Cookie: n=1");
    case.header_filter(&plugin);
    assert_eq!(case.answered("X-Done"), "1");
    assert_eq!(case.answered("Set-Cookie"), "n=1, r=1");
    assert_eq!(case.answered("Content-Type"), "text/plain");
}

#[test]
fn unsound_changes_are_not_made() {
    let check = |rewrite: Rewrite<'_>| {
        let scripted = rewriting(&rewrite);
        let mut case = Case::new("GET /old HTTP/1.1\nHost: h");
        let reply = case.run(&pre_req(&scripted.socket()), Phase::Rewrite);
        assert_eq!(summary(reply.as_ref()), "503", "{rewrite:?}");
        let conf = json!({"allow_degradation": true});
        let degraded = instance("ext-plugin-pre-req", conf, &scripted.socket());
        assert!(case.run(&degraded, Phase::Rewrite).is_none());
        assert_eq!((case.target(), case.sent("X-Fine")), ("/old".to_owned(), None));
    };
    let fine = || entry("x-fine", Some("1"));
    let path = Some(&b"/new"[..]);
    check(Rewrite { path, headers: vec![fine(), entry("x", Some("1\nb: 2"))], ..Rewrite::default() });
    check(Rewrite { path, headers: vec![fine(), entry("a:b", Some("1"))], ..Rewrite::default() });
    check(Rewrite { path, headers: vec![fine(), entry("host", Some("a b"))], ..Rewrite::default() });
    check(Rewrite { path, resp_headers: vec![entry("", Some("1"))], ..Rewrite::default() });
}

/// A node believes the fields of authenticating plugins: no runner sets them.
#[test]
fn runners_cannot_set_fields_of_other_plugins() {
    let check = |name: &str, value: Option<&str>, expected: (&str, Option<&str>)| {
        let scripted = rewriting(&Rewrite { headers: vec![entry(name, value)], ..Rewrite::default() });
        let mut case = Case::new("GET / HTTP/1.1\nHost: h");
        case.ctx.claim(sigma_plugin::OwnedField::sole("X-Userinfo"));
        case.ctx.request.headers.append("X-Userinfo", b"jack");
        let plugin = pre_req(&scripted.socket());
        let reply = case.run(&plugin, Phase::Rewrite);
        assert_eq!(
            (summary(reply.as_ref()).as_str(), case.sent("X-Userinfo").as_deref()),
            expected,
            "{name}"
        );
        assert_eq!(case.sent("x_userinfo"), None);
    };
    check("X-Userinfo", Some("root"), ("503", Some("jack")));
    check("x_userinfo", Some("root"), ("503", Some("jack")));
    check("X-Userinfo", None, ("passed", None));
    // A later call may change a field of an earlier call.
    let scripted = rewriting(&Rewrite { headers: vec![entry("x-a", Some("1"))], ..Rewrite::default() });
    let mut case = Case::new("GET / HTTP/1.1\nHost: h");
    assert!(case.run(&pre_req(&scripted.socket()), Phase::Rewrite).is_none());
    assert!(case.ctx.owned.iter().any(|owned| owned.covers(b"x_a")) && !case.ctx.is_reserved(b"X-A"));
    assert_eq!(case.sent("X-A").as_deref(), Some("1"));
}

#[test]
fn questions_are_answered() {
    let scripted = runner(|number, got| match (number, got.kind) {
        (1, kind::HTTP_REQ_CALL) => Act::Send(made::variable("arg_x")),
        (2, kind::EXTRA_INFO) => Act::Send(made::variable("no_such_variable")),
        (3, kind::EXTRA_INFO) => Act::Send(made::asks_for(3)),
        (4, kind::EXTRA_INFO) => Act::Send(made::asks_for(2)),
        (5, kind::EXTRA_INFO) => Act::Send(made::stop(200, &[], b"done")),
        _ => Act::Close,
    });
    let mut case = Case::new("POST /a?x=1 HTTP/1.1\nHost: h");
    case.body = b"body".to_vec();
    let reply = case.run(&pre_req(&scripted.socket()), Phase::Rewrite);
    assert_eq!(summary(reply.as_ref()), "200 done");
    let got = scripted.got();
    let answers: Vec<Option<Vec<u8>>> = got[2..]
        .iter()
        .map(|got| Table::root(&got.payload).unwrap().bytes(0).unwrap().map(<[u8]>::to_vec))
        .collect();
    assert_eq!(answers, [Some(b"1".to_vec()), None, None, Some(b"body".to_vec())]);
    // An unknown kind of question ends the call; so do too many.
    let unknown = runner(|_, _| Act::Send(made::asks_for(9)));
    let endless = runner(|_, _| Act::Send(made::variable("uri")));
    for scripted in [unknown, endless] {
        let reply = Case::new("GET / HTTP/1.1\nHost: h").run(&pre_req(&scripted.socket()), Phase::Rewrite);
        assert_eq!(summary(reply.as_ref()), "503");
        assert!(scripted.got().len() < 1_100);
    }
}

/// A call outside of a plugin.
struct Caller {
    client: Rc<Client>,
    runner: Arc<Runner>,
    conf: Arc<Conf>,
}

impl Caller {
    fn new(socket: &Path) -> Caller {
        let settings = ExtPlugin { path: Some(socket.to_owned()), ..ExtPlugin::default() };
        let conf = Arc::new(Conf { key: "route#1".to_owned(), plugins: None });
        Caller { client: Rc::default(), runner: Arc::new(Runner::new(settings)), conf }
    }

    fn message() -> Message {
        response_call(1, 200, &[])
    }

    fn call(&self) -> impl Future<Output = Outcome> + use<> {
        let client = Rc::clone(&self.client);
        let call = client.call(&self.runner, &self.conf, Caller::message(), Duration::from_secs(1));
        async { call?.begin().await }
    }
}

fn response_frame() -> Vec<u8> {
    made::response(0, &[], b"")
}

#[test]
fn unknown_tokens_are_fetched_again() {
    let check = |unknown: usize, expected: Result<(), &str>, kinds: &[u8]| {
        let scripted = Scripted::start(move |number, got| match got.kind {
            kind::PREPARE_CONF => Act::Send(made::token(u32::try_from(number).unwrap())),
            _ if number < 2 * unknown => Act::Send(made::error(2)),
            _ => Act::Send(response_frame()),
        });
        let caller = Caller::new(&scripted.socket());
        let outcome = block_on(caller.call()).map(drop).map_err(|failure| failure.0);
        assert_eq!(outcome, expected.map_err(str::to_owned));
        assert_eq!(scripted.kinds(), kinds);
    };
    check(0, Ok(()), &[1, 4]);
    check(1, Ok(()), &[1, 4, 1, 4]);
    check(2, Ok(()), &[1, 4, 1, 4, 1, 4]);
    check(3, Err("failed to receive RPC_HTTP_RESP_CALL: conf token not found"), &[1, 4, 1, 4, 1, 4]);
}

#[test]
fn failures_have_names_and_end_the_connection() {
    let check = |act: fn() -> Act, expected: &str| {
        let scripted = runner(move |_, _| act());
        let caller = Caller::new(&scripted.socket());
        let failure = block_on(caller.call()).map(drop).unwrap_err();
        assert_eq!(failure.0, expected);
        assert_eq!(caller.client.idle_connections(), 0);
    };
    let call = "failed to receive RPC_HTTP_RESP_CALL";
    check(|| Act::Close, &format!("{call}: closed"));
    check(|| Act::Send(made::error(0)), &format!("{call}: bad request"));
    check(|| Act::Send(made::error(1)), &format!("{call}: service unavailable"));
    check(|| Act::Send(made::error(9)), &format!("{call}: unknown err 9"));
    check(|| Act::Send(made::unchanged()), &format!("{call}: unexpected type 2"));
    check(|| Act::Send(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()), &format!("{call}: unexpected type 72"));
    let table = "the message is not a valid FlatBuffers table";
    check(|| Act::Send(vec![0, 0, 0, 4, 9, 9, 9, 9]), &format!("{call}: {table}"));
    check(|| Act::Send(vec![3, 0, 0, 0]), &format!("{call}: {table}"));
    let failure = block_on(Caller::new(nowhere()).call()).map(drop).unwrap_err();
    assert_eq!(
        failure.0,
        "failed to connect to the unix socket unix:/no/such/folder/runner.sock: no such file or directory"
    );
    // A token is refused, too.
    let scripted = Scripted::start(|_, _| Act::Send(made::error(2)));
    let failure = block_on(Caller::new(&scripted.socket()).call()).map(drop).unwrap_err();
    assert_eq!(failure.0, "failed to receive RPC_PREPARE_CONF: conf token not found");
}

#[test]
fn messages_that_are_cut_have_names() {
    let check = |bytes: &'static [u8], expected: &str| {
        let scripted = Scripted::start(move |_, got| match got.kind {
            kind::PREPARE_CONF => Act::Send(made::token(7)),
            _ => Act::SendAndClose(bytes.to_vec()),
        });
        let failure = block_on(Caller::new(&scripted.socket()).call()).map(drop).unwrap_err();
        assert_eq!(failure.0, format!("failed to receive RPC_HTTP_RESP_CALL: {expected}"));
    };
    check(&[4, 0, 0], "header too short");
    check(&[4, 255, 255, 255, 1, 2, 3], "data truncated");
}

/// Calls at the same time have a connection each; of many, one requests the token.
#[test]
fn calls_at_once_have_their_own_connections() {
    let scripted = replying(response_frame());
    let caller = Caller::new(&scripted.socket());
    let local = tokio::task::LocalSet::new();
    block_on(local.run_until(async {
        let calls: Vec<_> = (0..40).map(|_| tokio::task::spawn_local(caller.call())).collect();
        for call in calls {
            assert!(matches!(call.await.unwrap(), Ok(Event::Reply(_))));
        }
    }));
    let kinds = scripted.kinds();
    assert_eq!(kinds.iter().filter(|kind| **kind == kind::PREPARE_CONF).count(), 1);
    assert_eq!(kinds.len(), 41);
    let connections = scripted.connections();
    assert!(connections > 1 && connections <= 41, "{connections}");
    assert!(caller.client.idle_connections() <= 32);
}

#[test]
fn waiting_calls_are_bounded() {
    let scripted = runner(|_, _| Act::Hang);
    let caller = Caller::new(&scripted.socket());
    let waiting: Vec<_> = (0..1_024).map(|_| caller.call()).collect();
    let failure = block_on(caller.call()).map(drop).unwrap_err();
    assert_eq!(failure.0, "1024 calls of this worker already wait for the runner");
    drop(waiting);
    assert!(
        caller.client.clone().call(&caller.runner, &caller.conf, Caller::message(), Duration::ZERO).is_ok()
    );
}

/// A runner that was restarted has neither the tokens nor the connections of the earlier one.
#[test]
fn a_restart_of_the_runner_drops_tokens_and_connections() {
    let scripted = replying(response_frame());
    let caller = Caller::new(&scripted.socket());
    block_on(async {
        caller.call().await.unwrap();
        caller.call().await.unwrap();
        caller.runner.tokens.drop_all();
        caller.call().await.unwrap();
    });
    assert_eq!((scripted.kinds(), scripted.connections()), (vec![1, 4, 4, 1, 4], 2));
}

/// A connection on which unexpected bytes wait is not used again.
#[test]
fn connections_out_of_step_are_closed() {
    let scripted = replying([response_frame(), vec![4, 0, 0, 0]].concat());
    let caller = Caller::new(&scripted.socket());
    block_on(async {
        caller.call().await.unwrap();
        caller.call().await.unwrap();
    });
    assert_eq!(scripted.connections(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_runner_that_hangs_fails_in_time() {
    let scripted = runner(|_, _| Act::Hang);
    let caller = Caller::new(&scripted.socket());
    let failure = caller.call().await.map(drop).unwrap_err();
    assert!(failure.0.ends_with(": timeout"), "{failure:?}");
}

/// Runs a header filter to its end; returns the response that replaces the node's.
async fn filter_head(case: &mut Case, plugin: &Instance) -> Option<Reply> {
    case.ctx.record.source = Source::Upstream;
    let mut step = case.response_step(plugin);
    let env = Env::new(&case.node, &case.local, &case.consumers);
    loop {
        step = match step {
            ResponseStep::Wait(future) => future.await(&mut case.ctx, &env),
            ResponseStep::Next => return None,
            ResponseStep::Replace(reply) => return Some(*reply),
            _ => panic!("the plugin does something else"),
        };
    }
}

/// Runs head and body of a response through the plugin; returns the body, or the status of the response instead.
fn filter(case: &mut Case, plugin: &Instance, body: &[u8]) -> Result<Vec<u8>, String> {
    block_on(async {
        if let Some(reply) = filter_head(case, plugin).await {
            return Err(summary(Some(&reply)));
        }
        let Some(mut filter) = case.body_filter(plugin) else { return Ok(body.to_vec()) };
        assert!(filter.holds_head());
        assert_eq!(filter.length(BodyLength::Known(1)), BodyLength::Streamed);
        let pieces = body.chunks(16 * 1024).map(|piece| Frame::Data(Chunk::copy_of(piece)));
        let (mut source, mut out) = (Given(pieces.collect()), Vec::new());
        loop {
            let next = |task: &mut task::Context<'_>| filter.poll_frame(&mut source, &mut case.ctx, task);
            match std::future::poll_fn(next).await {
                Ok(Frame::Data(data)) => out.extend_from_slice(&data),
                Ok(_) => return Ok(out),
                Err(_) => return Err(summary(case.ctx.instead.take().as_deref())),
            }
        }
    })
}

fn post_resp(socket: &Path, allow_degradation: bool) -> Instance {
    instance("ext-plugin-post-resp", json!({"allow_degradation": allow_degradation}), socket)
}

fn answering(fields: &str) -> Case {
    let mut case = Case::new("GET /a?x=1 HTTP/1.1\nHost: h");
    case.respond(200, fields);
    case
}

const NODE: &str =
    "Content-Type: text/html\nContent-Length: 4\nX-Node: 1\nETag: \"e\"\nContent-Encoding: gzip";

#[test]
fn responses_are_changed_without_their_bodies() {
    let headers = [entry("X-New", Some("1")), entry("content-length", Some("7"))];
    let check = |frame: Vec<u8>, expected: Result<&str, &str>, status: u16, fields: [&str; 4]| {
        let scripted = replying(frame);
        let mut case = answering(NODE);
        let body = filter(&mut case, &post_resp(&scripted.socket(), false), b"node");
        assert_eq!(
            body.map(|body| String::from_utf8(body).unwrap()),
            expected.map(str::to_owned).map_err(str::to_owned)
        );
        assert_eq!(case.ctx.response.status, status);
        let names = ["X-Node", "X-New", "Content-Type", "Content-Encoding"];
        assert_eq!(names.map(|name| case.answered(name)), fields);
        scripted
    };
    check(made::response(0, &[], b""), Ok("node"), 200, ["1", "", "text/html", "gzip"]);
    check(made::response(418, &[], b""), Ok("node"), 418, ["1", "", "text/html", "gzip"]);
    // Exactly these fields, and the coding of a body that stays.
    check(made::response(0, &headers, b""), Ok("node"), 200, ["", "1", "", "gzip"]);
    check(made::response(0, &headers, b"mine"), Err("200 mine"), 200, ["", "1", "", ""]);
    check(made::response(500, &[], b"mine"), Err("500 mine"), 500, ["1", "", "", ""]);
    check(made::response(204, &[], b""), Err("204"), 204, ["1", "", "text/html", "gzip"]);
    let scripted = check(made::response(0, &[], b""), Ok("node"), 200, ["1", "", "text/html", "gzip"]);
    let got = scripted.got().pop().unwrap();
    let call = Table::root(&got.payload).unwrap();
    assert_eq!((call.short(1), call.word(3)), (Ok(200), Ok(7)));
    assert_eq!(call.tables(2).unwrap()[0].bytes(0), Ok(Some(&b"content-type"[..])));
}

/// Requests the body of the response, and sends this frame then.
fn reading(frame: Vec<u8>) -> Scripted {
    runner(move |_, got| match got.kind {
        kind::HTTP_RESP_CALL => Act::Send(made::asks_for(3)),
        _ => Act::Send(frame.clone()),
    })
}

#[test]
fn responses_are_changed_with_their_bodies() {
    let body = vec![b'x'; 100_000];
    let check = |frame: Vec<u8>, expected: Result<&[u8], &str>, status: u16, x_node: &str| {
        let scripted = reading(frame);
        let mut case = answering("X-Node: 1\nContent-Type: text/html");
        let found = filter(&mut case, &post_resp(&scripted.socket(), false), &body);
        // Not `assert_eq`, which would print the bodies.
        assert!(found.as_deref().map_err(|reply| &**reply) == expected, "{:?}", found.as_ref().err());
        assert_eq!((case.ctx.response.status, &*case.answered("X-Node")), (status, x_node));
        let got = scripted.got().pop().unwrap();
        assert!(Table::root(&got.payload).unwrap().bytes(0) == Ok(Some(&body[..])));
    };
    check(made::response(0, &[], b""), Ok(&body), 200, "1");
    check(made::response(404, &[entry("x", Some("1"))], b"new"), Ok(b"new"), 404, "");
    check(made::response(204, &[], b""), Err("204"), 204, "1");
    check(made::error(1), Err("503"), 200, "1");
    check(made::response(99, &[], b""), Err("503"), 200, "1");
}

#[test]
fn variables_are_answered_before_and_after_the_body() {
    let scripted = runner(|number, _| {
        Act::Send(match number {
            1 | 3 => made::variable("arg_x"),
            2 => made::asks_for(3),
            4 => made::asks_for(2),
            _ => made::response(0, &[], b"done"),
        })
    });
    let body = filter(&mut answering(""), &post_resp(&scripted.socket(), false), b"node");
    assert_eq!(body, Ok(b"done".to_vec()));
    let got = scripted.got();
    let results: Vec<_> =
        got[2..].iter().map(|got| Table::root(&got.payload).unwrap().bytes(0).unwrap()).collect();
    assert_eq!(results, [Some(&b"1"[..]), Some(b"node"), Some(b"1"), None]);
}

#[test]
fn failures_of_responses() {
    let check = |scripted: &Scripted, body: &[u8]| {
        let found = filter(&mut answering(""), &post_resp(&scripted.socket(), false), body);
        assert_eq!(found, Err("503".to_owned()));
        let found = filter(&mut answering(""), &post_resp(&scripted.socket(), true), body);
        assert!(found.as_deref() == Ok(body), "{} bytes", body.len());
    };
    check(&runner(|_, _| Act::Close), b"node");
    check(&reading(made::error(0)), b"node");
    check(&reading(made::response(0, &[entry("a b", Some("1"))], b"")), b"node");
    // A body that is too large for a message.
    check(&reading(made::response(0, &[], b"")), &vec![b'x'; 17 << 20]);
}

/// The gateway runs the header filters again for a response that the filter of a body has made.
#[test]
fn replacements_do_not_reach_the_runner() {
    for frame in [made::error(1), made::response(204, &[], b"")] {
        let scripted = reading(frame);
        let plugin = post_resp(&scripted.socket(), false);
        let mut case = answering("");
        assert!(filter(&mut case, &plugin, b"node").is_err());
        let calls = scripted.got().len();
        assert!(block_on(filter_head(&mut case, &plugin)).is_none() && case.body_filter(&plugin).is_none());
        assert_eq!(scripted.got().len(), calls);
        // A response after that one is the node's again.
        case.respond(200, "");
        assert!(matches!(case.response_step(&plugin), ResponseStep::Wait(_)));
    }
}

/// APISIX's runner for Java replies twice to the message of a configuration. The second reply may arrive late.
#[test]
fn a_repeated_reply_to_a_configuration_is_skipped() {
    let check = |late: usize, is_refused: bool| {
        let scripted = runner(move |_, got| {
            let mut frames = vec![made::token(7); late];
            frames.push(made::response(0, &[entry("x", Some("1"))], b""));
            Act::Send(if got.kind == kind::HTTP_RESP_CALL { frames.concat() } else { made::token(7) })
        });
        let mut case = answering("");
        let found = filter(&mut case, &post_resp(&scripted.socket(), false), b"node");
        assert_eq!((found.is_err(), case.answered("x").is_empty()), (is_refused, is_refused), "{late}");
    };
    check(0, false);
    check(1, false);
    check(2, true);
}

/// The gateway's own responses are not the runner's matter.
#[test]
fn responses_of_the_gateway_pass() {
    let scripted = replying(made::response(500, &[], b"mine"));
    let plugin = post_resp(&scripted.socket(), false);
    let mut case = answering("");
    assert!(matches!(case.response_step(&plugin), ResponseStep::Next));
    assert!(case.body_filter(&plugin).is_none() && scripted.got().is_empty());
    // A HEAD has no body to wait for.
    let scripted = reading(made::response(0, &[entry("x", Some("1"))], b""));
    let mut case = Case::new("HEAD / HTTP/1.1\nHost: h");
    case.respond(200, "Content-Length: 4");
    assert!(block_on(filter_head(&mut case, &post_resp(&scripted.socket(), false))).is_none());
    assert_eq!((case.answered("x"), case.answered("Content-Length")), ("1".to_owned(), "4".to_owned()));
}
