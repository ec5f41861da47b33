//! `sigma check` and the way of PostgreSQL to TLS. Sessions are in the simulation of `sigma-control`.

use serde_json::{Value, json};

use crate::SIGMA;
use crate::streams::upstream;

#[test]
fn an_upstream_that_would_send_cleartext_is_refused() {
    let check = |upstream: Value| {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("sigma.yaml");
        let whole = json!({
            "listeners": [{ "address": "127.0.0.1:5432", "stream": "tcp" }],
            "stream_routes": [{ "id": "r", "upstream": upstream }],
        });
        std::fs::write(&file, whole.to_string()).unwrap();
        let output = std::process::Command::new(SIGMA).arg("check").arg("-c").arg(&file).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let mut to = upstream(&[5433]);
    to["tls"] = json!({ "starttls": "postgres" });
    let (ok, said) = check(to.clone());
    assert!(!ok && said.contains("`tls.starttls` needs `scheme: tls`"), "{said}");
    to["scheme"] = "tls".into();
    to["checks"] = json!({ "active": { "type": "https" } });
    let (ok, said) = check(to.clone());
    assert!(!ok && said.contains("do not respond to HTTP"), "{said}");
    to["checks"]["active"]["port"] = json!(8008);
    let (ok, said) = check(to);
    assert!(ok, "{said}");
}
