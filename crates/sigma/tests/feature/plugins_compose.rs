//! `batch-requests` and `compose`: permissions and results of a request of the gateway to itself.

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Message, Origin, Peer, until};

use crate::tls::{self, Authority, ask, run, shake, to_origin};
use crate::{PATIENCE, SIGMA};

fn start(rest: Value) -> Gateway {
    let mut whole = json!({
        "workers": 1,
        "listeners": [{ "address": "{listen}" }],
        "status": { "address": "{status}" },
    });
    whole.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    Gateway::start(SIGMA, &whole.to_string()).unwrap()
}

fn batch(gateway: &Gateway, fields: &str, pipeline: &Value) -> Value {
    let body = json!({ "pipeline": pipeline }).to_string();
    let head =
        format!("POST /apisix/batch-requests HTTP/1.1\r\nHost: h\r\n{fields}Content-Length: {}", body.len());
    let answer = gateway.connect().unwrap().ask(format!("{head}\r\n\r\n{body}")).unwrap();
    assert_eq!(answer.status(), 200, "{}", answer.text());
    answer.json().unwrap()
}

/// A trusted proxy vouches for its own request, and not for requests inside it.
#[test]
fn a_trusted_proxy_does_not_vouch_for_requests_of_a_batch() {
    let origin = Origin::echo("a").unwrap();
    let plugins = json!({ "real-ip": { "source": "http_x_client", "trusted_addresses": ["127.0.0.0/8"] } });
    let gateway = start(json!({
        "trusted_addresses": ["127.0.0.0/8"],
        "global_rules": [{ "id": "address", "plugins": plugins }],
        "routes": [
            { "id": "batch", "uri": "/apisix/batch-requests", "plugins": { "public-api": {} } },
            {
                "id": "inner", "uri": "/inner",
                "plugins": { "ip-restriction": { "whitelist": ["10.0.0.1"] } }, "upstream": to_origin(&origin),
            },
            { "id": "seen", "uri": "/seen", "upstream": to_origin(&origin) },
        ],
    }));
    let asked = json!([
        { "path": "/inner", "headers": { "X-Client": "10.0.0.1", "X-Forwarded-For": "10.0.0.1" } },
        { "path": "/seen", "headers": { "X-Forwarded-For": "10.0.0.1", "Forwarded": "for=10.0.0.1" } },
    ]);
    let answers = batch(&gateway, "X-Client: 192.0.2.7\r\n", &asked);
    assert_eq!(answers[0]["status"], 403, "{answers}");
    let seen = answers[1]["body"].as_str().unwrap();
    assert!(seen.contains("192.0.2.7") && !seen.contains("10.0.0.1"), "{seen}");
    // An allowed client is allowed through a batch as well.
    let answers = batch(&gateway, "X-Client: 10.0.0.1\r\n", &asked);
    assert_eq!(answers[0]["status"], 200, "{answers}");
}

/// One name is no way to another one that requests a certificate, not even by way of the gateway itself.
#[test]
fn a_composition_is_bound_to_the_session_of_its_client() {
    let (root, clients, origin) =
        (Authority::new("Root"), Authority::new("Clients"), Origin::echo("a").unwrap());
    let (open, strict) = (root.issue("open.test"), root.issue("strict.test"));
    let call = |host: &str| json!({ "name": "one", "path": "/asked", "host": host, "required": true });
    let composed = |host: &str| json!({ "compose": { "calls": [call(host)] } });
    let rest = json!({
        "ssls": [
            open.ssl(json!({ "id": "open", "sni": "open.test" })),
            strict.ssl(json!({ "id": "strict", "sni": "strict.test", "client": { "ca": clients.pem } })),
        ],
        "routes": [
            { "id": "guarded", "uri": "/guarded", "plugins": composed("strict.test") },
            { "id": "free", "uri": "/free", "plugins": composed("open.test") },
            { "id": "asked", "uri": "/asked", "upstream": to_origin(&origin) },
        ],
    });
    let gateway = Gateway::start(SIGMA, &tls::config(json!(true), json!({}), rest)).unwrap();
    run(async {
        let mut stream = shake(&gateway, &root.client(None), "open.test").await.unwrap();
        assert_eq!(tls::status(&ask(&mut stream, "open.test", "/free", "").await.unwrap()), 200);
        assert_eq!(tls::status(&ask(&mut stream, "open.test", "/guarded", "").await.unwrap()), 421);
        assert_eq!(origin.requests(), 1);
    });
}

/// Calls are made at the same time; when the client leaves, each of them ends as an exchange does.
#[test]
fn calls_run_together_and_end_with_their_client() {
    let origin = Origin::scripted().unwrap();
    let calls: Vec<Value> =
        (0..3).map(|n| json!({ "name": format!("c{n}"), "path": format!("/{n}") })).collect();
    let gateway = start(json!({
        "routes": [
            { "id": "all", "uri": "/all", "plugins": { "compose": { "calls": calls, "timeout": 600_000 } } },
            { "id": "any", "uri": "/*", "upstream": to_origin(&origin) },
        ],
    }));
    let asked = |client: &mut Peer| -> Vec<(Peer, String)> {
        client.send("GET /all HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        let next = |_| {
            let mut node = origin.accept().unwrap();
            let line = node.read_head().unwrap().line;
            (node, line)
        };
        (0..3).map(next).collect()
    };
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    // The last one is answered first.
    for (node, line) in asked(&mut client).iter_mut().rev() {
        let name = line.split(' ').nth(1).unwrap()[1..].to_owned();
        let body = format!("{{\"{name}\":true}}");
        node.send(format!(
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))
        .unwrap();
    }
    let answer: Message = client.read_response("GET").unwrap();
    assert_eq!(answer.text(), "{\"0\":true,\"1\":true,\"2\":true}\n");
    assert_eq!(answer.head.get("x-sigma-completed"), Some("true"));
    assert_eq!(gateway.counter("sigma_requests_total"), 4);

    let mut nodes = asked(&mut client);
    client.reset().unwrap();
    for (node, line) in &mut nodes {
        node.expect_closed().unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    assert!(until(PATIENCE, || gateway.counter("sigma_requests_total") == 8
        && gateway.counter("sigma_exchanges_ended_total") == 8));
}
