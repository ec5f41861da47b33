//! Documents of scripted servers on real sockets.

use std::time::Instant;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::*;
use crate::scripted::Scripted;

const ROUTES: &str = "routes: []\n";

fn read<T: serde::de::DeserializeOwned>(settings: Value) -> T {
    serde_json::from_value(settings).expect("settings")
}

async fn at_url(settings: Value) -> url::DocumentAtUrl {
    url::DocumentAtUrl::new(&read(settings), 1 << 16).await.expect("a source")
}

/// Returns the text, `same`, or the reason of an error.
async fn next(source: &mut impl DocumentSource) -> String {
    match source.next().await {
        Ok(Some(text)) => String::from_utf8(text).expect("a text"),
        Ok(None) => "same".to_owned(),
        Err(trouble) => trouble.0,
    }
}

#[tokio::test]
async fn a_url_is_polled_with_the_validators_of_the_last_document() {
    let server = Scripted::start();
    let url = format!("{}/g.yaml?v=1", server.address().base());
    let mut source = at_url(json!({"url": url, "interval_ms": 100, "token": "hush"})).await;
    server.answer("200 OK", "ETag: \"1\"\r\nLast-Modified: Mon, 30 Nov 2026 10:00:00 GMT\r\n", ROUTES);
    assert_eq!(next(&mut source).await, ROUTES);
    let first = server.question();
    assert_eq!(first.head.request_line().expect("a request").1, "/g.yaml?v=1");
    assert_eq!(first.head.get("authorization"), Some("Bearer hush"));
    assert_eq!((first.head.get("if-none-match"), first.head.get("if-modified-since")), (None, None));
    server.answer("304 Not Modified", "", "");
    assert_eq!(next(&mut source).await, "same");
    let second = server.question();
    assert_eq!(second.head.get("if-none-match"), Some("\"1\""));
    assert_eq!(second.head.get("if-modified-since"), Some("Mon, 30 Nov 2026 10:00:00 GMT"));
    for (status, expected) in [
        ("500 Internal Server Error", "/g.yaml responded with status 500"),
        ("302 Found", "responded with status 302; redirects are not followed"),
        ("304 Not Modified", "responded with status 304"),
    ] {
        server.answer(status, "Location: http://127.0.0.1:1/\r\n", "");
        let trouble = next(&mut source).await;
        assert!(trouble.contains(expected) && !trouble.contains("v=1"), "{trouble}");
        server.question();
    }
    // After an error the whole document is requested.
    server.answer("200 OK", "", "routes: [ ]\n");
    assert_eq!(next(&mut source).await, "routes: [ ]\n");
    assert_eq!(server.question().head.get("if-none-match"), None);
    server.answer("200 OK", "", &"x".repeat((1 << 16) + 1));
    let trouble = next(&mut source).await;
    assert!(trouble.contains("exceeds 65536 bytes (`config_sources.document_bytes`)"), "{trouble}");
}

#[tokio::test]
async fn checksums_are_verified() {
    let server = Scripted::start();
    let url = format!("{}/g.yaml", server.address().base());
    let sum = hexadecimal(digest(&SHA256, ROUTES.as_bytes()).as_ref());
    let mut pinned = at_url(json!({"url": url, "interval_ms": 100, "sha256": sum.to_uppercase()})).await;
    server.answer("200 OK", "", ROUTES);
    assert_eq!(next(&mut pinned).await, ROUTES);
    server.answer("200 OK", "", "routes: [ ]\n");
    assert!(next(&mut pinned).await.contains("another SHA-256 than `sha256` of the settings"));

    let mut beside =
        at_url(json!({"url": url, "interval_ms": 100, "sha256_url": format!("{url}.sha256")})).await;
    for (status, text, expected) in [
        ("200 OK", format!("{sum}  g.yaml\n"), ROUTES),
        ("200 OK", sum.replace('0', "1"), "another SHA-256 than"),
        ("200 OK", String::new(), "another SHA-256 than"),
        ("200 OK", "0".repeat(5000), "is no checksum or signature"),
        ("404 Not Found", String::new(), "g.yaml.sha256 responded with status 404"),
    ] {
        server.answer("200 OK", "", ROUTES);
        server.answer(status, "", &text);
        let found = next(&mut beside).await;
        assert!(found.contains(expected), "{found}");
    }
}

#[tokio::test]
async fn unsigned_and_altered_documents_are_refused() {
    let server = Scripted::start();
    let url = format!("{}/g.yaml", server.address().base());
    let pair = Ed25519KeyPair::generate().expect("a key");
    let other = Ed25519KeyPair::generate().expect("a key");
    let sign = |pair: &Ed25519KeyPair, text: &str| BASE64_STANDARD.encode(pair.sign(text.as_bytes()));
    let key = BASE64_STANDARD.encode(pair.public_key());
    let mut source = at_url(json!({"url": url, "interval_ms": 100, "public_key": key})).await;
    let altered = "is not a signature of the document by `public_key`";
    for (document, status, signature, expected) in [
        (ROUTES, "200 OK", format!("{}\n", sign(&pair, ROUTES)), ROUTES),
        (ROUTES, "200 OK", sign(&other, ROUTES), altered),
        ("routes: [ ]\n", "200 OK", sign(&pair, ROUTES), altered),
        (ROUTES, "200 OK", String::new(), altered),
        (ROUTES, "200 OK", "x".repeat(64), altered),
        (ROUTES, "404 Not Found", sign(&pair, ROUTES), "g.yaml.sig responded with status 404"),
        (ROUTES, "200 OK", sign(&pair, ROUTES), ROUTES),
    ] {
        server.answer("200 OK", "ETag: \"1\"\r\n", document);
        server.answer(status, "", &signature);
        let found = next(&mut source).await;
        assert!(found.contains(expected), "{found}");
        assert_eq!(server.asked("host").0, "/g.yaml");
        assert_eq!(server.asked("host").0, "/g.yaml.sig");
    }
}

#[tokio::test]
async fn consul_keys_are_watched() {
    let server = Scripted::start();
    let settings = json!({
        "servers": [server.address()], "token": "hush", "keys": ["sigma/g 1.yaml"], "datacenter": "d"
    });
    let mut source = consul::ConsulDocument::new(&read(settings), "sigma/g 1.yaml", 1 << 16);
    server.answer("200 OK", "X-Consul-Index: 7\r\n", ROUTES);
    assert_eq!(next(&mut source).await, ROUTES);
    let asked = server.asked("x-consul-token");
    assert_eq!(asked, ("/v1/kv/sigma/g%201.yaml?raw=true&dc=d".to_owned(), Some("hush".to_owned())));
    server.answer("200 OK", "X-Consul-Index: 7\r\n", ROUTES);
    assert_eq!(next(&mut source).await, "same");
    assert!(server.asked("host").0.ends_with("&index=7&wait=60s"));
    for _ in 0..2 {
        server.answer("404 Not Found", "X-Consul-Index: 8\r\n", "");
        assert_eq!(next(&mut source).await, "Consul has no key `sigma/g 1.yaml`");
        assert!(server.asked("host").0.contains("&index="), "a missing key is waited for");
    }
    server.answer("200 OK", "X-Consul-Index: 9\r\n", "routes: [ ]\n");
    assert_eq!(next(&mut source).await, "routes: [ ]\n");
    server.answer("403 Forbidden", "", "");
    assert!(next(&mut source).await.contains("responded with status 403"));
}

#[tokio::test]
async fn nacos_configurations_are_watched_with_a_login() {
    let server = Scripted::start();
    let host = server.address().base().replace("http://", "http://u:hush@");
    let settings = json!({
        "host": [host], "namespace": "t 1", "wait": 5, "access_key": "ak", "secret_key": "sk",
        "documents": [{"data_id": "g.yaml"}]
    });
    let settings: sigma_config::config_sources::NacosDocuments = read(settings);
    let mut source = nacos::NacosConfiguration::new(&settings, &settings.documents[0], 1 << 16);
    server.answer("200 OK", "", r#"{"accessToken": "t1", "tokenTtl": 18000}"#);
    server.answer("200 OK", "", ROUTES);
    assert_eq!(next(&mut source).await, ROUTES);
    assert_eq!(server.asked("host").0, "/nacos/v1/auth/login");
    let asked = server.question();
    let target = "/nacos/v1/cs/configs?dataId=g.yaml&group=DEFAULT_GROUP&tenant=t%201&accessToken=t1";
    assert_eq!(asked.head.request_line().expect("a request").1, target);
    assert_eq!(asked.head.get("spas-accesskey"), Some("ak"));
    assert!(asked.head.get("spas-signature").is_some_and(|text| text.len() == 28));
    // Nothing has changed; then it has, and the token has expired.
    server.answer("200 OK", "", "");
    assert_eq!(next(&mut source).await, "same");
    let asked = server.question();
    assert_eq!(
        asked.head.request_line().expect("a request").1,
        "/nacos/v1/cs/configs/listener?accessToken=t1"
    );
    assert_eq!(asked.head.get("long-pulling-timeout"), Some("5000"));
    let body = String::from_utf8(asked.body.clone()).expect("a form");
    assert_eq!(
        body,
        "Listening-Configs=g.yaml%02DEFAULT_GROUP%02fcc0469d70b393e4791772874980d99b%02t%201%01"
    );
    server.answer("200 OK", "", "g.yaml%02DEFAULT_GROUP%02t%201%01\n");
    server.answer("403 Forbidden", "", "");
    server.answer("200 OK", "", r#"{"accessToken": "t2"}"#);
    server.answer("200 OK", "", "routes: [ ]\n");
    assert_eq!(next(&mut source).await, "routes: [ ]\n");
    for _ in 0..3 {
        server.question();
    }
    assert!(server.asked("host").0.ends_with("accessToken=t2"));
    // It is gone.
    server.answer("200 OK", "", "changed");
    server.answer("404 Not Found", "", "config data not exist");
    assert_eq!(next(&mut source).await, "Nacos has no configuration `g.yaml` in the group `DEFAULT_GROUP`");
    server.answer("200 OK", "", ROUTES);
    assert_eq!(next(&mut source).await, ROUTES);
}

#[tokio::test]
async fn apollo_namespaces_are_watched_by_notifications() {
    let server = Scripted::start();
    let settings = json!({
        "servers": [server.address()], "app_id": "gw", "namespaces": ["g.yaml"], "secret": "hush"
    });
    let mut source = apollo::ApolloNamespace::new(&read(settings), "g.yaml", 1 << 16);
    let release = |text: &str| json!({"configurations": {"content": text}, "releaseKey": "1"}).to_string();
    server.answer("200 OK", "", &release(ROUTES));
    assert_eq!(next(&mut source).await, ROUTES);
    let asked = server.question();
    assert_eq!(asked.head.request_line().expect("a request").1, "/configs/gw/default/g.yaml");
    assert!(asked.head.get("authorization").is_some_and(|text| text.starts_with("Apollo gw:")));
    assert!(asked.head.get("timestamp").is_some_and(|text| text.len() == 13));
    server.answer("200 OK", "", r#"[{"namespaceName": "g.yaml", "notificationId": 12}]"#);
    server.answer("200 OK", "", &release("routes: [ ]\n"));
    assert_eq!(next(&mut source).await, "routes: [ ]\n");
    let known = |id: &str| {
        format!(
            "/notifications/v2?appId=gw&cluster=default&notifications=%5B%7B%22namespaceName%22%3A%22g.yaml%22%2C%22notificationId%22%3A{id}%7D%5D"
        )
    };
    assert_eq!(server.asked("host").0, known("-1"));
    server.question();
    server.answer("304 Not Modified", "", "");
    assert_eq!(next(&mut source).await, "same");
    assert_eq!(server.asked("host").0, known("12"));
    for (answers, expected) in [
        (vec![("200 OK", "[]")], "unexpected notification"),
        (vec![("404 Not Found", "")], "Apollo has no release of the namespace `g.yaml`"),
        (vec![("401 Unauthorized", "")], "check `config_sources.apollo.secret` and the clock"),
        (vec![("200 OK", r#"{"configurations": {}}"#)], "the namespace `g.yaml` has no item `content`"),
        (vec![("200 OK", "no")], "did not return JSON"),
    ] {
        answers.iter().for_each(|(status, body)| server.answer(status, "", body));
        let trouble = next(&mut source).await;
        assert!(trouble.contains(expected), "{trouble}");
    }
    assert_eq!(
        apollo::signature(
            "df23df3f59884980844ff3dada30fa97",
            "1576478257344",
            "/configs/100004458/default/application?ip=10.0.0.1"
        ),
        "EoKyziXvKqzHgwx+ijDJwgVTDgE="
    );
}

#[test]
fn pauses_grow_up_to_a_limit() {
    assert_eq!(backoff(0), PACE);
    assert!((PAUSE_MIN..PAUSE_MIN * 2).contains(&backoff(1)));
    for failures in [2, 9, 30, u32::MAX] {
        let pause = backoff(failures);
        assert!(pause > PAUSE_MIN && pause <= PAUSE_MAX.mul_f64(1.25), "{failures}: {pause:?}");
    }
}

/// A source of a test, which returns these results one after the other and then waits forever.
struct Results(std::vec::IntoIter<Result<Option<Vec<u8>>, Trouble>>);

impl DocumentSource for Results {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Trouble> {
        match self.0.next() {
            Some(result) => result,
            None => std::future::pending().await,
        }
    }
}

fn text(text: &str) -> Result<Option<Vec<u8>>, Trouble> {
    Ok(Some(text.as_bytes().to_vec()))
}

fn failure() -> Result<Option<Vec<u8>>, Trouble> {
    Err(Trouble("away".to_owned()))
}

async fn followed(
    sources: Vec<Vec<Result<Option<Vec<u8>>, Trouble>>>,
    settings: &ConfigSources,
) -> Result<DocumentFollower, String> {
    let kept = settings.kept_file.clone().map(KeptDocuments::new);
    let shared = Shared { state: Mutex::default(), results: watch::Sender::new(0), kept };
    let mut follower = DocumentFollower { shared: Arc::new(shared), tasks: Vec::new() };
    let results = follower.shared.results.subscribe();
    for (index, source) in sources.into_iter().enumerate() {
        follower.follow(format!("document {index}"), "", Results(source.into_iter()));
    }
    follower.wait_for_first(results, settings).await.map(|()| follower)
}

fn texts(documents: &FollowedDocuments) -> Vec<&str> {
    documents.iter().map(|one| &*one.text).collect()
}

#[tokio::test(start_paused = true)]
async fn a_start_waits_for_all_documents_and_uses_kept_ones() {
    let dir = tempfile::tempdir().expect("a folder");
    let kept_file = Some(dir.path().join("kept.json"));
    let settings = ConfigSources { kept_file: kept_file.clone(), ..ConfigSources::default() };
    // Two failures are within the attempts of a start.
    let first = followed(vec![vec![text("a")], vec![failure(), failure(), text("b")]], &settings).await;
    let first = first.expect("documents");
    let documents = first.take();
    assert_eq!((texts(&documents), first.in_force()), (vec!["a", "b"], None));
    first.shared.state().in_force = Some(Arc::clone(&documents));
    first.shared.write_kept();
    // Without a copy of all documents a start fails.
    let away = || vec![failure(), failure(), failure(), text("new")];
    let without = ConfigSources { kept_file: None, ..settings.clone() };
    let error = followed(vec![vec![text("a")], away()], &without).await.err().expect("an error");
    assert_eq!(error, "cannot read document 1: away; and `config_sources.kept_file` is not set");
    let error = followed(vec![away(), away(), away()], &settings).await.err().expect("an error");
    assert!(error.contains("kept.json has no copy of all documents"), "{error}");
    // With it, it begins there and goes on with the source.
    let second = followed(vec![vec![text("A")], away()], &settings).await.expect("documents");
    assert_eq!(texts(&second.take()), ["A", "b"]);
    assert_eq!(second.in_force().as_ref().map(texts), Some(vec!["a", "b"]));
    assert_eq!(second.report().iter().map(|one| one.is_kept).collect::<Vec<_>>(), [false, true]);
    second.changed().await;
    assert_eq!(texts(&second.take()), ["A", "new"]);
    let report = &second.report()[1];
    assert_eq!((report.updates, report.failures, report.is_kept, &report.lost), (1, 3, false, &None));
    assert_eq!(report.sha256.as_ref().map(String::len), Some(64));
}

#[tokio::test(start_paused = true)]
async fn changes_and_refusals_are_reported() {
    let odd = vec![text("\u{feff}a"), text("a"), text(" \n"), Ok(Some(vec![0xff])), Ok(None), text("b")];
    let follower = followed(vec![odd], &ConfigSources::default()).await.expect("documents");
    let first = follower.take();
    assert_eq!(texts(&first), ["a"]);
    follower.accepted(&first);
    let began = Instant::now();
    follower.changed().await;
    assert!(began.elapsed().as_secs() < 20, "the clock is paused");
    let second = follower.take();
    assert_eq!((texts(&second), follower.report()[0].failures), (vec!["b"], 2));
    follower.refused("line 1: no");
    assert_eq!(follower.refusal().map(|(_, reason)| reason).as_deref(), Some("line 1: no"));
    // The former documents in force do not mend the newest ones.
    follower.accepted(&first);
    assert!(follower.refusal().is_some());
    follower.accepted(&second);
    assert!(follower.refusal().is_none() && follower.in_force() == Some(second));
}

/// A ZooKeeper of the test with one node.
mod zookeeper_server {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    /// Reads a message.
    pub(super) async fn read(stream: &mut TcpStream) -> Vec<u8> {
        let length = stream.read_i32().await.expect("a length");
        let mut message = vec![0; usize::try_from(length).expect("a length")];
        stream.read_exact(&mut message).await.expect("a message");
        message
    }

    /// Writes a message.
    pub(super) async fn write(stream: &mut TcpStream, parts: &[&[u8]]) {
        let message = parts.concat();
        stream.write_i32(i32::try_from(message.len()).expect("a length")).await.expect("written");
        stream.write_all(&message).await.expect("written");
    }

    /// Accepts a connection and grants a session.
    pub(super) async fn session(listener: &TcpListener, timeout: i32) -> TcpStream {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let hello = read(&mut stream).await;
        assert_eq!((hello.len(), &hello[..12]), (45, &[0; 12][..]));
        write(
            &mut stream,
            &[&[0; 4], &timeout.to_be_bytes(), &7_i64.to_be_bytes(), &[0, 0, 0, 16], &[1; 16], &[0]],
        )
        .await;
        stream
    }

    /// Returns the header of a response.
    pub(super) fn header(xid: i32, error: i32) -> Vec<u8> {
        [&xid.to_be_bytes()[..], &5_i64.to_be_bytes(), &error.to_be_bytes()].concat()
    }

    /// Answers the request for the node `/g` with a watch.
    pub(super) async fn respond(stream: &mut TcpStream, text: Result<&str, i32>) {
        let request = read(stream).await;
        assert_eq!(request, b"\0\0\0\x01\0\0\0\x04\0\0\0\x02/g\x01");
        match text {
            Ok(text) => {
                let length = i32::try_from(text.len()).expect("a length");
                write(stream, &[&header(1, 0), &length.to_be_bytes(), text.as_bytes(), &[0; 68]]).await;
            }
            Err(error) => write(stream, &[&header(1, error)]).await,
        }
    }

    /// Reports that the node has changed.
    pub(super) async fn report(stream: &mut TcpStream) {
        write(stream, &[&header(-1, 0), &3_i32.to_be_bytes(), &3_i32.to_be_bytes(), b"\0\0\0\x02/g"]).await;
    }
}

#[tokio::test]
async fn zookeeper_nodes_are_watched() {
    use zookeeper_server::{header, read as read_message, report, respond, session, write};

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let settings =
        json!({"servers": [address], "paths": ["/g"], "digest": "u:p", "session_timeout_ms": 3000});
    let mut source = zookeeper::ZookeeperNode::new(&read(settings), "/g", 1 << 10);
    let server = tokio::spawn(async move {
        let mut stream = session(&listener, 3000).await;
        let login = read_message(&mut stream).await;
        assert_eq!(login, b"\xff\xff\xff\xfc\0\0\0\x64\0\0\0\0\0\0\0\x06digest\0\0\0\x03u:p");
        write(&mut stream, &[&header(-4, 0)]).await;
        respond(&mut stream, Ok(ROUTES)).await;
        // The session is kept alive until the watch fires.
        assert_eq!(read_message(&mut stream).await, b"\xff\xff\xff\xfe\0\0\0\x0b");
        write(&mut stream, &[&header(-2, 0)]).await;
        report(&mut stream).await;
        respond(&mut stream, Ok("routes: [ ]\n")).await;
        report(&mut stream).await;
        respond(&mut stream, Err(-101)).await;
        // A new session each time: it is refused, cut off, silent, and too long a document.
        drop(session(&listener, 0).await);
        let mut stream = session(&listener, 3000).await;
        read_message(&mut stream).await;
        drop(stream);
        let mut stream = session(&listener, 3000).await;
        read_message(&mut stream).await;
        write(&mut stream, &[&header(-4, -115)]).await;
        let mut stream = session(&listener, 3000).await;
        read_message(&mut stream).await;
        write(&mut stream, &[&header(-4, 0)]).await;
        respond(&mut stream, Ok(&"x".repeat(1025))).await;
        let mut stream = session(&listener, 3000).await;
        read_message(&mut stream).await;
        write(&mut stream, &[&header(-4, 0)]).await;
        respond(&mut stream, Ok(ROUTES)).await;
        // No response to pings any more.
        while stream_is_open(&mut stream).await {}
    });
    assert_eq!(next(&mut source).await, ROUTES);
    assert_eq!(next(&mut source).await, "routes: [ ]\n");
    for expected in [
        "the node does not exist",
        "the server refuses a session",
        "the server closed the connection",
        "the login failed",
        "the document exceeds 1024 bytes",
    ] {
        let trouble = next(&mut source).await;
        assert!(trouble.contains(expected), "{expected}: {trouble}");
    }
    assert_eq!(next(&mut source).await, ROUTES);
    let trouble = next(&mut source).await;
    assert!(trouble.contains("the server is silent"), "{trouble}");
    server.await.expect("a server");
}

async fn stream_is_open(stream: &mut tokio::net::TcpStream) -> bool {
    use tokio::io::AsyncReadExt as _;
    stream.read(&mut [0; 64]).await.is_ok_and(|count| count > 0)
}
