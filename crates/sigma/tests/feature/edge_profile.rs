//! `profile: edge`: defaults for a gateway that the Internet reaches, in a file and for objects of the Admin API.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use sigma_testkit::{Gateway, Origin, until};

use crate::managed::{EMBEDDED, admin, start};
use crate::tls::{Authority, config, to_origin};
use crate::{PATIENCE, SIGMA};

fn status(gateway: &Gateway, path: &str, fields: &str) -> u16 {
    let head = format!("GET {path} HTTP/1.1\r\nHost: h\r\n{fields}Connection: close\r\n\r\n");
    let mut peer = gateway.connect().unwrap();
    peer.send(head.as_bytes()).unwrap();
    peer.read_response("GET").unwrap().status()
}

/// A node over TLS whose certificate no authority of the system vouches for.
fn node(origin: &Origin, dir: &std::path::Path) -> Gateway {
    let tls = Authority::new("Root").issue("h").files(dir, "h");
    Gateway::start(SIGMA, &config(json!({ "certificates": [tls] }), to_origin(origin), json!({}))).unwrap()
}

fn https(node: &Gateway, tls: Option<Value>) -> Value {
    let address = format!("127.0.0.1:{}", node.address().port().unwrap());
    let mut upstream = json!({ "scheme": "https", "retries": 0, "nodes": { address: 1 } });
    upstream.as_object_mut().unwrap().extend(tls.map(|tls| ("tls".to_owned(), tls)));
    upstream
}

#[test]
fn nodes_are_verified_unless_the_upstream_says_otherwise() {
    let (origin, dir) = (Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let node = node(&origin, dir.path());
    let start = |profile: Option<&str>| {
        let split = json!({ "traffic-split": { "rules": [{ "weighted_upstreams": [{ "upstream": https(&node, None) }] }] } });
        let mut whole = json!({
            "workers": 1, "listeners": ["{listen}"],
            "upstreams": [{ "id": "u", "scheme": "https", "retries": 0, "nodes": https(&node, None)["nodes"] }],
            "routes": [
                { "id": "object", "uri": "/object", "upstream_id": "u" },
                { "id": "inline", "uri": "/inline", "upstream": https(&node, None) },
                { "id": "other", "uri": "/other", "upstream": https(&node, Some(json!({ "alpn": ["http/1.1"] }))) },
                { "id": "split", "uri": "/split", "upstream": https(&node, None), "plugins": split },
                { "id": "off", "uri": "/off", "upstream": https(&node, Some(json!({ "verify": false }))) },
            ],
        });
        whole.as_object_mut().unwrap().extend(profile.map(|word| ("profile".to_owned(), word.into())));
        Gateway::start(SIGMA, &whole.to_string()).unwrap()
    };
    let edge = start(Some("edge"));
    for path in ["/object", "/inline", "/other", "/split"] {
        assert_eq!(status(&edge, path, ""), 502, "{path}");
    }
    assert_eq!(status(&edge, "/off", ""), 200);
    edge.await_log("certificate");
    let plain = start(None);
    for path in ["/object", "/inline", "/other", "/split", "/off"] {
        assert_eq!(status(&plain, path, ""), 200, "{path}");
    }
}

/// A token of jack without `exp`.
fn token() -> String {
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(json!({ "alg": "HS256" })), part(json!({ "key": "jack" })));
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, SECRET.as_bytes());
    let signature = URL_SAFE_NO_PAD.encode(aws_lc_rs::hmac::sign(&key, signed.as_bytes()));
    format!("Authorization: Bearer {signed}.{signature}\r\n")
}

const SECRET: &str = "a-secret-of-at-least-32-characters";

#[test]
fn objects_of_the_admin_api_have_the_defaults_and_stay_as_written() {
    let origin = Origin::echo("a").unwrap();
    let gateway = start(&format!("profile: edge\n{EMBEDDED}"));
    let admin = admin(&gateway);
    let upstream = to_origin(&origin);
    let consumer =
        json!({ "username": "jack", "plugins": { "jwt-auth": { "key": "jack", "secret": SECRET } } });
    assert!(admin.call("PUT", "/apisix/admin/consumers/jack", Some(&consumer)).unwrap().status() < 300);
    for (id, conf) in [("default", json!({})), ("own", json!({ "require_exp": false }))] {
        let route = json!({ "uri": format!("/{id}"), "upstream": upstream, "plugins": { "jwt-auth": conf } });
        let answer = admin.call("PUT", &format!("/apisix/admin/routes/{id}"), Some(&route)).unwrap();
        assert!(answer.status() < 300, "{}", answer.text());
        // The default needs no warning, the exception does.
        assert_eq!(answer.head.get("x-sigma-warning").is_some(), id == "own", "{id}");
        let stored = admin.call("GET", &format!("/apisix/admin/routes/{id}"), None).unwrap();
        assert_eq!(stored.json().unwrap()["value"]["plugins"]["jwt-auth"], conf);
    }
    assert!(until(PATIENCE, || status(&gateway, "/own", &token()) == 200), "{}", gateway.stderr());
    assert!(until(PATIENCE, || status(&gateway, "/default", &token()) == 401), "{}", gateway.stderr());
}
