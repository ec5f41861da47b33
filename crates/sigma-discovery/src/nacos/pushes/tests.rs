//! A Nacos of the test with gRPC: its responses come from version 2.2.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};

use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use prost::Message as _;
use sigma_config::discovery::Nacos;
use sigma_config::resources::{DiscoveryArgs, Node};
use sigma_testkit::Origin;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::super::NacosService;
use super::*;
use crate::source::{Env, Source};

/// The messages to send on a stream.
type Sending = mpsc::UnboundedSender<Payload>;

/// A gRPC server, next to an HTTP server.
struct Fake {
    /// Logs every user in, with a new token each time, and sends the list for other requests.
    http: Origin,
    list: Arc<List>,
    grpc: SocketAddr,
    shared: Arc<Shared>,
    asked: mpsc::UnboundedReceiver<Payload>,
}

struct Shared {
    /// Responses to subscriptions; after these, all are granted.
    answers: Mutex<VecDeque<Value>>,
    /// The last opened stream.
    stream: Mutex<Option<Sending>>,
    tell: mpsc::UnboundedSender<Payload>,
}

impl Fake {
    async fn start() -> Fake {
        let (http, list) = asked_by_http();
        let listener = listener_above(http.port()).await;
        let grpc = listener.local_addr().expect("an address");
        let (tell, asked) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared { answers: Mutex::default(), stream: Mutex::default(), tell });
        let serving = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, Arc::clone(&serving)));
            }
        });
        Fake { http, list, grpc, shared, asked }
    }

    fn source(&self, user: &str, more: Value) -> NacosService {
        source(user, (self.http.port(), self.grpc.port()), &more)
    }

    /// Returns the next message of this kind.
    async fn asked(&mut self, kind: &str) -> Payload {
        let next = async {
            loop {
                let payload = self.asked.recv().await.expect("a message");
                if payload.kind() == kind {
                    return payload;
                }
            }
        };
        timeout(Duration::from_secs(20), next).await.unwrap_or_else(|_| panic!("no {kind}"))
    }

    fn answer(&self, answer: Value) {
        self.shared.answers.lock().expect("a test that runs").push_back(answer);
    }

    fn push(&self, kind: &str, body: &Value) {
        let stream = self.shared.stream.lock().expect("a test that runs");
        let sent = stream.as_ref().map(|stream| stream.send(Payload::new(kind, Headers::new(), body)));
        assert!(matches!(sent, Some(Ok(()))), "a stream");
    }

    fn push_list(&self, id: &str, hosts: &[&str]) {
        self.push("NotifySubscriberRequest", &json!({ "requestId": id, "serviceInfo": info(hosts) }));
    }

    /// Ends the stream.
    fn end(&self) {
        self.shared.stream.lock().expect("a test that runs").take();
    }
}

/// Returns a service of the namespace `n`, with these ports for HTTP and gRPC.
fn source(user: &str, (http, grpc): (u16, u16), more: &Value) -> NacosService {
    let mut settings = json!({
        "host": [format!("http://{user}127.0.0.1:{http}")], "fetch_interval": 1, "grpc_port_offset": grpc - http
    });
    settings.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
    let settings: Nacos = serde_json::from_value(settings).expect("settings");
    let args = json!({ "namespace_id": "n", "group_name": "G" });
    let args: DiscoveryArgs = serde_json::from_value(args).expect("arguments");
    NacosService::new(Server::new(&settings, &Env::of(10, 20)), ServiceKey::new("web", Some(&args)))
}

/// The HTTP server's responses; the request waits for one.
#[derive(Default)]
struct List {
    hosts: Mutex<Option<String>>,
    changed: Condvar,
}

impl List {
    fn set(&self, hosts: Option<&[&str]>) {
        *self.hosts.lock().expect("a test that runs") = hosts.map(|hosts| info(hosts).to_string());
        self.changed.notify_all();
    }

    fn wait(&self) -> String {
        let hosts = self.hosts.lock().expect("a test that runs");
        let patience = Duration::from_secs(60);
        let waited = self.changed.wait_timeout_while(hosts, patience, |hosts| hosts.is_none());
        waited.expect("a test that runs").0.clone().unwrap_or_default()
    }
}

/// Returns an HTTP server with its list.
fn asked_by_http() -> (Origin, Arc<List>) {
    let list = Arc::<List>::default();
    let (answered, logins) = (Arc::clone(&list), AtomicUsize::new(0));
    let http = Origin::answer(move |request| {
        let body = match request.head.line.contains("/auth/login") {
            true => {
                let token = format!("t{}", logins.fetch_add(1, Ordering::Relaxed));
                json!({ "accessToken": token, "tokenTtl": 18000 }).to_string()
            }
            false => answered.wait(),
        };
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    });
    (http.expect("a server"), list)
}

/// The gRPC port is the higher one.
async fn listener_above(port: u16) -> TcpListener {
    for above in port..u16::MAX {
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", above + 1)).await {
            return listener;
        }
    }
    panic!("no port above {port} is free")
}

fn info(hosts: &[&str]) -> Value {
    let host = |ip: &&str| json!({"ip": ip, "port": 80, "weight": 1.0, "healthy": true, "enabled": true, "metadata": {}});
    json!({ "name": "web", "groupName": "G", "hosts": hosts.iter().map(host).collect::<Value>() })
}

fn granted(hosts: &[&str]) -> Value {
    json!({ "resultCode": 200, "errorCode": 0, "success": true, "serviceInfo": info(hosts) })
}

fn refused(code: u64) -> Value {
    json!({ "resultCode": 500, "errorCode": code, "success": false, "message": "no" })
}

async fn serve(socket: TcpStream, shared: Arc<Shared>) {
    let Ok(mut connection) = h2::server::handshake(socket).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(answer(request, respond, Arc::clone(&shared)));
    }
}

async fn answer(request: Request<RecvStream>, mut respond: SendResponse<Bytes>, shared: Arc<Shared>) {
    let is_stream = request.uri().path() == super::super::grpc::STREAM;
    let mut body = request.into_body();
    let head = || {
        let head = Response::builder().header("content-type", "application/grpc");
        head.body(()).expect("a head")
    };
    if is_stream {
        let (sending, mut pushed) = mpsc::unbounded_channel();
        *shared.stream.lock().expect("a test that runs") = Some(sending);
        let told = Arc::clone(&shared);
        tokio::spawn(async move {
            let mut rest = BytesMut::new();
            while let Some(payload) = read(&mut body, &mut rest).await {
                let _ = told.tell.send(payload);
            }
        });
        // As in Nacos: the head comes with the first message.
        let Some(first) = pushed.recv().await else { return };
        let mut stream = respond.send_response(head(), false).expect("a stream");
        write(&mut stream, &first);
        while let Some(payload) = pushed.recv().await {
            write(&mut stream, &payload);
        }
        return end(&mut stream);
    }
    let Some(payload) = read(&mut body, &mut BytesMut::new()).await else { return };
    let answer = match payload.kind() {
        "SubscribeServiceRequest" => {
            let next = shared.answers.lock().expect("a test that runs").pop_front();
            next.unwrap_or_else(|| granted(&["10.0.0.1"]))
        }
        _ => json!({ "resultCode": 200, "connectionId": "1" }),
    };
    let _ = shared.tell.send(payload);
    if let Ok(mut stream) = respond.send_response(head(), false) {
        write(&mut stream, &Payload::new("Response", Headers::new(), &answer));
        end(&mut stream);
    }
}

/// Returns the next message of a body.
async fn read(body: &mut RecvStream, rest: &mut BytesMut) -> Option<Payload> {
    loop {
        if rest.len() >= 5 {
            let len = u32::from_be_bytes([rest[1], rest[2], rest[3], rest[4]]) as usize;
            if rest.len() >= 5 + len {
                let message = rest.split_to(5 + len);
                return Payload::decode(&message[5..]).ok();
            }
        }
        let part = body.data().await?.ok()?;
        let _ = body.flow_control().release_capacity(part.len());
        rest.extend_from_slice(&part);
    }
}

fn write(stream: &mut SendStream<Bytes>, payload: &Payload) {
    let message = payload.encode_to_vec();
    let mut framed = vec![0];
    framed.extend((message.len() as u32).to_be_bytes());
    framed.extend(message);
    let _ = stream.send_data(framed.into(), false);
}

fn end(stream: &mut SendStream<Bytes>) {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().expect("a value"));
    let _ = stream.send_trailers(trailers);
}

async fn hosts(source: &mut NacosService) -> Vec<String> {
    let next = timeout(Duration::from_secs(20), source.next()).await.expect("a listing in time");
    let listing = next.expect("a listing");
    listing["default/n/G/web"].iter().map(|node: &Node| node.host.to_string()).collect()
}

#[tokio::test]
async fn pushes_are_used_and_acknowledged() {
    let mut fake = Fake::start().await;
    let mut source = fake.source("", json!({}));
    // Nacos does not know the client yet at the first request.
    fake.answer(refused(UNREGISTERED));
    assert_eq!(hosts(&mut source).await, ["10.0.0.1"]);
    let setup = fake.asked("ConnectionSetupRequest").await.json().await.expect("JSON");
    assert_eq!((&setup["tenant"], &setup["labels"]["module"]), (&json!("n"), &json!("naming")));
    let subscription = fake.asked("SubscribeServiceRequest").await.json().await.expect("JSON");
    let want = json!({
        "namespace": "n", "groupName": "G", "serviceName": "web", "clusters": "", "subscribe": true,
        "module": "naming"
    });
    assert_eq!(subscription, want);

    fake.push_list("7", &["10.0.0.2", "10.0.0.3"]);
    assert_eq!(hosts(&mut source).await, ["10.0.0.2", "10.0.0.3"]);
    assert_eq!(fake.asked("NotifySubscriberResponse").await.json().await.expect("JSON")["requestId"], "7");
    fake.push("ClientDetectionRequest", &json!({ "requestId": "8" }));
    let answer = fake.asked("ClientDetectionResponse").await.json().await.expect("JSON");
    assert_eq!((&answer["requestId"], &answer["resultCode"]), (&json!("8"), &json!(200)));
    // Heartbeats are sent, and there was only one HTTP request meanwhile.
    fake.asked("HealthCheckRequest").await;
}

#[tokio::test]
async fn a_service_that_changes_all_the_time_is_reported_now_and_then() {
    let fake = Fake::start().await;
    let mut source = fake.source("", json!({}));
    assert_eq!(hosts(&mut source).await, ["10.0.0.1"]);
    for at in 0..200 {
        fake.push_list("1", &[&format!("10.0.1.{at}")]);
    }
    // The last one is reported, and few before it.
    let mut told = 1;
    while hosts(&mut source).await != ["10.0.1.199"] {
        told += 1;
    }
    assert!(told < 200, "{told}");
}

#[tokio::test]
async fn a_lost_connection_is_reopened_and_meanwhile_it_polls() {
    let fake = Fake::start().await;
    let mut source = fake.source("", json!({}));
    assert_eq!(hosts(&mut source).await, ["10.0.0.1"]);
    let unreadable =
        json!({ "requestId": "1", "serviceInfo": { "name": "web", "groupName": "G", "hosts": 1 } });
    let asks_for_another = || fake.push("ConnectResetRequest", &json!({ "requestId": "2" }));
    let breaks: [&dyn Fn(); 3] =
        [&|| fake.end(), &|| fake.push("NotifySubscriberRequest", &unreadable), &asks_for_another];
    for (at, broken) in breaks.iter().enumerate() {
        // The stream has begun.
        fake.push_list("0", &["10.0.0.9"]);
        assert_eq!(hosts(&mut source).await, ["10.0.0.9"]);
        let polled = format!("10.0.1.{at}");
        fake.list.set(Some(&[&polled]));
        broken();
        assert_eq!(hosts(&mut source).await, [polled]);
        fake.list.set(None);
        assert_eq!(hosts(&mut source).await, ["10.0.0.1"], "it is subscribed to again");
    }
}

#[tokio::test]
async fn tokens_and_signatures_go_with_subscriptions() {
    let mut fake = Fake::start().await;
    let mut source = fake.source("u:hush@", json!({ "access_key": "ak", "secret_key": "sk" }));
    // The token is rejected early: another one is requested, once.
    fake.answer(refused(NO_RIGHT));
    assert_eq!(hosts(&mut source).await, ["10.0.0.1"]);
    for token in ["t0", "t1"] {
        let asked = fake.asked("SubscribeServiceRequest").await;
        assert_eq!(["accessToken", "ak"].map(|name| asked.header(name)), [Some(token), Some("ak")]);
        assert!(asked.header("data").is_some_and(|data| data.ends_with("@@G@@web")));
        assert!(asked.header("signature").is_some());
    }
}

#[tokio::test]
async fn a_rejected_subscription_is_polled() {
    let mut fake = Fake::start().await;
    let mut source = fake.source("", json!({}));
    fake.answer(refused(NO_RIGHT));
    fake.list.set(Some(&["10.0.0.5"]));
    assert_eq!(hosts(&mut source).await, ["10.0.0.5"]);
    fake.asked("SubscribeServiceRequest").await;
    fake.list.set(Some(&["10.0.0.6"]));
    assert_eq!(hosts(&mut source).await, ["10.0.0.6"]);
}

#[tokio::test]
async fn a_server_without_grpc_is_polled() {
    let (http, list) = asked_by_http();
    let closed = listener_above(http.port()).await.local_addr().expect("an address").port();
    let mut source = source("", (http.port(), closed), &json!({}));
    for host in ["10.0.0.5", "10.0.0.6"] {
        list.set(Some(&[host]));
        assert_eq!(hosts(&mut source).await, [host]);
    }
}

#[test]
fn pushes_name_services_in_two_ways() {
    let check = |info: Value, want: Option<&str>| {
        assert_eq!(named("n", &info).map(|key| key.to_string()).as_deref(), want, "{info}");
    };
    check(json!({ "name": "web", "groupName": "G" }), Some("default/n/G/web"));
    check(json!({ "name": "G@@web" }), Some("default/n/G/web"));
    check(json!({ "name": "G@@web", "groupName": "G" }), Some("default/n/G/web"));
    check(json!({ "name": "web" }), None);
    check(json!({}), None);
}
