//! Failures that operators look up with `sigma`. The logs about failures are in the simulation of `sigma-control`.

use serde_json::json;
use sigma_testkit::{Gateway, Operator, free_port, until};

use crate::tls::Authority;
use crate::{PATIENCE, SIGMA};

/// The node is a listener of the gateway, which names the mistake, as nginx does.
#[test]
fn logs_name_a_node_with_the_other_scheme() {
    let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
    let (tls, node) = (Authority::new("Root").issue("h").files(dir.path(), "h"), format!("127.0.0.1:{port}"));
    let whole = json!({
        "workers": 1,
        "listeners": ["{listen}", { "address": node, "tls": { "certificates": [tls] } }],
        "access_log": { "path": "stdout", "flush_ms": 50 },
        "routes": [{ "id": "shop", "uri": "/shop/*", "upstream": { "retries": 0, "nodes": { node.clone(): 1 } } }],
    });
    let gateway = Gateway::start(SIGMA, &whole.to_string()).unwrap();
    let mut client = gateway.connect().unwrap();
    let answer = client.ask("GET /shop/7 HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    assert!(answer.text().contains("The plain HTTP request was sent to HTTPS port"), "{}", answer.text());
    let line = format!("{node} 400");
    assert!(until(PATIENCE, || gateway.stdout().contains(&line)), "{}", gateway.stdout());
}

#[test]
fn upstreams_without_nodes_are_listed() {
    let whole = json!({
        "workers": 1, "listeners": ["{listen}"], "control": { "address": "{control}" },
        "routes": [
            { "id": "none", "uri": "/none", "upstream": { "nodes": {} } },
            { "id": "some", "uri": "/some", "upstream": { "nodes": { "127.0.0.1:9": 1 } } },
            {
                "id": "unprobed", "uri": "/unprobed",
                "upstream": { "nodes": { "127.0.0.1:9": 1 }, "checks": { "active": { "http_path": "/x" } } },
            },
        ],
    });
    let gateway = Gateway::start(SIGMA, &whole.to_string()).unwrap();
    let control = format!("http://{}", gateway.control_address());
    let all = Operator::new(gateway.control_address()).get("/v1/nodes").unwrap();
    assert_eq!(
        (&all[0]["upstream"], &all[0]["reason"]),
        (&json!("routes/none"), &json!("the upstream has no node"))
    );
    assert_eq!(all[1]["nodes"][0]["status"], "unchecked");
    // Checks without an interval send no probe.
    assert_eq!(all[2]["nodes"][0]["status"], "unchecked");
    let output =
        std::process::Command::new(SIGMA).args(["ctl", "upstreams", "--control", &control]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for (upstream, word) in [
        ("routes/none", "the upstream has no node"),
        ("routes/some", "unchecked"),
        ("routes/unprobed", "unchecked"),
    ] {
        let row = text.lines().find(|row| row.starts_with(upstream));
        assert!(row.is_some_and(|row| row.contains(word)), "{text}");
    }
}

#[test]
fn a_reason_is_explained() {
    let explain = |word: &str| {
        let output = std::process::Command::new(SIGMA).args(["explain", word]).output().unwrap();
        let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), out, err)
    };
    // As the page on troubleshooting shows it.
    let (status, text, _) = explain("connection_refused");
    assert_eq!(status, Some(0));
    let page = include_str!("../../../../docs/troubleshooting.md");
    assert!(page.contains(&format!("$ sigma explain connection_refused\n{text}```\n")), "{text}");
    let (status, text, _) = explain("plugin:limit-count");
    assert_eq!(status, Some(0));
    assert!(text.contains("rejected_code"), "{text}");
    let (status, _, error) = explain("conection_refused");
    assert_eq!(status, Some(1));
    assert!(error.contains("similar reasons: connection_refused"), "{error}");
}
