//! `wasm` and APISIX's section `wasm`, with the filter in `tests/servers/wasm` and the conformance kit of http-wasm.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Message, Origin, until};

use crate::servers::built;
use crate::streams::{config, is_closed, parrot, talk, upstream};
use crate::{PATIENCE, SIGMA};

fn file(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers/wasm")).join(name)
}

fn filter() -> PathBuf {
    file("filter.wasm")
}

/// A server that responds with the body of the request.
fn echo() -> Origin {
    Origin::answer(|request| {
        let body = String::from_utf8_lossy(&request.body);
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    })
    .unwrap()
}

fn start(origin: &Origin, plugins: &Value, section: &Value) -> Gateway {
    start_with(origin, plugins, section, 1)
}

fn start_with(origin: &Origin, plugins: &Value, section: &Value, memory_mib: usize) -> Gateway {
    let config = json!({
        "workers": 2,
        "listeners": [{ "address": "{listen}" }],
        "pid_file": "{dir}/sigma.pid",
        "plugin_attr": { "wasm": { "instances": 8, "memory_mib": memory_mib, "disk_path": "{dir}/wasm" } },
        "wasm": section,
        "routes": [{
            "uri": "/*", "plugins": plugins, "upstream": { "nodes": { origin.address().to_string(): 1 } },
        }],
    });
    Gateway::start(SIGMA, &config.to_string()).unwrap()
}

fn post(gateway: &Gateway, fields: &str, body: &str) -> Message {
    let fields = format!("Host: h\r\n{fields}Content-Length: {}\r\n", body.len());
    gateway.connect().unwrap().ask(format!("POST / HTTP/1.1\r\n{fields}\r\n{body}")).unwrap()
}

#[test]
fn a_module_filters_requests_and_responses() {
    let origin = echo();
    let section = json!({ "plugins": [{ "name": "other", "file": filter(), "priority": 1 }] });
    let gateway = start(&origin, &json!({ "wasm": { "file": filter() } }), &section);
    for _ in 0..20 {
        let response = post(&gateway, "", "body");
        assert_eq!((response.status(), &*response.text()), (200, "wasm:wasm:body"));
        assert_eq!(response.head.get("x-wasm"), Some("yes"));
    }
    // Its own response passes through its callbacks, as in Envoy.
    let response = post(&gateway, "X-Deny: 1\r\n", "");
    assert_eq!((response.status(), &*response.text()), (403, "wasm:denied\n"));
    // A trap and an endless loop end their own exchanges.
    for field in ["X-Trap: 1\r\n", "X-Loop: 1\r\n"] {
        assert_eq!(post(&gateway, field, "a").status(), 503, "{field}");
        assert_eq!(post(&gateway, "", "a").text(), "wasm:wasm:a", "after {field}");
    }
    let log = gateway.stderr();
    assert!(
        log.contains("wasm filter: proxy_on_request_headers was aborted: wasm trap: wasm `unreachable`"),
        "{log}"
    );
    assert!(
        log.contains("wasm filter: proxy_on_request_headers was aborted: it ran longer than 100 ms"),
        "{log}"
    );
}

#[test]
fn plugins_of_the_section_have_the_rules_of_apisix() {
    let origin = echo();
    let section = json!({ "plugins": [{ "name": "other", "file": filter(), "priority": 1 }] });
    let gateway = start(&origin, &json!({ "other": { "conf": "x" } }), &section);
    // Bodies are requested by properties, which the module does not set.
    let response = post(&gateway, "", "body");
    assert_eq!((response.status(), &*response.text()), (200, "body"));
    assert_eq!(response.head.get("x-wasm"), Some("yes"));
    assert_eq!(post(&gateway, "X-Deny: 1\r\n", "").status(), 403);
}

#[test]
fn a_module_filters_sessions() {
    let origin = parrot("one");
    let start = |conf: Value| {
        let attributes = json!({ "wasm": { "instances": 8, "memory_mib": 1 } });
        let routes = json!([{ "plugins": { "wasm": conf }, "upstream": upstream(&[origin.port()]) }]);
        let rest = json!({ "plugin_attr": attributes, "stream_routes": routes });
        Gateway::start(SIGMA, &config(json!({ "stream": "tcp" }), rest)).unwrap()
    };
    let gateway = start(json!({ "file": file("tcp.wasm") }));
    // The node returns the client's bytes as the module has passed them on.
    assert_eq!(talk(&gateway, "hello"), ("n:one".to_owned(), "n:c:hello".to_owned()));
    assert_eq!(talk(&gateway, "h").1, "n:c:h");
    // Held bytes are passed together.
    let mut peer = gateway.connect().unwrap();
    peer.read_line().unwrap();
    for piece in ["a", "b", "c", "d"] {
        peer.send(piece).unwrap();
    }
    peer.half_close().unwrap();
    let got = String::from_utf8(peer.read_to_close().unwrap()).unwrap();
    assert!(got.starts_with("n:c:abcd"), "{got}");
    // More than a piece.
    let large = "0123456789abcdef".repeat(1 << 16);
    let got = talk(&gateway, &large).1;
    assert_eq!(got.replace("n:", "").replace("c:", ""), large);
    // The module closes a session; a trap and a loop end one.
    for first in ["!", "?", "~"] {
        let mut peer = gateway.connect().unwrap();
        peer.read_line().unwrap();
        peer.send(first).unwrap();
        assert!(peer.read_to_close().map_or(true, |rest| rest.is_empty()), "{first}");
        assert_eq!(talk(&gateway, "hello").1, "n:c:hello", "after {first}");
    }
    let closed = || gateway.stderr().matches("wasm tcp: closed").count() >= 5;
    assert!(until(PATIENCE, closed), "{}", gateway.stderr());
    assert!(gateway.stderr().contains("proxy_on_downstream_data was aborted"), "{}", gateway.stderr());
    // A module that does not start closes all sessions, unless it is configured otherwise.
    let gateway = start(json!({ "file": file("refuses.wasm") }));
    assert!(until(PATIENCE, || is_closed(&gateway)));
    let gateway = start(json!({ "file": file("refuses.wasm"), "fail_open": true }));
    assert_eq!(talk(&gateway, "hello"), ("one".to_owned(), "hello".to_owned()));
}

/// The folder of a Go module that a module of `tests/servers` requires.
fn go_module(folder: &Path, module: &str) -> PathBuf {
    let mut go = Command::new("go");
    let fetched = go.args(["mod", "download"]).current_dir(folder).status().unwrap();
    assert!(fetched.success(), "`go mod download` failed");
    let mut go = Command::new("go");
    let listed = go.args(["list", "-m", "-f", "{{.Dir}}", module]).current_dir(folder).output().unwrap();
    String::from_utf8(listed.stdout).unwrap().trim().into()
}

/// The origin of the kit: it returns the request in fields.
fn told(request: &Message) -> Vec<u8> {
    let (method, uri) = request.head.request_line().unwrap();
    let mut response = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nx-httpwasm-next-method: {method}\r\nx-httpwasm-next-uri: {uri}\r\n"
    );
    for (at, (name, value)) in request.head.fields.iter().enumerate() {
        let earlier = request.head.fields[..at].iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
        response += &format!("x-httpwasm-next-header-{name}-{}: {value}\r\n", earlier.count());
    }
    (response + "\r\n").into_bytes()
}

#[test]
fn the_conformance_kit_of_http_wasm_passes() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers/http-wasm"));
    let kit = go_module(&folder, "github.com/http-wasm/http-wasm-host-go").join("tck/tck.wasm");
    let origin = Origin::answer(told).unwrap();
    let section = json!({ "plugins": [{ "name": "other", "file": filter(), "priority": 1 }] });
    let gateway = start(&origin, &json!({ "wasm": { "file": kit } }), &section);
    for (http2, protocol) in [("", "HTTP/1.1"), ("1", "HTTP/2.0")] {
        let mut go = Command::new("go");
        go.args(["test", "-count=1", "-v", "."]).current_dir(&folder);
        go.env("TCK_URL", format!("http://{}", gateway.address())).env("TCK_HTTP2", http2);
        let output = go.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{protocol}: {text}{}", gateway.stderr());
        assert_eq!(text.matches("--- PASS: TestKit/").count(), 35, "{protocol}: {text}");
    }
}

/// A module of Rust's SDK, built by cargo, and one of AssemblyScript's, built by npm; the first time only.
fn sdk_modules() -> [PathBuf; 2] {
    let rust = built("wasm-rust", "wasm-rust-0.2.5", |folder, draft| {
        let mut cargo = Command::new("cargo");
        cargo.args([
            "build",
            "--quiet",
            "--locked",
            "--release",
            "--target",
            "wasm32-wasip1",
            "--target-dir",
        ]);
        let status = cargo.arg(draft).current_dir(folder).status();
        assert!(
            status.expect("cargo is there").success(),
            "`cargo build` failed; `rustup target add wasm32-wasip1` adds the target"
        );
    });
    let assembly = built("wasm-assembly", "wasm-assembly-0.1.8", |folder, draft| {
        let _ = std::fs::remove_dir_all(draft);
        std::fs::create_dir_all(draft.join("assembly")).unwrap();
        for file in ["package.json", "assembly/index.ts"] {
            std::fs::copy(folder.join(file), draft.join(file)).unwrap();
        }
        let mut npm = Command::new("npm");
        let status = npm.args(["install", "--silent", "--no-audit", "--no-fund"]).current_dir(draft).status();
        assert!(status.expect("npm is there").success(), "`npm install` failed");
        let mut compile = Command::new("npx");
        compile.args(["asc", "assembly/index.ts", "-b", "filter.wasm", "--use", "abort=abort_proc_exit"]);
        let output = compile.arg("--optimize").current_dir(draft).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    });
    [rust.join("wasm32-wasip1/release/filter.wasm"), assembly.join("filter.wasm")]
}

#[test]
fn modules_of_the_sdks_for_rust_and_assemblyscript() {
    let origin = echo();
    let [rust, assembly] = sdk_modules();
    let section = json!({ "plugins": [{ "name": "other", "file": filter(), "priority": 1 }] });
    let conf = json!({ "wasm": { "file": rust, "conf": "hello" } });
    let gateway = start_with(&origin, &conf, &section, 16);
    for size in [1, 100, 500_000] {
        let response = post(&gateway, "", &"a".repeat(size));
        assert_eq!((response.status(), response.head.get("x-greeting")), (200, Some("hello")));
        assert!(response.text() == "A".repeat(size), "{size}");
    }
    let response = post(&gateway, "X-Deny: 1\r\n", "");
    assert_eq!(
        (response.status(), &*response.text(), response.head.get("x-by")),
        (403, "denied\n", Some("rust"))
    );
    assert_eq!(post(&gateway, "X-Panic: 1\r\n", "").status(), 503);
    assert_eq!(post(&gateway, "", "a").text(), "A");
    let conf = json!({ "wasm": { "file": assembly, "conf": "hello", "root_id": "filter" } });
    let gateway = start_with(&origin, &conf, &section, 16);
    for _ in 0..20 {
        let response = post(&gateway, "", "body");
        assert_eq!((response.status(), &*response.text()), (200, "body"));
        assert_eq!(response.head.get("x-greeting"), Some("hello"));
        let response = post(&gateway, "X-Deny: 1\r\n", "");
        assert_eq!((response.status(), &*response.text()), (403, "denied\n"));
    }
}
