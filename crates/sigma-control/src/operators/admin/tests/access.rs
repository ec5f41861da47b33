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

/// Without a key, a call that a web page may have sent is refused; with one, the key decides.
#[tokio::test]
async fn pages_of_strangers_may_not_call() {
    let keyless = || Admin { key_required: false, ..settings() };
    let api = Api::with(keyless());
    let own = Api::with(settings());
    let check = async |line: &str, body: &str, status: u16| {
        assert_eq!(api.call(line, body).await.status, status, "{line}");
        // A caller with a key needs nothing else.
        if !line.starts_with("OPTIONS") {
            let keyed = line.replace("No-Key:1", &format!("X-API-KEY:{KEY}"));
            assert_ne!(own.call(&keyed, body).await.status, 403, "{keyed}");
        }
    };
    check("PUT /routes/1 No-Key:1 Host:127.0.0.1:9180", ROUTE, 201).await;
    check("PUT /routes/1 No-Key:1 Host:localhost:9180 Origin:http://localhost:9180", ROUTE, 200).await;
    check("PUT /routes/1 No-Key:1 Host:localhost:9180 Sec-Fetch-Site:same-origin", ROUTE, 200).await;
    for stranger in [
        "Host:evil.example:9180",
        "Host:evil.example:9180 Origin:http://evil.example:9180",
        "Host:localhost:9180 Origin:http://evil.example",
        "Host:localhost:9180 Origin:http://localhost:3000",
        "Host:localhost:9180 Origin:null",
        "Host:localhost:9180 Sec-Fetch-Site:cross-site",
    ] {
        for (line, body) in [
            ("PUT /routes/1", ROUTE),
            ("POST /routes", ROUTE),
            ("DELETE /routes/1", ""),
            ("PATCH /routes/1", "{}"),
            ("GET /routes", ""),
            ("GET /configs", ""),
            ("PUT /configs", "{}"),
            ("PUT /plugins/reload", ""),
            ("POST /schema/validate/routes", "{}"),
            ("OPTIONS /routes", ""),
        ] {
            check(&format!("{line} No-Key:1 {stranger}"), body, 403).await;
        }
    }
    let answer = api.call("GET /routes No-Key:1 Host:localhost Origin:http://localhost", "").await;
    assert_eq!((answer.status, answer.headers.get("access-control-allow-origin")), (200, None));

    let mut listed = AdminState::new(
        Arc::new(Memory::default()),
        Arc::new(Plugins { any: json!({"type": "object"}) }),
        keyring(),
        keyless(),
    );
    listed.behind(&Operators {
        hosts: vec!["gate.example".into()],
        origins: vec!["https://dash.example".into()],
        ..Operators::default()
    });
    let listed = Api { state: Arc::new(listed), peer: SocketAddr::from((Ipv4Addr::LOCALHOST, 40_000)) };
    let page = "No-Key:1 Host:gate.example:9180 Origin:https://dash.example Sec-Fetch-Site:cross-site";
    assert_eq!(listed.call(&format!("OPTIONS /routes {page}"), "").await.status, 200);
    let answer = listed.call(&format!("PUT /routes/1 {page}"), ROUTE).await;
    let field = |name: &str| answer.headers.get(name).and_then(|value| value.to_str().ok());
    assert_eq!((answer.status, field("access-control-allow-origin")), (201, Some("https://dash.example")));
    assert_eq!(field("vary"), Some("origin"));
    let other =
        listed.call("GET /routes No-Key:1 Host:gate.example Origin:https://dash.example.evil", "").await;
    assert_eq!(other.status, 403);
}

/// Browsers add the cookie to what any page sends.
#[tokio::test]
async fn a_key_in_a_cookie_is_for_pages_of_ones_own() {
    let api = Api::new();
    let check = async |line: &str, status: u16| {
        let line = format!("{line} Host:gate:9180 Cookie:x_api_key={KEY}");
        assert_eq!(api.call(&line, ROUTE).await.status, status, "{line}");
    };
    check("PUT /routes/1", 201).await;
    check("PUT /routes/1 Origin:http://gate:9180", 200).await;
    check("PUT /routes/1 Sec-Fetch-Site:same-origin", 200).await;
    for page in
        ["Origin:http://evil.example", "Origin:null", "Sec-Fetch-Site:cross-site", "Sec-Fetch-Site:same-site"]
    {
        for verb in ["PUT /routes/1", "POST /routes", "GET /routes"] {
            check(&format!("{verb} {page}"), 401).await;
        }
    }
    assert_eq!(api.call(&format!("GET /routes No-Key:1 x_api_key:{KEY}"), "").await.status, 200);
}

/// A viewer reads everything but secrets, wherever they stand.
#[tokio::test]
async fn viewers_see_no_secrets() {
    let api = Api::new();
    let made = rcgen::generate_simple_self_signed(["a.com".to_owned()]).expect("a certificate");
    let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let sessions = json!({"cookie": {"name": "s"}, "secret": "sesame of sixteen"});
    let tls = json!({"client_cert": cert, "client_key": key});
    let upstream = json!({"nodes": {}, "session_affinity": sessions, "tls": tls});
    for (path, body) in [
        ("/consumers/jack", json!({"username": "jack", "plugins": {"key-auth": {"key": "sesame"}}})),
        ("/consumers/jack/credentials/c", json!({"plugins": {"key-auth": {"key": "sesame-2"}}})),
        ("/upstreams/1", upstream.clone()),
        ("/routes/1", json!({"uri": "/", "upstream": upstream})),
        ("/ssls/1", json!({"sni": "a.com", "cert": cert, "key": key})),
        ("/secrets/vault/1", json!({"uri": "http://127.0.0.1:1", "prefix": "p", "token": "sesame-3"})),
        ("/consumer_groups/1", json!({"plugins": {"key-auth": {"key": "$env://SESAME"}}})),
    ] {
        api.done(&format!("PUT {path}"), &body.to_string()).await;
    }
    let dump = api.call("GET /configs", "").await.text;
    let sealed = |pointer: &str| {
        let dump: Value = serde_json::from_str(&dump).expect("JSON");
        dump.pointer(pointer).and_then(Value::as_str).expect("a ciphertext").to_owned()
    };
    let hidden = [
        sealed("/ssls/0/key"),
        sealed("/upstreams/0/tls/client_key"),
        sealed("/routes/0/upstream/tls/client_key"),
    ];
    for path in [
        "/consumers",
        "/consumers/jack",
        "/consumers/jack/credentials",
        "/consumers/jack/credentials/c",
        "/upstreams",
        "/upstreams/1",
        "/routes",
        "/routes/1",
        "/ssls",
        "/ssls/1",
        "/secrets",
        "/secrets/vault/1",
        "/configs",
        "/configs Accept:application/yaml",
    ] {
        let answer = api.call(&format!("GET {path} X-API-KEY:{VIEWER}"), "").await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        let leaks = hidden.iter().any(|cipher| answer.text.contains(cipher.as_str()));
        assert!(!leaks && !answer.text.contains("sesame"), "{path}: {}", answer.text);
        assert!(answer.text.contains("***") || path.starts_with("/ssls"), "{path}: {}", answer.text);
    }
    let group = api.call(&format!("GET /consumer_groups/1 X-API-KEY:{VIEWER}"), "").await.json();
    assert_eq!(
        group["value"]["plugins"]["key-auth"]["key"],
        json!("$env://SESAME"),
        "a reference tells nothing"
    );
    assert_eq!(
        api.done("GET /consumers/jack", "").await["value"]["plugins"]["key-auth"]["key"],
        json!("sesame")
    );
    // Values that a viewer has read are refused: their secrets would be publicly known.
    let masked = "the value contains ***, the mask of a secret: keys with the role viewer get masked secrets, so read the value with a key of the role admin";
    let shown = api.call(&format!("GET /configs X-API-KEY:{VIEWER}"), "").await.text;
    api.refused("PUT /configs X-Digest:a", &shown, 400, masked).await;
    let jack = r#"{"username":"jack","plugins":{"key-auth":{"key":"***"}}}"#;
    api.refused("PUT /consumers", jack, 400, masked).await;
    api.refused("PATCH /secrets/vault/1/token", "\"***\"", 400, masked).await;
    // And changes nothing, by no path.
    for line in [
        "PUT /routes/1",
        "POST /routes",
        "PATCH /routes/1",
        "PATCH /routes/1/desc",
        "DELETE /routes/1",
        "PUT /configs",
        "POST /configs/validate",
        "POST /schema/validate/routes",
        "PUT /plugins/reload",
        "PUT /nothing/1",
        "DELETE /secrets/vault/1",
    ] {
        let description = "invalid method for role viewer";
        let expected = json!({"error_msg": "failed to check token", "description": description});
        api.check(&format!("{line} X-API-KEY:{VIEWER}"), ROUTE, 401, expected).await;
    }
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
async fn invalid_bodies_are_refused() {
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
