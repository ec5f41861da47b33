//! References to secrets in the configuration of plugins.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Operator, Origin, until};

use crate::PATIENCE;
use crate::managed::{EMBEDDED, admin, revision, route, start};

const TOKENS: [&str; 2] = ["old-token", "new-token"];

/// A Vault with one secret, `kv/apisix/jack`, which the test changes.
struct Vault {
    server: Origin,
    secret: Arc<Mutex<Value>>,
}

impl Vault {
    fn start(secret: Value) -> Vault {
        let secret = Arc::new(Mutex::new(secret));
        let kept = Arc::clone(&secret);
        let server = Origin::answer(move |request| {
            let (_, target) = request.head.request_line().unwrap();
            let is_known = request.head.get("x-vault-token").is_some_and(|token| TOKENS.contains(&token));
            let (status, body) = match target {
                _ if !is_known => ("403 Forbidden", json!({"errors": ["permission denied"]})),
                "/v1/kv/apisix/jack" => ("200 OK", json!({"data": *kept.lock().unwrap()})),
                _ => ("404 Not Found", json!({"errors": []})),
            };
            let body = body.to_string();
            format!(
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )
            .into_bytes()
        });
        Vault { server: server.unwrap(), secret }
    }

    /// How a gateway reaches it.
    fn access(&self, token: &str) -> Value {
        let uri = format!("http://127.0.0.1:{}", self.server.port());
        json!({"uri": uri, "prefix": "kv/apisix", "token": token})
    }
}

fn status(gateway: &Gateway, target: &str, key: &str) -> u16 {
    let request = format!("GET {target} HTTP/1.1\r\nHost: h\r\napikey: {key}\r\n\r\n");
    gateway.connect().unwrap().with_deadline(PATIENCE).ask(request).unwrap().status()
}

fn await_status(gateway: &Gateway, key: &str, expected: u16) {
    let settled = until(PATIENCE, || (0..8).all(|_| status(gateway, "/x", key) == expected));
    assert!(settled, "{key} is not answered {expected}:\n{}{}", gateway.stdout(), gateway.stderr());
}

#[test]
fn metadata_of_plugins_refer_to_secrets_too() {
    // Of all variables this one is there wherever a test runs.
    let known = std::env::var("PATH").unwrap();
    let origin = Origin::echo("a").unwrap();
    let gateway = start(&format!("{EMBEDDED}\nprocess: {{ sandbox_write: [\"{{dir}}\"] }}"));
    let admin = admin(&gateway);
    let put = |text: &str| {
        let metadata = json!({"log_format": {"who": text, "uri": "$uri"}});
        admin.put("plugin_metadata/file-logger", &metadata).unwrap();
    };
    // Without the secret the plugin would not do as configured.
    put("$env://SIGMA_TEST_HAS_NO_SUCH_VARIABLE");
    let mut logged = route("/x", &origin);
    logged["plugins"] = json!({"file-logger": {"path": gateway.dir().join("entries.log")}});
    admin.put("routes/1", &logged).unwrap();
    await_status(&gateway, "", 503);
    put("$env://PATH");
    await_status(&gateway, "", 200);
    let entries = || std::fs::read_to_string(gateway.dir().join("entries.log")).unwrap_or_default();
    assert!(until(PATIENCE, || entries().contains('\n')), "{}", gateway.stderr());
    let entry: Value = serde_json::from_str(entries().lines().next().unwrap()).unwrap();
    assert_eq!((&entry["who"], &entry["uri"]), (&json!(known), &json!("/x")));
    // The store has the reference.
    let stored = admin.get("/apisix/admin/plugin_metadata/file-logger").unwrap();
    assert_eq!(stored["value"]["log_format"]["who"], "$env://PATH");
}

fn guarded(origin: &Origin) -> Value {
    let mut route = route("/x", origin);
    route["plugins"] = json!({"key-auth": {}});
    route
}

/// Puts a consumer whose key is in Vault, a route that requires it, and one with a text from there.
fn put_holders(admin: &Operator, origin: &Origin) {
    admin.put("routes/1", &guarded(origin)).unwrap();
    let consumer = json!({"key-auth": {"key": "$secret://vault/1/jack/key"}});
    admin.put("consumers", &json!({"username": "jack", "plugins": consumer})).unwrap();
    let mut limited = route("/limited", origin);
    limited["plugins"] = json!({"limit-count": {
        "count": 1, "time_window": 600, "rejected_code": 429, "rejected_msg": "$secret://vault/1/jack/message",
    }});
    admin.put("routes/2", &limited).unwrap();
}

#[test]
fn a_key_is_in_the_environment() {
    // Of all variables this one is there wherever a test runs.
    let key = std::env::var("PATH").unwrap();
    let origin = Origin::echo("a").unwrap();
    let gateway = start(EMBEDDED);
    let admin = admin(&gateway);
    admin.put("routes/1", &guarded(&origin)).unwrap();
    admin
        .put("consumers", &json!({"username": "jack", "plugins": {"key-auth": {"key": "$env://PATH"}}}))
        .unwrap();
    await_status(&gateway, &key, 200);
    await_status(&gateway, "$env://PATH", 401);
    let stored = admin.get("/apisix/admin/consumers/jack").unwrap();
    assert_eq!(stored["value"]["plugins"]["key-auth"]["key"], "$env://PATH");
}

/// The consumer comes first, the access to Vault after it, and the secret changes later: each time
/// what refers to it follows.
#[test]
fn a_key_is_in_vault_and_changes_there() {
    let vault = Vault::start(json!({"key": "first", "message": "slower please"}));
    let origin = Origin::echo("a").unwrap();
    let gateway = start(EMBEDDED);
    let admin = admin(&gateway);
    put_holders(&admin, &origin);
    admin.put("secrets/vault/1", &vault.access(TOKENS[0])).unwrap();
    await_status(&gateway, "first", 200);
    await_status(&gateway, "second", 401);
    let refusal = || {
        let answer = gateway.connect().unwrap().with_deadline(PATIENCE).get("/limited").unwrap();
        if answer.status() == 429 { answer.text() } else { String::new() }
    };
    assert!(until(PATIENCE, || refusal().contains("slower please")), "{}", refusal());
    *vault.secret.lock().unwrap() = json!({"key": "second", "message": "much slower please"});
    // Another access: values from the former one are no longer trusted.
    admin.put("secrets/vault/1", &vault.access(TOKENS[1])).unwrap();
    await_status(&gateway, "second", 200);
    await_status(&gateway, "first", 401);
    assert!(until(PATIENCE, || refusal().contains("much slower please")), "{}", refusal());
    let said = gateway.stderr() + &gateway.stdout();
    for secret in [TOKENS[0], TOKENS[1], "second", "first"] {
        let told = said
            .lines()
            .any(|line| line.split(|c: char| !c.is_alphanumeric() && c != '-').any(|word| word == secret));
        assert!(!told, "`{secret}` stands in the log:\n{said}");
    }
}

/// Lifetimes of Vault's values that are so short that a test can wait for them.
const BRIEF: &str = "secret_lookup: { refresh_ms: 50, keep_ms: 50, keep_failure_ms: 50, timeout_ms: 1000 }";

/// Without a write: a key and a message change in Vault alone.
#[test]
fn a_rotated_secret_comes_into_force_by_itself() {
    let vault = Vault::start(json!({"key": "first", "message": "slower please"}));
    let origin = Origin::echo("a").unwrap();
    let gateway = start(&format!("{EMBEDDED}\n{BRIEF}"));
    let admin = admin(&gateway);
    admin.put("secrets/vault/1", &vault.access(TOKENS[0])).unwrap();
    put_holders(&admin, &origin);
    let refusal = || {
        let answer = gateway.connect().unwrap().with_deadline(PATIENCE).get("/limited").unwrap();
        if answer.status() == 429 { answer.text() } else { String::new() }
    };
    await_status(&gateway, "first", 200);
    assert!(until(PATIENCE, || refusal().contains("slower please")), "{}", refusal());
    let written = revision(&gateway)["store"]["revision"].clone();
    for round in ["second", "third"] {
        *vault.secret.lock().unwrap() = json!({"key": round, "message": format!("{round} warning")});
        await_status(&gateway, round, 200);
        await_status(&gateway, "first", 401);
        assert!(until(PATIENCE, || refusal().contains(&format!("{round} warning"))), "{}", refusal());
    }
    // A removed value of Vault is no key; the text of the reference least of all.
    *vault.secret.lock().unwrap() = json!({"message": "gone"});
    await_status(&gateway, "third", 401);
    await_status(&gateway, "$secret://vault/1/jack/key", 401);
    *vault.secret.lock().unwrap() = json!({"key": "fourth", "message": "back"});
    await_status(&gateway, "fourth", 200);
    assert_eq!(revision(&gateway)["store"]["revision"], written, "something was written");
}
