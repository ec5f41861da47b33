//! Caddy as a node over HTTP/3.

use super::http3_clients::installed;
use super::*;
use crate::h2::noise;
use crate::tls::{Authority, Issued};

const NAME: &str = "localhost";

/// Caddy, with a file and an echo of bodies.
struct Caddy {
    port: u16,
    file: Vec<u8>,
    _process: Running,
    _folder: tempfile::TempDir,
}

impl Caddy {
    fn start(issued: &Issued) -> Caddy {
        let (folder, port, file) = (tempfile::tempdir().unwrap(), free_port(), noise(300_000));
        let at = |name: &str| folder.path().join(name).display().to_string();
        for (name, content) in [("key", issued.key.as_bytes()), ("cert", issued.cert.as_bytes())] {
            std::fs::write(at(name), content).unwrap();
        }
        std::fs::create_dir(at("files")).unwrap();
        std::fs::write(at("files/file"), &file).unwrap();
        let (key, cert, files) = (at("key"), at("cert"), at("files"));
        let caddyfile = format!(
            "{{\n admin off\n auto_https off\n persist_config off\n}}\n\
             https://{NAME}:{port} {{\n bind 127.0.0.1\n tls {cert} {key}\n\
             respond /protocol {{http.request.proto}}\n\
             @post method POST\n respond @post {{http.request.body}}\n\
             file_server {{\n root {files}\n }}\n}}\n"
        );
        std::fs::write(at("Caddyfile"), caddyfile).unwrap();
        let mut command = Command::new(installed("caddy"));
        command
            .args(["run", "--adapter", "caddyfile", "--config", &at("Caddyfile")])
            .env("HOME", folder.path());
        command.env("XDG_DATA_HOME", folder.path()).env("XDG_CONFIG_HOME", folder.path());
        let process = Running::start(&mut command, &folder.path().join("log"));
        Caddy { port, file, _process: process, _folder: folder }
    }

    /// A gateway whose only route leads to it.
    fn front(&self, tls: &Value) -> Gateway {
        let config = json!({
            "workers": 1,
            "listeners": [{ "address": "{listen}" }],
            "status": { "address": "{status}" },
            "routes": [{ "id": "all", "uri": "/*", "upstream": {
                "scheme": "https", "nodes": { format!("127.0.0.1:{}", self.port): 1 },
                "pass_host": "rewrite", "upstream_host": NAME, "tls": tls,
            } }],
        });
        let gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
        // Caddy does not say when it is ready.
        assert!(
            until(PATIENCE, || fetch(&gateway, "GET /protocol", "").status() == 200),
            "{}",
            gateway.stderr()
        );
        gateway
    }
}

fn fetch(gateway: &Gateway, line: &str, body: &str) -> Message {
    let mut peer = gateway.connect().unwrap().with_deadline(PATIENCE);
    peer.ask(format!("{line} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}", body.len())).unwrap()
}

#[test]
fn caddy_is_a_node_over_http3() {
    let authority = Authority::new("authority");
    let caddy = Caddy::start(&authority.issue(NAME));
    let gateway = caddy.front(&json!({ "verify": true, "ca": authority.pem, "alpn": ["h3"] }));
    for number in 0..20 {
        let answer = fetch(&gateway, "GET /file", "");
        assert_eq!(
            (answer.status(), answer.body == caddy.file),
            (200, true),
            "{number} {}",
            gateway.stderr()
        );
    }
    let sent = "x".repeat(100_000);
    assert_eq!(fetch(&gateway, "POST /post", &sent).text(), sent);
    assert_eq!(fetch(&gateway, "GET /protocol", "").text(), "HTTP/3.0");
    assert_eq!(fetch(&gateway, "GET /none", "").status(), 404);
}

#[test]
fn caddy_announces_http3_by_alt_svc() {
    let authority = Authority::new("authority");
    let caddy = Caddy::start(&authority.issue(NAME));
    let tls = json!({ "verify": true, "ca": authority.pem, "alpn": ["h2", "http/1.1"], "alt_svc": true });
    let gateway = caddy.front(&tls);
    let is_over_quic = || fetch(&gateway, "GET /protocol", "").text() == "HTTP/3.0";
    assert!(until(PATIENCE, is_over_quic), "{}", gateway.stderr());
    assert_eq!(gateway.counter("sigma_upstream_quic_failures_total"), 0);
}
