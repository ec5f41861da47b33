//! HTTP/3 in a real browser. Chromium follows `Alt-Svc` only with a certificate of a public authority, so
//! an option forces it to use HTTP/3 for the page.

use std::io::Write as _;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use sigma_testkit::{Gateway, Origin, until};

use super::browser::Browser;
use crate::tls::{Authority, Issued};
use crate::{PATIENCE, SIGMA};

/// The SHA-256 hash of a certificate's public key, in base64, as Chromium takes it.
fn key_hash(certificate: &str) -> String {
    let openssl = |words: &[&str], input: &[u8]| {
        let mut command = Command::new("openssl");
        let piped = command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{words:?}");
        output.stdout
    };
    let key = openssl(&["x509", "-noout", "-pubkey"], certificate.as_bytes());
    let key = openssl(&["pkey", "-pubin", "-outform", "der"], &key);
    STANDARD.encode(openssl(&["dgst", "-sha256", "-binary"], &key))
}

/// A gateway with HTTP/3 for `localhost`, in front of an origin with a page.
fn gateway(issued: &Issued, origin: &Origin) -> Gateway {
    let config = json!({
        "workers": 2,
        "error_log": { "level": "info" },
        "listeners": [{ "address": "{listen}", "tls": true, "http3": true }],
        "ssls": [issued.ssl(json!({ "id": "page", "sni": "localhost" }))],
        "access_log": { "path": "stdout", "format": "$server_protocol $request_uri $status", "flush_ms": 1 },
        "routes": [{ "id": "all", "uri": "/*", "upstream": { "nodes": { format!("127.0.0.1:{}", origin.port()): 1 } } }],
    });
    Gateway::start(SIGMA, &config.to_string()).unwrap()
}

fn page() -> Origin {
    Origin::answer(|request| {
        let body = match request.head.request_line().map_or("", |(_, target)| target) {
            "/post" => request.text(),
            _ => "<!doctype html><title>a page</title><p>hello".to_owned(),
        };
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n", body.len());
        [head.into_bytes(), body.into_bytes()].concat()
    })
    .unwrap()
}

#[test]
fn chromium_loads_a_page_over_http3() {
    let (issued, origin) = (Authority::new("authority").issue("localhost"), page());
    let gateway = gateway(&issued, &origin);
    let port = gateway.address().port().unwrap();
    let trusted = format!("--ignore-certificate-errors-spki-list={}", key_hash(&issued.cert));
    let forced = format!("--origin-to-force-quic-on=localhost:{port}");
    let browser = Browser::start_with(&[&trusted, &forced, "--host-resolver-rules=MAP localhost 127.0.0.1"]);
    browser.go(&format!("https://localhost:{port}/"));
    assert_eq!(browser.eval("return document.title;"), json!("a page"), "{}", gateway.stderr());
    let protocol = "return performance.getEntriesByType('navigation')[0].nextHopProtocol;";
    assert_eq!(browser.eval(protocol), json!("h3"), "{}", gateway.stdout());
    // An upload, and many requests at a time.
    let post = "const text = 'x'.repeat(300000); \
        return fetch('/post', { method: 'POST', body: text }).then((r) => r.text()).then((got) => got === text);";
    assert_eq!(browser.eval(post), json!(true));
    let many = "return Promise.all([...Array(50).keys()].map((n) => fetch('/many/' + n).then((r) => r.status))) \
        .then((all) => all.filter((status) => status === 200).length);";
    assert_eq!(browser.eval(many), json!(50));
    let logged = until(PATIENCE, || {
        let log = gateway.stdout();
        log.lines().filter(|line| line.starts_with("HTTP/3") && line.contains("/many/")).count() == 50
    });
    assert!(logged, "{}", gateway.stdout());
}
