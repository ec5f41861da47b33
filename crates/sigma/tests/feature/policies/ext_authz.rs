//! An authoriser of Envoy's gRPC protocol, over HTTP/2 by the `h2` crate; its messages are written here by
//! themselves, after the same descriptions.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, Request, Response};
use prost::Message as _;
use sigma_testkit::{Gateway, Message, Origin};
use tokio::runtime::Runtime;

use super::seen;
use crate::SIGMA;
use crate::h2::{Node, body_of};

#[derive(Clone, PartialEq, prost::Message)]
struct Check {
    #[prost(message, optional, tag = "1")]
    attributes: Option<Attributes>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Attributes {
    #[prost(message, optional, tag = "1")]
    source: Option<Peer>,
    #[prost(message, optional, tag = "4")]
    request: Option<Asked>,
    #[prost(map = "string, string", tag = "10")]
    extensions: HashMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Peer {
    #[prost(message, optional, tag = "1")]
    address: Option<Address>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Address {
    #[prost(message, optional, tag = "1")]
    socket: Option<Socket>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Socket {
    #[prost(string, tag = "2")]
    address: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Asked {
    #[prost(message, optional, tag = "2")]
    http: Option<Http>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Http {
    #[prost(string, tag = "2")]
    method: String,
    #[prost(map = "string, string", tag = "3")]
    headers: HashMap<String, String>,
    #[prost(string, tag = "4")]
    path: String,
    #[prost(int64, tag = "9")]
    size: i64,
    #[prost(string, tag = "11")]
    body: String,
    #[prost(bytes = "vec", tag = "12")]
    raw_body: Vec<u8>,
    #[prost(message, optional, tag = "13")]
    header_map: Option<Fields>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Fields {
    #[prost(message, repeated, tag = "1")]
    fields: Vec<RawPair>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RawPair {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(bytes = "vec", tag = "3")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Decision {
    #[prost(message, optional, tag = "1")]
    status: Option<Code>,
    #[prost(message, optional, tag = "2")]
    denied: Option<Denied>,
    #[prost(message, optional, tag = "3")]
    ok: Option<Passing>,
    #[prost(message, optional, tag = "4")]
    metadata: Option<Metadata>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Code {
    #[prost(int32, tag = "1")]
    code: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Denied {
    #[prost(message, optional, tag = "1")]
    status: Option<Code>,
    #[prost(message, repeated, tag = "2")]
    headers: Vec<FieldOption>,
    #[prost(string, tag = "3")]
    body: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Passing {
    #[prost(message, repeated, tag = "2")]
    headers: Vec<FieldOption>,
    #[prost(string, repeated, tag = "5")]
    remove: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    to_client: Vec<FieldOption>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct FieldOption {
    #[prost(message, optional, tag = "1")]
    header: Option<Pair>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Pair {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Metadata {
    #[prost(map = "string, message", tag = "1")]
    fields: HashMap<String, Text>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Text {
    #[prost(string, tag = "3")]
    text: String,
}

fn field(key: &str, value: &str) -> FieldOption {
    FieldOption { header: Some(Pair { key: key.to_owned(), value: value.to_owned() }) }
}

/// Decides by the field `x-ask` of the request; None to never answer.
fn decide(http: &Http) -> Option<Decision> {
    let passing = Passing {
        headers: vec![field("X-User", "jack")],
        remove: vec!["X-Secret".to_owned()],
        to_client: vec![field("X-Remaining", "5")],
    };
    let metadata = Metadata { fields: [("user".to_owned(), Text { text: "jack".to_owned() })].into() };
    Some(match http.headers.get("x-ask").map(String::as_str) {
        Some("pass") => Decision {
            status: Some(Code { code: 0 }),
            ok: Some(passing),
            denied: None,
            metadata: Some(metadata),
        },
        Some("refuse") => {
            let headers = vec![field("Location", "/login")];
            let denied = Denied { status: Some(Code { code: 302 }), headers, body: "log in".to_owned() };
            Decision { status: Some(Code { code: 16 }), denied: Some(denied), ..Decision::default() }
        }
        Some("forbid") => Decision { status: Some(Code { code: 7 }), ..Decision::default() },
        Some("greet") => {
            let to_client = vec![field("Set-Cookie", "a=b")];
            let ok = Passing { to_client, ..Passing::default() };
            Decision { status: Some(Code { code: 0 }), ok: Some(ok), ..Decision::default() }
        }
        Some("silent") => return None,
        Some("tear") => {
            let ok = Passing { headers: vec![field("X-User", "jack\r\nX-Admin: 1")], ..passing };
            Decision { status: Some(Code { code: 0 }), ok: Some(ok), ..Decision::default() }
        }
        // No decision at all.
        _ => Decision::default(),
    })
}

/// The authoriser. Its last input is kept, and the number of inputs.
#[derive(Clone, Default)]
struct Authoriser(Arc<Mutex<Option<(String, HeaderMap, Attributes)>>>, Arc<AtomicUsize>);

impl Authoriser {
    async fn serve(self, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
        let (parts, mut stream) = request.into_parts();
        let body = body_of(&mut stream).await.unwrap();
        assert_eq!(body[..5], [&[0][..], &u32::to_be_bytes(body.len() as u32 - 5)].concat());
        let attributes = Check::decode(&body[5..]).unwrap().attributes.unwrap();
        let http = attributes.request.clone().unwrap().http.unwrap();
        *self.0.lock().unwrap() = Some((parts.uri.path().to_owned(), parts.headers, attributes));
        self.1.fetch_add(1, Ordering::SeqCst);
        let Some(decision) = decide(&http) else {
            // Longer than any wait.
            std::future::pending::<()>().await;
            return;
        };
        let head = Response::builder().header("content-type", "application/grpc");
        let mut out = respond.send_response(head.body(()).unwrap(), false).unwrap();
        let message = decision.encode_to_vec();
        let framed = [&[0][..], &u32::to_be_bytes(message.len() as u32), &message].concat();
        out.send_data(Bytes::from(framed), false).unwrap();
        let mut trailers = HeaderMap::new();
        let code = if http.headers.get("x-ask").is_some_and(|ask| ask == "fail") { "13" } else { "0" };
        trailers.insert("grpc-status", code.parse().unwrap());
        out.send_trailers(trailers).unwrap();
    }

    fn asked(&self) -> (String, HeaderMap, Attributes) {
        self.0.lock().unwrap().clone().expect("it was asked")
    }
}

fn ask(gateway: &Gateway, line: &str, fields: &str, body: &str) -> Message {
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let request = format!("{line} HTTP/1.1\r\nHost: h.test\r\n{fields}{length}\r\n{body}");
    gateway.connect().unwrap().ask(request).unwrap()
}

fn config(authoriser: u16, origin: u16) -> String {
    format!(
        r#"
listeners: ["{{listen}}"]
access_log: {{ path: "{{dir}}/access.log", format: "$uri $ext_authz_user" }}
routes:
  - id: plain
    uri: /plain/*
    plugins:
      ext-authz:
        uri: http://127.0.0.1:{authoriser}
        timeout: 30000
        context_extensions: {{ route: $route_id }}
        upstream_headers: [X-Owned]
    upstream: http://127.0.0.1:{origin}
  - uri: /body
    plugins:
      ext-authz: {{ uri: http://127.0.0.1:{authoriser}, timeout: 30000, with_request_body: {{ max_request_bytes: 8 }} }}
    upstream: http://127.0.0.1:{origin}
  - uri: /bytes
    plugins:
      ext-authz:
        uri: http://127.0.0.1:{authoriser}
        timeout: 30000
        with_request_body: {{ max_request_bytes: 8, pack_as_bytes: true }}
    upstream: http://127.0.0.1:{origin}
  - uri: /start
    plugins:
      ext-authz:
        uri: http://127.0.0.1:{authoriser}
        timeout: 30000
        with_request_body: {{ max_request_bytes: 8, allow_partial_message: true }}
        disallowed_headers: {{ patterns: [{{ prefix: X-Se }}, {{ safe_regex: {{ regex: "cont.*th" }} }}] }}
    upstream: http://127.0.0.1:{origin}
  - uri: /raw
    plugins:
      ext-authz:
        uri: http://127.0.0.1:{authoriser}
        timeout: 30000
        encode_raw_headers: true
        allowed_headers: {{ patterns: [{{ exact: X-Ask }}, {{ prefix: x-l }}, {{ contains: metho }}, {{ suffix: -c }}] }}
        disallowed_headers: {{ patterns: [{{ exact: x-list-c }}] }}
    upstream: http://127.0.0.1:{origin}
  - uri: /cached/*
    plugins:
      ext-authz:
        uri: http://127.0.0.1:{authoriser}
        timeout: 30000
        upstream_headers: [X-Owned]
        cache: {{ ttl: 3600, key: [$http_x_ask, $http_x_who] }}
    upstream: http://127.0.0.1:{origin}
  - uri: /alike/*
    plugins:
      ext-authz: {{ uri: http://127.0.0.1:{authoriser}, timeout: 30000, cache: {{ ttl: 3600 }} }}
    upstream: http://127.0.0.1:{origin}
  - uri: /late
    plugins:
      ext-authz: {{ uri: http://127.0.0.1:{authoriser}, timeout: 50, status_on_error: 504 }}
    upstream: http://127.0.0.1:{origin}
  - uri: /away
    plugins:
      ext-authz: {{ uri: http://127.0.0.1:1, timeout: 30000, status_on_error: 503 }}
    upstream: http://127.0.0.1:{origin}
  - uri: /degraded
    plugins:
      ext-authz:
        uri: http://127.0.0.1:1
        timeout: 30000
        failure_mode_allow: true
        failure_mode_allow_header_add: true
        upstream_headers: [X-User]
    upstream: http://127.0.0.1:{origin}
"#
    )
}

#[test]
fn an_authoriser_of_envoy_decides() {
    let (runtime, authoriser, origin) =
        (Runtime::new().unwrap(), Authoriser::default(), Origin::echo("a").unwrap());
    let serving = authoriser.clone();
    let serve = move |request, respond| serving.clone().serve(request, respond);
    let node = runtime.block_on(Node::start(h2::server::Builder::new(), serve));
    let gateway = Gateway::start(SIGMA, &config(node.port(), origin.port())).unwrap();

    let lies = "X-User: root\r\nX-Secret: s\r\nX-Owned: mine\r\nX-List: 1\r\nX-List: 2\r\n";
    let passed = ask(&gateway, "GET /plain//%61%3f?b=%20", &format!("X-Ask: pass\r\n{lies}"), "");
    assert_eq!((passed.status(), passed.head.get("x-remaining")), (200, Some("5")));
    let told = ["x-user", "x-secret", "x-owned"].map(|name| seen(&passed, name));
    assert_eq!(told, ["jack", "", ""]);
    let (path, headers, attributes) = authoriser.asked();
    assert_eq!(path, "/envoy.service.auth.v3.Authorization/Check");
    assert_eq!(
        (&headers["content-type"], &headers["te"]),
        (&"application/grpc".parse().unwrap(), &"trailers".parse().unwrap())
    );
    let http = attributes.request.unwrap().http.unwrap();
    assert_eq!((http.method.as_str(), http.path.as_str(), http.size), ("GET", "/plain//%61%3f?b=%20", -1));
    let field = |name: &str| http.headers.get(name).map(String::as_str);
    let fields = ["host", ":authority", ":path", ":scheme", "x-list", "x-user", "x-owned"].map(field);
    let path = Some("/plain//%61%3f?b=%20");
    assert_eq!(fields, [Some("h.test"), Some("h.test"), path, Some("http"), Some("1,2"), Some("root"), None]);
    assert_eq!(attributes.source.unwrap().address.unwrap().socket.unwrap().address, "127.0.0.1");
    assert_eq!(attributes.extensions["route"], "plain");
    let log = gateway.dir().join("access.log");
    let logged = || std::fs::read_to_string(&log).unwrap_or_default().contains("/plain/a? jack");
    assert!(sigma_testkit::until(crate::PATIENCE, logged));

    let refused = ask(&gateway, "GET /plain/x", "X-Ask: refuse\r\n", "");
    assert_eq!(
        (refused.status(), refused.head.get("location"), refused.text().as_str()),
        (302, Some("/login"), "log in")
    );
    // No decision, an error of the call, a field that would become two, and none in time.
    for (path, ask_for, status) in [
        ("/plain/x", "nothing", 403),
        ("/plain/x", "fail", 403),
        ("/plain/x", "tear", 403),
        ("/late", "silent", 504),
        ("/away", "pass", 503),
    ] {
        let before = origin.requests();
        let answer = ask(&gateway, &format!("GET {path}"), &format!("X-Ask: {ask_for}\r\n"), "");
        assert_eq!((answer.status(), origin.requests()), (status, before), "{path} {ask_for}");
    }
    let degraded = ask(&gateway, "GET /degraded", lies, "");
    let told = ["x-user", "x-envoy-auth-failure-mode-allowed"].map(|name| seen(&degraded, name));
    assert_eq!((degraded.status(), told), (200, [String::new(), "true".to_owned()]));
    let claimed =
        ask(&gateway, "GET /plain/x", "X-Ask: pass\r\nx-envoy-auth-failure-mode-allowed: true\r\n", "");
    assert_eq!(seen(&claimed, "x-envoy-auth-failure-mode-allowed"), "");
}

#[test]
fn an_authoriser_of_envoy_sees_bodies() {
    let (runtime, authoriser, origin) =
        (Runtime::new().unwrap(), Authoriser::default(), Origin::echo("a").unwrap());
    let serving = authoriser.clone();
    let serve = move |request, respond| serving.clone().serve(request, respond);
    let node = runtime.block_on(Node::start(h2::server::Builder::new(), serve));
    let gateway = Gateway::start(SIGMA, &config(node.port(), origin.port())).unwrap();
    let sent = |path: &str, body: &str| ask(&gateway, &format!("POST {path}"), "X-Ask: pass\r\n", body);
    let asked = || authoriser.asked().2.request.unwrap().http.unwrap();
    let answer = sent("/body", "a=1");
    assert_eq!((answer.status(), answer.json().unwrap()["body_bytes"].as_u64()), (200, Some(3)));
    assert_eq!((asked().body.as_str(), asked().size), ("a=1", 3));
    assert_eq!(sent("/bytes", "a=2").status(), 200);
    assert_eq!((asked().body.as_str(), asked().raw_body.as_slice()), ("", &b"a=2"[..]));
    assert_eq!(sent("/body", "123456789").status(), 413);
    // Without the setting it is not read.
    assert_eq!(sent("/plain/x", "123456789").status(), 200);
    assert_eq!((asked().body.as_str(), asked().size), ("", 9));
}

#[test]
fn an_envoy_authoriser_gets_only_its_part_of_a_request() {
    let (runtime, authoriser, origin) =
        (Runtime::new().unwrap(), Authoriser::default(), Origin::echo("a").unwrap());
    let serving = authoriser.clone();
    let serve = move |request, respond| serving.clone().serve(request, respond);
    let node = runtime.block_on(Node::start(h2::server::Builder::new(), serve));
    let gateway = Gateway::start(SIGMA, &config(node.port(), origin.port())).unwrap();
    let asked = || authoriser.asked().2.request.unwrap().http.unwrap();
    let partial = |http: &Http| http.headers.get("x-envoy-auth-partial-body").cloned();

    let fields = "X-Ask: pass\r\nX-Secret: s\r\nX-Envoy-Auth-Partial-Body: false\r\n";
    let answer = ask(&gateway, "POST /start", fields, "0123456789");
    assert_eq!((answer.status(), answer.json().unwrap()["body_bytes"].as_u64()), (200, Some(10)));
    let seen = asked();
    assert_eq!((seen.body.as_str(), seen.size, partial(&seen).as_deref()), ("01234567", 10, Some("true")));
    assert_eq!((seen.headers.get("x-secret"), seen.headers.get("content-length")), (None, None));
    assert_eq!(ask(&gateway, "POST /start", "X-Ask: pass\r\n", "01234567").status(), 200);
    let seen = asked();
    assert_eq!((seen.body.as_str(), partial(&seen).as_deref()), ("01234567", Some("false")));

    let fields = "X-Ask: pass\r\nX-List: 1\r\nX-List: 2\r\nX-List-C: 3\r\nX-C: 4\r\nX-D: 5\r\n";
    ask(&gateway, "GET /raw", fields, "");
    let seen = asked();
    let map = seen.header_map.unwrap().fields;
    let map: Vec<_> =
        map.into_iter().map(|RawPair { key, value }| (key, String::from_utf8(value).unwrap())).collect();
    let expected = [(":method", "GET"), ("x-ask", "pass"), ("x-list", "1"), ("x-list", "2"), ("x-c", "4")];
    assert_eq!(map, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    assert!(seen.headers.is_empty(), "{:?}", seen.headers);
}

#[test]
fn decisions_of_an_envoy_authoriser_are_cached() {
    let (runtime, authoriser, origin) =
        (Runtime::new().unwrap(), Authoriser::default(), Origin::echo("a").unwrap());
    let serving = authoriser.clone();
    let serve = move |request, respond| serving.clone().serve(request, respond);
    let node = runtime.block_on(Node::start(h2::server::Builder::new(), serve));
    // Each worker remembers for itself.
    let config = format!("workers: 1\n{}", config(node.port(), origin.port()));
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    let times = || authoriser.1.load(Ordering::SeqCst);
    let lies = "X-User: root\r\nX-Secret: s\r\nX-Owned: mine\r\n";
    for path in ["/cached/a", "/cached/b?c"] {
        let answer = ask(&gateway, &format!("GET {path}"), &format!("X-Ask: pass\r\n{lies}"), "");
        assert_eq!((answer.status(), answer.head.get("x-remaining")), (200, Some("5")), "{path}");
        assert_eq!(
            ["x-user", "x-secret", "x-owned"].map(|name| seen(&answer, name)),
            ["jack", "", ""],
            "{path}"
        );
        assert_eq!(times(), 1, "{path}");
    }
    ask(&gateway, "GET /cached/a", "X-Ask: pass\r\nX-Who: jill\r\n", "");
    assert_eq!(times(), 2, "another user");
    // Refusals are queried about each time unless the operator says otherwise; a cookie is for one client.
    for (ask_for, status) in [("forbid", 403), ("nothing", 403), ("greet", 200)] {
        for _ in 0..2 {
            let before = times();
            let answer = ask(&gateway, "GET /cached/a", &format!("X-Ask: {ask_for}\r\n"), "");
            assert_eq!((answer.status(), times() - before), (status, 1), "{ask_for}");
        }
    }
    // Without a key all data for the authoriser counts, including the client's port.
    let before = times();
    let mut client = gateway.connect().unwrap();
    for (path, expected) in [("a", 1), ("a", 1), ("b", 2), ("a", 2), ("b", 2)] {
        let request = format!("GET /alike/{path} HTTP/1.1\r\nHost: h\r\nX-Ask: pass\r\n\r\n");
        assert_eq!(client.ask(request).unwrap().status(), 200);
        assert_eq!(times() - before, expected, "{path}");
    }
    ask(&gateway, "GET /alike/a", "X-Ask: pass\r\n", "");
    assert_eq!(times() - before, 3);
}
