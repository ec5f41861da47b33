//! gRPC by its description over HTTP/2 (`PROTOCOL-HTTP2.md`): errors that the gateway makes, the request to a
//! node, and the time of a call.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Request, Response};
use serde_json::json;
use sigma_testkit::{Gateway, until};

use crate::h2::{Node, ask, body_of, connect, request, within};
use crate::managed::{EMBEDDED, admin, start};
use crate::{PATIENCE, SIGMA, catch_all};

/// A node that reads a call's message, and responds with an empty one and the status 0. Clients may lose parts of a
/// response that is whole before they have sent their request (curl 7.88 its head).
pub(crate) async fn serving(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let mut message = request.into_body();
    while let Some(data) = message.data().await {
        let _ = message.flow_control().release_capacity(data.unwrap().len());
    }
    let head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
    let mut out = respond.send_response(head, false).unwrap();
    out.send_data(Bytes::from_static(&[0; 5]), false).unwrap();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    out.send_trailers(trailers).unwrap();
}

/// A node that responds with the message that it is sent.
async fn repeating(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let (mut message, mut sent) = (Vec::new(), request.into_body());
    while let Some(data) = sent.data().await {
        let data = data.unwrap();
        let _ = sent.flow_control().release_capacity(data.len());
        message.extend_from_slice(&data);
    }
    let head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
    let Ok(mut out) = respond.send_response(head, false) else { return };
    let _ = out.send_data(message.into(), false);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    let _ = out.send_trailers(trailers);
}

/// A node that never responds: only a call's own time ends it.
async fn silent(_request: Request<RecvStream>, respond: SendResponse<Bytes>) {
    let _held = respond;
    std::future::pending::<()>().await;
}

fn call(path: &str) -> http::request::Builder {
    request("POST", path).header("content-type", "application/grpc")
}

/// A call that gets a head alone, which ends the stream; its fields.
async fn refusal(gateway: &Gateway, call: http::request::Builder) -> HeaderMap {
    let (sender, _driver) = connect(gateway).await;
    let mut sender = sender.ready().await.unwrap();
    let (response, mut stream) = sender.send_request(call.body(()).unwrap(), false).unwrap();
    // The node never responds, or is missing: that the client is done does not matter.
    let _ = stream.send_data(Bytes::from_static(&[0; 5]), true);
    let (parts, body) = response.await.unwrap().into_parts();
    assert_eq!(parts.status, 200);
    assert!(body.is_end_stream(), "more follows than Trailers-Only: {:?}", parts.headers);
    assert_eq!(parts.headers["content-type"], "application/grpc");
    parts.headers
}

/// A gateway that answers calls of `/STATUS` by itself, as if with that status.
fn aborting(statuses: &[u16]) -> Gateway {
    let routes: String = statuses
        .iter()
        .map(|status| {
            format!(
                "  - id: r{status}\n    uri: /{status}\n    plugins: {{ fault-injection: {{ abort: {{ http_status: {status}, body: \"100% {status}\" }} }} }}\n"
            )
        })
        .collect();
    Gateway::start(SIGMA, &format!("listeners: [\"{{listen}}\"]\nroutes:\n{routes}")).unwrap()
}

#[test]
fn refusals_of_calls_are_trailers_only_with_the_code_of_their_status() {
    let cases = [
        (400, 13),
        (401, 16),
        (403, 7),
        (404, 12),
        (405, 12),
        (408, 4),
        (413, 8),
        (415, 12),
        (418, 2),
        (429, 8),
        (431, 8),
        (500, 13),
        (502, 14),
        (503, 14),
        (504, 4),
    ];
    let gateway = aborting(&cases.map(|(status, _)| status));
    within(async {
        for (status, code) in cases {
            let fields = refusal(&gateway, call(&format!("/{status}"))).await;
            assert_eq!(fields["grpc-status"], code.to_string(), "{status}");
            // Percent-encoded, as messages are.
            assert_eq!(fields["grpc-message"], format!("100%25 {status}"));
        }
    });
}

/// Plugins that look at bodies, or change them, find none here and make none.
#[test]
fn plugins_for_bodies_leave_refusals_as_they_are() {
    let config = "listeners: [\"{listen}\"]\nroutes:\n  - uri: /*\n    plugins:\n      fault-injection: { abort: { http_status: 503 } }\n      gzip: { types: \"*\", min_length: 1 }\n      file-logger: { path: \"{dir}/log\", include_resp_body: true }\n";
    let gateway = Gateway::start(SIGMA, config).unwrap();
    within(async {
        let fields = refusal(&gateway, call("/x").header("accept-encoding", "gzip")).await;
        assert_eq!(fields["grpc-status"], "14");
    });
}

#[test]
fn faults_of_calls_are_grpc_errors() {
    within(async {
        let node = Node::start(h2::server::Builder::new(), silent).await;
        let gateway = node.gateway("");
        let unreachable = catch_all("", "{ \"127.0.0.1:1\": 1 }", "      scheme: grpc\n");
        let unreachable = Gateway::start(SIGMA, &unreachable.replace("\"/*\"", "/known")).unwrap();
        for (gateway, call, code) in [
            (&gateway, call("/x").header("grpc-timeout", "200m"), "4"),
            (&unreachable, call("/known"), "14"),
            (&unreachable, call("/known").header("grpc-timeout", "9S"), "14"),
            (&unreachable, call("/unknown"), "12"),
        ] {
            assert_eq!(refusal(gateway, call).await["grpc-status"], code);
        }
    });
}

/// Only what says that it is gRPC is answered as such: a client that does not would take 200 for
/// a success.
#[test]
fn requests_that_are_no_calls_get_an_http_answer() {
    let gateway = aborting(&[503]);
    within(async {
        for (kind, is_call) in [
            (None, false),
            (Some("application/grpc-web"), false),
            (Some("application/json"), false),
            (Some("application/grpcx"), false),
            (Some("application/grpc+proto"), true),
            (Some("application/grpc;charset=utf-8"), true),
        ] {
            let plain = request("POST", "/503");
            let ask_for = match kind {
                Some(kind) => plain.header("content-type", kind),
                None => plain,
            };
            let (sender, _driver) = connect(&gateway).await;
            let (status, headers, body) = ask(&sender, ask_for.body(()).unwrap(), Some(Bytes::new())).await;
            let expected = if is_call { (200, true, 0) } else { (503, false, "100% 503".len()) };
            assert_eq!((status, headers.contains_key("grpc-status"), body.len()), expected, "{kind:?}");
        }
    });
}

/// Fields of a request as a node gets them.
async fn fields_at_node(fields: &'static [(&'static str, &'static str)]) -> HeaderMap {
    let (sender, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let node = Node::start(h2::server::Builder::new(), move |asked: Request<RecvStream>, respond| {
        sender.send(asked.headers().clone()).unwrap();
        serving(asked, respond)
    })
    .await;
    let gateway = node.gateway("");
    let (client, _driver) = connect(&gateway).await;
    let asked = fields.iter().fold(call("/x"), |call, (name, value)| call.header(*name, *value));
    let (status, ..) = ask(&client, asked.body(()).unwrap(), Some(Bytes::from_static(&[0; 5]))).await;
    assert_eq!(status, 200);
    seen.recv().await.unwrap()
}

#[test]
fn a_node_gets_the_fields_of_the_call() {
    within(async {
        let fields: &[(&str, &str)] = &[
            ("te", "trailers"),
            ("grpc-timeout", "20S"),
            ("grpc-encoding", "gzip"),
            ("grpc-accept-encoding", "identity,gzip"),
            ("x-trace-bin", "AAECAw=="),
            ("user-agent", "grpc-test/1"),
        ];
        let seen = fields_at_node(fields).await;
        for (name, value) in fields {
            assert_eq!(seen.get(*name).map(|value| value.to_str().unwrap()), Some(*value), "{name}");
        }
        // Without TE a gRPC server takes the client for one that loses trailers, which the gateway
        // does not; a time that cannot be read is the node's to refuse.
        let seen = fields_at_node(&[("grpc-timeout", "soon")]).await;
        assert_eq!(
            (&seen["te"], &seen["grpc-timeout"]),
            (&"trailers".parse().unwrap(), &"soon".parse().unwrap())
        );
    });
}

#[test]
fn a_nodes_answer_without_a_body_stays_one_head() {
    within(async {
        let refuse = |_: Request<RecvStream>, mut respond: SendResponse<Bytes>| async move {
            let head = Response::builder()
                .header("content-type", "application/grpc")
                .header("grpc-status", "5")
                .header("grpc-message", "no such%20thing");
            respond.send_response(head.body(()).unwrap(), true).unwrap();
        };
        let node = Node::start(h2::server::Builder::new(), refuse).await;
        let fields = refusal(&node.gateway(""), call("/x")).await;
        assert_eq!(
            (&fields["grpc-status"], &fields["grpc-message"]),
            (&"5".parse().unwrap(), &"no such%20thing".parse().unwrap())
        );
    });
}

/// A call whose response has begun can end only with its stream; the node learns that the client does not wait any
/// more.
#[test]
fn a_call_that_is_over_in_the_middle_ends_on_both_sides() {
    within(async {
        let (sender, mut reasons) = tokio::sync::mpsc::unbounded_channel();
        let serve = move |_: Request<RecvStream>, mut respond: SendResponse<Bytes>| {
            let sender = sender.clone();
            async move {
                let mut out = respond.send_response(Response::new(()), false).unwrap();
                out.send_data(Bytes::from_static(&[0; 5]), false).unwrap();
                let reason = std::future::poll_fn(|cx| out.poll_reset(cx)).await;
                sender.send(reason.unwrap()).unwrap();
            }
        };
        let node = Node::start(h2::server::Builder::new(), serve).await;
        let gateway = node.gateway("");
        let (client, _driver) = connect(&gateway).await;
        let mut client = client.ready().await.unwrap();
        let asked = call("/x").header("grpc-timeout", "2S").body(()).unwrap();
        let (response, _stream) = client.send_request(asked, false).unwrap();
        let mut body = response.await.unwrap().into_body();
        assert_eq!(&body.data().await.unwrap().unwrap()[..], [0; 5]);
        assert!(body_of(&mut body).await.is_err(), "an end would pass for a whole answer");
        assert_eq!(reasons.recv().await, Some(Reason::CANCEL));
        assert_eq!(node.connections(), 1, "the connection is not to blame");
    });
}

/// The definition changes under load: a request that has begun with one keeps it to its end, both ways, and none fails.
#[test]
fn a_definition_that_changes_under_load_tears_no_request() {
    const CLIENTS: usize = 8;
    const CHANGES: usize = 30;
    let definition = |field: &str| {
        let content = format!(
            "syntax = \"proto3\"; package p; service S {{ rpc Get(M) returns (M); }} message M {{ string {field} = 2; }}"
        );
        json!({ "content": content })
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let node = runtime.block_on(Node::start(h2::server::Builder::new(), repeating));
    let gateway = start(EMBEDDED);
    let operator = admin(&gateway);
    operator.put("protos/1", &definition("old")).unwrap();
    let transcode = json!({"proto_id": "1", "service": "p.S", "method": "Get"});
    let upstream = json!({"scheme": "grpc", "nodes": {format!("127.0.0.1:{}", node.port()): 1}});
    let route = json!({"uri": "/get", "plugins": {"grpc-transcode": transcode}, "upstream": upstream});
    operator.put("routes/1", &route).unwrap();
    assert!(until(PATIENCE, || answer(&mut gateway.connect().unwrap()) == OLD), "{}", gateway.stderr());
    let is_over = AtomicBool::new(false);
    let seen: Vec<[usize; 2]> = std::thread::scope(|scope| {
        let client = || {
            let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
            let mut seen = [0, 0];
            while !is_over.load(Ordering::Relaxed) {
                match answer(&mut client) {
                    text if text == OLD => seen[0] += 1,
                    text if text == NEW => seen[1] += 1,
                    other => panic!("{other}"),
                }
            }
            seen
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        let change = |number: usize| {
            let (field, expected) = if number.is_multiple_of(2) { ("new", NEW) } else { ("old", OLD) };
            let is_put = operator.put("protos/1", &definition(field)).is_ok();
            is_put && until(PATIENCE, || answer(&mut gateway.connect().unwrap()) == expected)
        };
        let failed = (0..CHANGES).find(|number| !change(*number));
        // Also after a failure: the clients would not end otherwise.
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(failed, None, "{}", gateway.stderr());
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let [old, new] = seen.iter().fold([0, 0], |[old, new], one| [old + one[0], new + one[1]]);
    assert!(old > 0 && new > 0, "{old} {new}");
}

/// The responses under the changing definition: never read by one definition and shown by another one.
const OLD: &str = r#"200 {"old":"a"}"#;
const NEW: &str = r#"200 {"new":"b"}"#;

fn answer(client: &mut sigma_testkit::Peer) -> String {
    let body = r#"{"old": "a", "new": "b"}"#;
    let head = "POST /get HTTP/1.1\r\nHost: h\r\nContent-Type: application/json";
    let answer = client.ask(format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())).unwrap();
    format!("{} {}", answer.status(), answer.text())
}
