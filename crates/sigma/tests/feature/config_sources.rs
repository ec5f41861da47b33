//! Resources that come from followed documents: URLs and configuration centres.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Message, Origin, Peer, until};

use crate::docs::{block, paste, text_of};
use crate::{PATIENCE, SIGMA};

/// A server of the test with files, which knows the validators of its responses, and is Consul and Apollo as well.
#[derive(Default)]
struct Documents {
    files: Mutex<Files>,
    changed: Condvar,
}

#[derive(Default)]
struct Files {
    by_path: BTreeMap<String, Vec<u8>>,
    /// Counts changes.
    version: u64,
    unchanged: usize,
}

impl Documents {
    fn start() -> (Arc<Documents>, Origin) {
        let documents = Arc::new(Documents::default());
        let shared = Arc::clone(&documents);
        let origin = Origin::answer(move |request| shared.respond(request)).unwrap();
        (documents, origin)
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap()
    }

    fn put(&self, path: &str, content: impl Into<Vec<u8>>) {
        self.put_all([(path, content.into())]);
    }

    /// Changes several files at once.
    fn put_all<const N: usize>(&self, files: [(&str, Vec<u8>); N]) {
        let mut state = self.files();
        state.version += 1;
        state.by_path.extend(files.into_iter().map(|(path, content)| (path.to_owned(), content)));
        drop(state);
        self.changed.notify_all();
    }

    fn respond(&self, request: &Message) -> Vec<u8> {
        let (_, target) = request.head.request_line().unwrap();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        if let Some(known) = query.split('&').find_map(|part| part.strip_prefix("index=")) {
            // A blocking query of Consul.
            self.wait_after(known.parse().unwrap());
        }
        if path == "/notifications/v2" {
            return self.notifications(query);
        }
        let path =
            path.strip_prefix("/v1/kv").or_else(|| path.strip_prefix("/configs/gw/default")).unwrap_or(path);
        let is_apollo = target.starts_with("/configs/");
        let mut files = self.files();
        let index = files.version;
        let Some(content) = files.by_path.get(path).cloned() else {
            return format!("HTTP/1.1 404 Not Found\r\nX-Consul-Index: {index}\r\nContent-Length: 0\r\n\r\n")
                .into_bytes();
        };
        let content = match is_apollo {
            true => {
                let text = String::from_utf8(content).unwrap();
                json!({"configurations": {"content": text}}).to_string().into_bytes()
            }
            false => content,
        };
        let tag = format!("\"{:x}\"", sigma_testkit::checksum(&content));
        if request.head.get("if-none-match") == Some(&*tag) {
            files.unchanged += 1;
            return b"HTTP/1.1 304 Not Modified\r\nContent-Length: 0\r\n\r\n".to_vec();
        }
        let length = content.len();
        let head = format!(
            "HTTP/1.1 200 OK\r\nETag: {tag}\r\nX-Consul-Index: {index}\r\nContent-Length: {length}\r\n\r\n"
        );
        [head.into_bytes(), content].concat()
    }

    /// Waits for a change after this version, as a long poll does, but for no longer than a second.
    fn wait_after(&self, known: u64) -> bool {
        let is_old = |files: &mut Files| files.version == known;
        let waited = self.changed.wait_timeout_while(self.files(), Duration::from_secs(1), is_old);
        !waited.unwrap().1.timed_out()
    }

    fn notifications(&self, query: &str) -> Vec<u8> {
        let known = query.rsplit_once("notificationId%22%3A").unwrap().1.strip_suffix("%7D%5D").unwrap();
        let known: i64 = known.parse().unwrap();
        if known >= 0 && !self.wait_after(known as u64) {
            return b"HTTP/1.1 304 Not Modified\r\nContent-Length: 0\r\n\r\n".to_vec();
        }
        let body = json!([{"namespaceName": "g.yaml", "notificationId": self.files().version}]).to_string();
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    }
}

/// A document whose only route responds with this word.
fn says(word: &str) -> String {
    format!("routes:\n- id: r\n  uri: /*\n  plugins: {{ mocking: {{ response_example: \"{word}\" }} }}\n")
}

fn config(sources: &str) -> String {
    format!(
        "workers: 1\nlisteners:\n  - address: \"{{listen}}\"\nstatus: {{ address: \"{{status}}\" }}\nconfig_sources:\n{sources}"
    )
}

/// The settings of one document on this port, with a file for the last good one.
fn at_url(port: u16) -> String {
    format!(
        "  kept_file: \"{{dir}}/kept.json\"\n  urls: [{{ url: \"http://127.0.0.1:{port}/g.yaml\", interval_ms: 100 }}]\n"
    )
}

/// Returns the word of the route, or the status.
fn word(gateway: &Gateway) -> String {
    let answer = gateway.connect().unwrap().get("/").unwrap();
    if answer.status() == 200 { answer.text() } else { answer.status().to_string() }
}

fn becomes(gateway: &Gateway, expected: &str) {
    assert!(
        until(PATIENCE, || word(gateway) == expected),
        "{expected}: {}\n{}",
        word(gateway),
        gateway.stderr()
    );
}

fn sources(gateway: &Gateway) -> Value {
    let page = Peer::connect(&gateway.status_address()).unwrap().get("/status").unwrap().text();
    serde_json::from_str::<Value>(&page).unwrap()["config_sources"].take()
}

fn refusal(gateway: &Gateway) -> String {
    sources(gateway)["refused"]["reason"].as_str().unwrap_or_default().to_owned()
}

fn counters(gateway: &Gateway) -> String {
    Peer::connect(&gateway.status_address()).unwrap().get("/status/counters").unwrap().text()
}

#[test]
fn a_url_is_followed_and_bad_documents_are_refused() {
    let (documents, origin) = Documents::start();
    documents.put("/g.yaml", says("one"));
    let url = at_url(origin.port());
    let gateway = Gateway::start(SIGMA, &config(&url)).unwrap();
    assert_eq!(word(&gateway), "one", "documents are in force before the gateway is ready");
    documents.put("/g.yaml", says("two"));
    becomes(&gateway, "two");
    assert!(until(PATIENCE, || documents.files().unchanged > 1), "an unchanged document is not sent again");

    // A document is in force as a whole or not at all.
    for (bad, reason) in [
        ("routes: [\n".to_owned(), "g.yaml: line"),
        (format!("{}- uri: 7\n", says("bad")), "g.yaml: line 5: routes[1]"),
        (
            format!("workers: 2\n{}", says("bad")),
            "g.yaml: line 1: workers: `workers` is not a section of resources",
        ),
        (says("${{HOME}}"), "a followed document cannot read environment variables"),
        (says("bad").replace("mocking", "no-such"), "no-such"),
        (
            format!("{}- uri: /f\n  plugins: {{ static-files: {{ root: /etc }} }}\n", says("bad")),
            "names a file of the gateway's machine",
        ),
    ] {
        documents.put("/g.yaml", bad.clone());
        assert!(until(PATIENCE, || refusal(&gateway).contains(reason)), "{reason}: {}", sources(&gateway));
        assert_eq!(word(&gateway), "two", "{bad}");
        assert!(counters(&gateway).contains("sigma_config_documents_refused 1"));
    }
    gateway.await_log("the reload failed and the old configuration stays in force");
    // A bad document does not prevent a reload of the file.
    let reloads = |gateway: &Gateway| {
        let page = Peer::connect(&gateway.status_address()).unwrap().get("/status").unwrap().text();
        serde_json::from_str::<Value>(&page).unwrap()
    };
    gateway.rewrite(&format!("{}server_header: renewed\n", config(&url))).unwrap();
    gateway.reload().unwrap();
    let is_renewed = || gateway.connect().unwrap().get("/").unwrap().head.get("server") == Some("renewed");
    assert!(until(PATIENCE, is_renewed), "{}", gateway.stderr());
    assert_eq!(reloads(&gateway)["last_reload_problem"], Value::Null);
    assert_eq!(word(&gateway), "two");
    assert!(refusal(&gateway).contains("names a file"), "{}", sources(&gateway));

    // An empty one is not followed at all.
    documents.put("/g.yaml", "\n");
    gateway.await_log("the document is empty");
    assert_eq!(word(&gateway), "two");
    documents.put("/g.yaml", says("three"));
    becomes(&gateway, "three");
    assert!(until(PATIENCE, || sources(&gateway)["refused"].is_null()), "{}", sources(&gateway));
    assert!(counters(&gateway).contains("sigma_config_documents_refused 0"));
}

#[test]
fn starts_use_the_kept_documents() {
    let (documents, origin) = Documents::start();
    documents.put("/g.yaml", says("three"));
    let port = origin.port();
    let url = at_url(port);
    let mut gateway = Gateway::start(SIGMA, &config(&url)).unwrap();
    // A start with a bad document, and one without the server, go on where the gateway was.
    let kept = gateway.dir().join("kept.json");
    let is_kept = || std::fs::read_to_string(&kept).is_ok_and(|text| text.contains("three"));
    assert!(until(PATIENCE, is_kept));
    documents.put("/g.yaml", says("bad").replace("mocking", "no-such"));
    gateway.kill().unwrap();
    gateway.start_again().unwrap();
    assert_eq!(word(&gateway), "three", "{}", gateway.stderr());
    assert!(refusal(&gateway).contains("no-such"), "{}", sources(&gateway));
    drop(origin);
    gateway.kill().unwrap();
    gateway.start_again().unwrap();
    assert_eq!(word(&gateway), "three", "{}", gateway.stderr());
    let document = sources(&gateway)["documents"][0].clone();
    assert_eq!((&document["kept"], &document["last_success"]), (&json!(true), &Value::Null), "{document}");
    assert!(document["lost"]["reason"].is_string(), "{document}");
    assert!(counters(&gateway).contains(&format!(
        "sigma_config_document_reachable{{document=\"http://127.0.0.1:{port}/g.yaml\"}} 0"
    )));
    // Without a copy there is no start.
    std::fs::remove_file(&kept).unwrap();
    gateway.kill().unwrap();
    assert!(gateway.start_again().is_err());
    assert!(
        gateway.stderr().contains("cannot use `config_sources`: cannot read http://127.0.0.1"),
        "{}",
        gateway.stderr()
    );
}

#[test]
fn only_signed_documents_are_in_force() {
    // Signed as the page says.
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let commands = block("docs/configuration-centres.md", "sh", "openssl pkeyutl");
    std::fs::write(file("gateway.yaml"), says("one")).unwrap();
    let pasted = paste(folder.path(), &commands, &[]);
    assert!(pasted.status.success(), "{}", text_of(&pasted));
    let key = std::fs::read_to_string(file("public_key")).unwrap();
    let sign = commands.lines().last().unwrap();
    let signed = |text: &str| {
        std::fs::write(file("gateway.yaml"), text).unwrap();
        let pasted = paste(folder.path(), sign, &[]);
        assert!(pasted.status.success(), "{}", text_of(&pasted));
        let signature = std::fs::read(file("gateway.yaml.sig")).unwrap();
        [("/g.yaml", text.as_bytes().to_vec()), ("/g.yaml.sig", signature)]
    };
    let (documents, origin) = Documents::start();
    documents.put_all(signed(&says("one")));
    let (port, key) = (origin.port(), key.trim());
    let url = format!(
        "  urls: [{{ url: \"http://127.0.0.1:{port}/g.yaml\", interval_ms: 100, public_key: \"{key}\" }}]\n"
    );
    let gateway = Gateway::start(SIGMA, &config(&url)).unwrap();
    assert_eq!(word(&gateway), "one");
    documents.put("/g.yaml", says("altered"));
    gateway.await_log("is not a signature of the document by `public_key`");
    assert_eq!(word(&gateway), "one");
    assert!(sources(&gateway)["documents"][0]["lost"]["reason"].as_str().unwrap().contains("signature"));
    documents.put_all(signed(&says("two")));
    becomes(&gateway, "two");
    drop(gateway);
    // A start with an unsigned document fails.
    documents.put("/g.yaml", says("altered"));
    let error = Gateway::start(SIGMA, &config(&url)).err().unwrap();
    assert!(format!("{error:#}").contains("is not a signature"), "{error:#}");
}

#[test]
fn documents_of_several_centres_are_one_configuration() {
    let (documents, origin) = Documents::start();
    let of_consul = |word: &str| says(word).replace("id: r", "id: consul").replace("/*", "/consul");
    documents.put("/sigma/g.yaml", of_consul("one"));
    documents.put("/g.yaml", says("other"));
    let port = origin.port();
    let server = format!("servers: [\"http://127.0.0.1:{port}\"]");
    let sources = format!(
        "  consul: {{ {server}, keys: [sigma/g.yaml] }}\n  apollo: {{ {server}, app_id: gw, namespaces: [g.yaml] }}\n"
    );
    let gateway = Gateway::start(SIGMA, &config(&sources)).unwrap();
    let says_at = |path: &str| gateway.connect().unwrap().get(path).unwrap().text();
    assert_eq!((says_at("/consul"), says_at("/")), ("one".to_owned(), "other".to_owned()));
    documents.put("/sigma/g.yaml", of_consul("two"));
    assert!(until(PATIENCE, || says_at("/consul") == "two"), "{}", gateway.stderr());
    documents.put("/g.yaml", says("another"));
    assert!(until(PATIENCE, || says_at("/") == "another"), "{}", gateway.stderr());
    // Two resources with one id are a problem of both together.
    documents.put("/g.yaml", says("bad").replace("id: r", "id: consul"));
    assert!(until(PATIENCE, || !refusal(&gateway).is_empty()), "{}", gateway.stderr());
    assert_eq!((says_at("/consul"), says_at("/")), ("two".to_owned(), "another".to_owned()));
}
