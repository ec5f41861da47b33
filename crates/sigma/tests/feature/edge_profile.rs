//! `profile: edge`: defaults for a gateway that the Internet reaches, for objects of the Admin API.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use sigma_testkit::{Gateway, Origin, until};

use crate::PATIENCE;
use crate::managed::{EMBEDDED, admin, start};
use crate::tls::to_origin;

fn status(gateway: &Gateway, path: &str, fields: &str) -> u16 {
    let head = format!("GET {path} HTTP/1.1\r\nHost: h\r\n{fields}Connection: close\r\n\r\n");
    let mut peer = gateway.connect().unwrap();
    peer.send(head.as_bytes()).unwrap();
    peer.read_response("GET").unwrap().status()
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
