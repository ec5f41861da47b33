//! Keys, roles, allow lists and CORS.

use super::*;

#[tokio::test]
async fn keys_and_roles() {
    let api = Api::new();
    let token = |description: &str| json!({"error_msg": "failed to check token", "description": description});
    let empty = || json!({"list": [], "total": 0});
    api.check("GET /routes No-Key:1", "", 401, token("missing apikey")).await;
    api.check("GET /routes X-API-KEY:wrong", "", 401, token("wrong apikey")).await;
    api.check("GET /routes X-API-KEY:", "", 401, token("wrong apikey")).await;
    api.check(&format!("GET /routes?api_key={KEY} X-API-KEY:wrong"), "", 200, empty()).await;
    api.check(&format!("GET /routes Cookie:a=b;~x_api_key={KEY}"), "", 200, empty()).await;
    api.check(&format!("GET /routes X-API-KEY:{VIEWER}"), "", 200, empty()).await;
    let refused = token("invalid method for role viewer");
    api.check(&format!("PUT /routes/1 X-API-KEY:{VIEWER}"), ROUTE, 401, refused).await;
    // The key comes before everything that a stranger could learn from.
    api.check("GET /nothing No-Key:1", "", 401, token("missing apikey")).await;
    let open = Api::with(Admin { key_required: false, ..settings() });
    open.check("GET /routes No-Key:1", "", 200, empty()).await;
    let unset = Api::with(Admin { keys: Vec::new(), ..settings() });
    unset.check("GET /routes X-API-KEY:", "", 401, token("wrong apikey")).await;
}

#[tokio::test]
async fn only_listed_peers_may_call() {
    let mut api = Api::new();
    for (peer, status) in [("127.0.0.9:1", 200), ("10.0.0.1:1", 403), ("[::ffff:127.0.0.1]:1", 200)] {
        api.peer = peer.parse().expect("an address");
        assert_eq!(api.call("GET /routes", "").await.status, status, "{peer}");
        let preflight = if status == 200 { 200 } else { 403 };
        assert_eq!(api.call("OPTIONS /routes No-Key:1", "").await.status, preflight, "{peer}");
    }
}

#[tokio::test]
async fn answers_carry_their_fields() {
    let check = |answer: &Answer, name: &str, expected: Option<&str>| {
        let got = answer.headers.get(name).map(|value| value.to_str().expect("text"));
        assert_eq!(got, expected, "{name}");
    };
    let api = Api::new();
    let answer = api.call("GET /routes", "").await;
    check(&answer, "server", Some(concat!("sigma/", env!("CARGO_PKG_VERSION"))));
    check(&answer, "content-type", Some("application/json"));
    check(&answer, "x-api-version", Some("v3"));
    check(&answer, "access-control-allow-origin", Some("*"));
    assert!(answer.text.ends_with("}\n") && !answer.text.ends_with("\n\n"));
    let preflight = api.call("OPTIONS /routes No-Key:1", "").await;
    assert_eq!((preflight.status, preflight.text.as_str()), (200, ""));
    check(&preflight, "access-control-allow-methods", Some("POST, GET, PUT, OPTIONS, DELETE, PATCH"));
    check(&preflight, "content-type", Some("text/plain"));
    let closed = Api::with(Admin { cors: false, ..settings() });
    let answer = closed.call("GET /routes", "").await;
    check(&answer, "access-control-allow-origin", None);
    assert_eq!(closed.call("OPTIONS /routes", "").await.status, 404);
    assert_eq!(api.call("HEAD  No-Key:1", "").await.status, 200);
}

#[tokio::test]
async fn bodies_that_are_none() {
    let api = Api::new();
    let body = |message: &str, text: &str| json!({"error_msg": message, "req_body": text});
    let message = "invalid request body: Expected value but found invalid token at character 1";
    api.check("PUT /routes/1", "x", 400, body(message, "x")).await;
    api.refused("PUT /routes/1", "", 400, "missing configurations").await;
    api.refused("POST /routes", "", 400, "missing configurations").await;
    api.refused("PATCH /routes/1", "", 400, "missing new configuration").await;
    let wrong = |found: &str| format!("invalid configuration: wrong type: expected object, got {found}");
    for (text, found) in [("1", "number"), ("[1]", "table"), ("null", "userdata"), ("\"x\"", "string")] {
        api.refused("PUT /routes/1", text, 400, &wrong(found)).await;
    }
    let large = Api::with(Admin { body_bytes: 10, ..settings() });
    let message = "invalid request body: request size 11 is greater than the maximum size 10 allowed";
    large.refused("PUT /routes/1", "12345678901", 400, message).await;
    api.refused("PUT /routes/1?ttl=soon", ROUTE, 400, "invalid argument ttl: should be a number").await;
    api.refused("PUT /routes/1?ttl=-1", ROUTE, 400, "invalid argument ttl: should be a number").await;
    let message = "invalid argument dry_run: should be true or false";
    api.refused("PUT /routes/1?dry_run=yes", ROUTE, 400, message).await;
}
