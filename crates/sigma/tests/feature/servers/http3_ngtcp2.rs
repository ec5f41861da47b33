//! HTTP/3 with the client and the server of ngtcp2 (`gtlsclient`, `gtlsserver`), on networks that lose packets and change
//! addresses.

use super::*;
use crate::h2::noise;
use crate::tls::{Authority, Issued};

/// The client sends this name if it connects to an address.
pub(super) const NAME: &str = "localhost";

/// The length of responses and uploads: hundreds of packets.
pub(super) const LENGTH: usize = 300_000;

/// A gateway with HTTP/3 in front of an origin that sends the same bytes for each path, and echoes bodies.
pub(super) fn gateway(issued: &Issued, origin: &Origin) -> Gateway {
    let config = json!({
        "workers": 2,
        "error_log": { "level": "info" },
        "listeners": [{ "address": "{listen}", "tls": true, "http3": true }],
        "ssls": [issued.ssl(json!({ "id": "page", "sni": NAME }))],
        "access_log": { "path": "stdout", "format": "$server_protocol $request_uri $status", "flush_ms": 1 },
        "routes": [{ "id": "all", "uri": "/*", "upstream": { "nodes": { format!("127.0.0.1:{}", origin.port()): 1 } } }],
    });
    Gateway::start(SIGMA, &config.to_string()).unwrap()
}

pub(super) fn origin(content: Vec<u8>) -> Origin {
    Origin::answer(move |request| {
        let body = if request.body.is_empty() { &content } else { &request.body };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        [head.as_bytes(), body].concat()
    })
    .unwrap()
}

/// Downloads `paths` with these options into a new folder, and returns it.
fn download(port: u16, options: &[&str], paths: &[String]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut client = Command::new("gtlsclient");
    client.args(["--quiet", "--no-quic-dump", "--no-http-dump", "--exit-on-all-streams-close"]);
    client.arg(format!("--download={}", folder.path().display()));
    client.args(options).args(["127.0.0.1", &port.to_string()]);
    client.args(paths.iter().map(|path| format!("https://{NAME}:{port}/{path}")));
    let output = client.output().unwrap();
    assert!(output.status.success(), "{options:?}: {output:?}");
    folder
}

fn same(folder: &Path, paths: &[String], content: &[u8], told: &str) {
    for path in paths {
        let got = std::fs::read(folder.join(path)).unwrap_or_else(|error| panic!("{told}: {path}: {error}"));
        assert!(got == content, "{told}: {path}: {} of {} bytes, or others", got.len(), content.len());
    }
}

#[test]
fn ngtcp2_downloads_and_uploads_on_bad_networks() {
    let (issued, content) = (Authority::new("authority").issue(NAME), noise(LENGTH));
    let origin = origin(content.clone());
    let gateway = gateway(&issued, &origin);
    let port = gateway.address().port().unwrap();
    let paths: Vec<String> = (0..10).map(|number| format!("file-{number}")).collect();
    let state = tempfile::tempdir().unwrap();
    let kept = |name: &str| format!("--{name}={}", state.path().join(name).display());
    let (session, parameters, token) = (kept("session-file"), kept("tp-file"), kept("token-file"));
    let known = [session.as_str(), &parameters, &token];
    for options in [
        &[][..],
        &["--tx-loss=0.05", "--rx-loss=0.05"],
        &["--change-local-addr=1ms"],
        &["--key-update=1ms"],
        &["--max-stream-data-bidi-local=2K", "--max-data=8K", "--max-stream-window=0", "--max-window=0"],
        // A new session, then one that sends its requests early: the gateway takes no early data by default.
        &known,
        &known,
    ] {
        same(download(port, options, &paths).path(), &paths, &content, &format!("{options:?}"));
    }
    let file = state.path().join("upload");
    let sent = noise(LENGTH / 2);
    std::fs::write(&file, &sent).unwrap();
    let upload = format!("--data={}", file.display());
    for network in [
        ["--tx-loss=0.05", "--rx-loss=0.05"],
        // The gateway learns of the new address by further packets of the client, which has enough of them here.
        ["--change-local-addr=1ms", "--nat-rebinding"],
    ] {
        let options = [&["--http-method=POST", &upload][..], &network].concat();
        same(download(port, &options, &paths).path(), &paths, &sent, &format!("an upload {network:?}"));
    }
    let logged = until(PATIENCE, || {
        gateway.stdout().lines().filter(|line| line.starts_with("HTTP/3") && line.ends_with("200")).count()
            == 90
    });
    assert!(logged, "{}", gateway.stdout());
}

#[test]
fn ngtcp2_is_a_node() {
    let authority = Authority::new("authority");
    let issued = authority.issue(NAME);
    let (folder, content) = (tempfile::tempdir().unwrap(), noise(LENGTH));
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.display().to_string()
    };
    let (key, cert) = (write("key", issued.key.as_bytes()), write("cert", issued.cert.as_bytes()));
    write("page.html", &content);
    let port = free_port();
    let mut server = Command::new("/usr/sbin/gtlsserver");
    server.args([
        "--quiet",
        "--no-quic-dump",
        "--no-http-dump",
        "--validate-addr",
        "--tx-loss=0.02",
        "--rx-loss=0.02",
    ]);
    server.arg(format!("--htdocs={}", folder.path().display()));
    server.args(["127.0.0.1", &port.to_string(), &key, &cert]);
    let _server = Running::start(&mut server, &folder.path().join("log"));
    let config = json!({
        "workers": 1,
        "listeners": [{ "address": "{listen}" }],
        "access_log": { "path": "stdout", "format": "$status $upstream_protocol", "flush_ms": 1 },
        "routes": [{ "id": "all", "uri": "/*", "upstream": {
            "scheme": "https", "nodes": { format!("127.0.0.1:{port}"): 1 }, "pass_host": "rewrite", "upstream_host": NAME,
            "tls": { "verify": true, "ca": authority.pem, "alpn": ["h3"] },
        } }],
    });
    let gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
    let fetch = |path: &str| {
        let mut peer = gateway.connect().unwrap().with_deadline(PATIENCE);
        peer.ask(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")).unwrap()
    };
    // The server does not say when it is ready.
    assert!(until(PATIENCE, || fetch("/page.html").status() == 200));
    for _ in 0..20 {
        let answer = fetch("/page.html");
        assert_eq!((answer.status(), answer.body == content), (200, true), "{}", gateway.stderr());
    }
    assert_eq!(fetch("/none").status(), 404);
    assert!(gateway.stdout().contains("200 HTTP/3"), "{}", gateway.stdout());
}
