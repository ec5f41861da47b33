//! `wasm` and APISIX's section `wasm`, with the filter in `tests/servers/wasm`.

use std::path::PathBuf;

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Message, Origin};

use crate::SIGMA;

fn filter() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers/wasm/filter.wasm"))
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
    let config = json!({
        "workers": 2,
        "listeners": [{ "address": "{listen}" }],
        "pid_file": "{dir}/sigma.pid",
        "plugin_attr": { "wasm": { "instances": 8, "memory_mib": 1, "disk_path": "{dir}/wasm" } },
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
    let response = post(&gateway, "X-Deny: 1\r\n", "");
    assert_eq!((response.status(), &*response.text()), (403, "denied\n"));
    // A trap and an endless loop end their own exchanges.
    for field in ["X-Trap: 1\r\n", "X-Loop: 1\r\n"] {
        assert_eq!(post(&gateway, field, "a").status(), 503, "{field}");
        assert_eq!(post(&gateway, "", "a").text(), "wasm:wasm:a", "after {field}");
    }
    let log = gateway.stderr();
    assert!(log.contains("wasm filter: proxy_on_request_headers is aborted: wasm `unreachable`"), "{log}");
    assert!(
        log.contains("wasm filter: proxy_on_request_headers is aborted: it ran longer than 100 ms"),
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
