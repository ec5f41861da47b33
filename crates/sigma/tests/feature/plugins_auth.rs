//! The identity of a request, from the file with the consumers to the fields for the node.

use std::sync::atomic::{AtomicUsize, Ordering};

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use aws_lc_rs::{digest, hmac};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use sigma_testkit::{Gateway, Message, Origin, until};

use crate::{PATIENCE, SIGMA, nodes};

/// Consumers of all tests. `jack` has a group and plugins of his own; `anyone` is the anonymous consumer.
const CONSUMERS: &str = r#"
consumer_groups:
  - id: gold
    plugins:
      response-rewrite: { headers: { set: { X-Plan: gold } } }
      limit-count: { count: LIMIT, time_window: 600, rejected_code: 429 }
consumers:
  - username: jack
    labels: { custom_id: "7" }
    group_id: gold
    plugins:
      key-auth: { key: jacks-key }
      response-rewrite: { headers: { set: { X-Plan: own } } }
  - id: jack/credentials/second
    plugins:
      key-auth: { key: another-key }
  - username: jill
    group_id: gold
    plugins:
      key-auth: { key: jills-key }
      basic-auth: { username: jill, password: "pass:word" }
      hmac-auth: { key_id: jill, secret_key: s3cret }
      jwt-auth: { key: jill, secret: s3cret }
  - username: elli
    plugins:
      jwt-auth: { key: elli, algorithm: ES256, public_key: "PUBLIC" }
  - username: anyone
    plugins: {}
"#;

/// The consumers, with a public key for `elli` and a limit for the group.
fn consumers(public_key: &str, limit: u32) -> String {
    CONSUMERS.replace("PUBLIC", public_key).replace("LIMIT", &limit.to_string())
}

/// A gateway with these consumers and these routes, each a path and its plugins.
fn gateway(origin: &Origin, routes: &[(&str, &str)], consumers: &str) -> Gateway {
    Gateway::start(SIGMA, &document(origin, routes, consumers)).unwrap()
}

fn document(origin: &Origin, routes: &[(&str, &str)], consumers: &str) -> String {
    let route = |(path, plugins): &(&str, &str)| {
        format!(
            "  - {{ id: \"r{}\", uri: \"{path}\", plugins: {plugins}, upstream: {{ nodes: {} }} }}\n",
            path.replace(['/', '*'], ""),
            nodes(&[origin])
        )
    };
    let routes: String = routes.iter().map(route).collect();
    format!("workers: 2\nlisteners:\n  - address: \"{{listen}}\"\nroutes:\n{routes}{consumers}")
}

/// A field of the request as the node got it; `-` if it was missing.
fn seen(answer: &Message, name: &str) -> String {
    let json = answer.json().unwrap();
    let fields = json["headers"].as_array().unwrap();
    let found = fields.iter().find(|pair| pair[0].as_str().unwrap().eq_ignore_ascii_case(name));
    found.map_or("-".into(), |pair| pair[1].as_str().unwrap().to_owned())
}

/// The consumer, credential and custom id that the node got.
fn told(answer: &Message) -> String {
    assert_eq!(answer.status(), 200, "{}", answer.text());
    ["x-consumer-username", "x-credential-identifier", "x-consumer-custom-id"]
        .map(|name| seen(answer, name))
        .join(" ")
}

/// Status, body and challenge of a refusal.
fn refused(answer: &Message) -> String {
    let challenge = answer.head.get("www-authenticate").unwrap_or("-");
    format!("{} {} {challenge}", answer.status(), answer.text().trim_end())
}

/// Claims of all three kinds that a client may make of itself.
const LIES: &str =
    "X-Consumer-Username: liar\r\nX-Credential-Identifier: liar\r\nX-Consumer-Custom-Id: liar\r\n";

fn ask(gateway: &Gateway, line: &str, fields: &str) -> Message {
    let request = format!("{line} HTTP/1.1\r\nHost: h\r\n{LIES}{fields}\r\n");
    gateway.connect().unwrap().ask(request).unwrap()
}

#[test]
fn keys_find_consumers_and_credentials() {
    let origin = Origin::echo("a").unwrap();
    let routes = [
        ("/plain", "{ key-auth: {} }"),
        ("/hidden", "{ key-auth: { hide_credentials: true } }"),
        ("/moved", "{ key-auth: { hide_credentials: true }, proxy-rewrite: { uri: /new } }"),
        ("/anyone", "{ key-auth: { anonymous_consumer: anyone, realm: here } }"),
        ("/nobody", "{ key-auth: { anonymous_consumer: nobody } }"),
        ("/open", "{}"),
    ];
    let gateway = gateway(&origin, &routes, &consumers(&public_key().1, 1000));
    assert_eq!(told(&ask(&gateway, "GET /plain", "apikey: jacks-key\r\n")), "jack - 7");
    assert_eq!(told(&ask(&gateway, "GET /plain?apikey=another-key", "")), "jack second 7");
    assert_eq!(told(&ask(&gateway, "GET /open", "")), "liar liar liar");
    let challenge = "apikey realm=\"key\"";
    let missing = refused(&ask(&gateway, "GET /plain", ""));
    assert_eq!(missing, format!("401 {{\"message\":\"Missing API key in request\"}} {challenge}"));
    let invalid = refused(&ask(&gateway, "GET /plain", "apikey: Jacks-Key\r\n"));
    assert_eq!(invalid, format!("401 {{\"message\":\"Invalid API key in request\"}} {challenge}"));

    let shown = ask(&gateway, "GET /plain?a=1&apikey=jills-key", "");
    assert_eq!(shown.json().unwrap()["target"], "/plain?a=1&apikey=jills-key");
    let hidden = ask(&gateway, "GET /hidden?a=%31&apikey=another-key&b", "");
    assert_eq!(hidden.json().unwrap()["target"], "/hidden?a=%31&b");
    assert_eq!(seen(&ask(&gateway, "GET /hidden", "APIKEY: jills-key\r\n"), "apikey"), "-");
    let moved = ask(&gateway, "GET /moved?apikey=another-key&b=2", "");
    assert_eq!(moved.json().unwrap()["target"], "/new?b=2");

    assert_eq!(told(&ask(&gateway, "GET /anyone", "apikey: no\r\n")), "anyone - -");
    assert_eq!(told(&ask(&gateway, "GET /anyone", "apikey: another-key\r\n")), "jack second 7");
    let nobody = refused(&ask(&gateway, "GET /nobody", ""));
    assert_eq!(nobody, format!("401 {{\"message\":\"Invalid user authorization\"}} {challenge}"));
}

#[test]
fn names_and_passwords_are_compared() {
    let origin = Origin::echo("a").unwrap();
    let routes = [("/basic", "{ basic-auth: { hide_credentials: true } }")];
    let gateway = gateway(&origin, &routes, &consumers(&public_key().1, 1000));
    let basic = |text: &str| format!("Authorization: Basic {}\r\n", STANDARD.encode(text));
    let answer = ask(&gateway, "GET /basic", &basic("jill:pass:word"));
    assert_eq!((told(&answer), seen(&answer, "authorization")), ("jill - -".into(), "-".into()));
    let check = |fields: &str, message: &str| {
        let said = refused(&ask(&gateway, "GET /basic", fields));
        assert_eq!(said, format!("401 {{\"message\":\"{message}\"}} Basic realm=\"basic\""));
    };
    check("", "Missing authorization in request");
    check("Authorization: Bearer x\r\n", "Invalid authorization in request");
    check(&basic("jill:wrong"), "Invalid user authorization");
}

fn public_key() -> (EcdsaKeyPair, String) {
    let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    let der = pair.public_key().as_der().unwrap();
    let body = STANDARD.encode::<&[u8]>(der.as_ref());
    (pair, format!("-----BEGIN PUBLIC KEY-----\\n{body}\\n-----END PUBLIC KEY-----"))
}

fn token(algorithm: &str, key: &str, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let part = |text: String| URL_SAFE_NO_PAD.encode(text);
    let header = part(format!("{{\"alg\":\"{algorithm}\"}}"));
    let signed = format!("{header}.{}", part(format!("{{\"key\":\"{key}\"}}")));
    let signature = URL_SAFE_NO_PAD.encode(sign(signed.as_bytes()));
    format!("{signed}.{signature}")
}

fn tagged(secret: &[u8], text: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), text).as_ref().to_vec()
}

#[test]
fn tokens_are_verified() {
    let origin = Origin::echo("a").unwrap();
    let routes = [
        ("/jwt", "{ jwt-auth: { hide_credentials: true } }"),
        ("/anyone", "{ jwt-auth: { anonymous_consumer: anyone } }"),
    ];
    let (pair, pem) = public_key();
    let gateway = gateway(&origin, &routes, &consumers(&pem, 1000));
    let shared = token("HS256", "jill", |text| tagged(b"s3cret", text));
    let random = SystemRandom::new();
    let elliptic = token("ES256", "elli", |text| pair.sign(&random, text).unwrap().as_ref().to_vec());
    let answer = ask(&gateway, "GET /jwt", &format!("Authorization: Bearer {shared}\r\n"));
    assert_eq!((told(&answer), seen(&answer, "authorization")), ("jill - -".into(), "-".into()));
    let answer = ask(&gateway, &format!("GET /jwt?jwt={elliptic}&x"), "");
    assert_eq!(
        (told(&answer), answer.json().unwrap()["target"].as_str()),
        ("elli - -".into(), Some("/jwt?x"))
    );
    let answer = ask(&gateway, "GET /jwt", &format!("Cookie: a=b; jwt={elliptic}; c=d\r\n"));
    assert_eq!((told(&answer), seen(&answer, "cookie")), ("elli - -".into(), "a=b; c=d".into()));
    let check = |fields: &str, message: &str| {
        let said = refused(&ask(&gateway, "GET /jwt", fields));
        assert_eq!(said, format!("401 {{\"message\":\"{message}\"}} Bearer realm=\"jwt\""));
    };
    check("", "Missing JWT token in request");
    check("Authorization: Basic x\r\n", "JWT token invalid");
    let forged = token("HS256", "jill", |text| tagged(b"other", text));
    check(&format!("Authorization: {forged}\r\n"), "failed to verify jwt");
    // Signed with the public key, as if it were a secret.
    let secret = pem.replace("\\n", "\n");
    let confused = token("HS256", "elli", |text| tagged(secret.as_bytes(), text));
    check(&format!("Authorization: {confused}\r\n"), "failed to verify jwt");
    let unknown = token("HS256", "nobody", |text| tagged(b"s3cret", text));
    check(&format!("Authorization: {unknown}\r\n"), "Invalid user key in JWT token");
    assert_eq!(told(&ask(&gateway, "GET /anyone", &format!("Authorization: {forged}\r\n"))), "anyone - -");
}

#[test]
fn signatures_are_checked_and_bodies_with_them() {
    let origin = Origin::echo("a").unwrap();
    // The time is fixed, and any clock near enough.
    let routes = [(
        "/sign*",
        "{ hmac-auth: { clock_skew: 4000000000, hide_credentials: true, validate_request_body: true, max_req_body_size: 32 } }",
    )];
    let gateway = gateway(&origin, &routes, &consumers(&public_key().1, 1000));
    const DATE: &str = "Tue, 15 Nov 1994 08:12:31 GMT";
    let fields = |body: &[u8]| {
        let digest = format!("SHA-256={}", STANDARD.encode(digest::digest(&digest::SHA256, body)));
        let text = format!("jill\nPOST /sign it?a=%20\ndate: {DATE}\ndigest: {digest}\n");
        let signature = STANDARD.encode(tagged(b"s3cret", text.as_bytes()));
        format!(
            "Date: {DATE}\r\nDigest: {digest}\r\nAuthorization: Signature keyId=\"jill\",algorithm=\"hmac-sha256\",\
             headers=\"@request-target date digest\",signature=\"{signature}\"\r\n"
        )
    };
    let send = |target: &str, fields: &str, body: &str| {
        let length = body.len();
        let head =
            format!("POST {target} HTTP/1.1\r\nHost: h\r\n{LIES}Content-Length: {length}\r\n{fields}\r\n");
        gateway.connect().unwrap().ask(head + body).unwrap()
    };
    let answer = send("/sign%20it?a=%20", &fields(b"hello"), "hello");
    assert_eq!((told(&answer), seen(&answer, "authorization")), ("jill - -".into(), "-".into()));
    assert_eq!(answer.json().unwrap()["body_bytes"], 5);
    let chunked = format!(
        "POST /sign%20it?a=%20 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n{}\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        fields(b"hello")
    );
    assert_eq!(told(&gateway.connect().unwrap().ask(chunked).unwrap()), "jill - -");
    const REFUSED: &str = "401 {\"message\":\"client request can't be validated\"} hmac realm=\"hmac\"";
    assert_eq!(refused(&send("/sign%20it?a=%20", &fields(b"hello"), "hellO")), REFUSED);
    assert_eq!(refused(&send("/sign%20it?a=1", &fields(b"hello"), "hello")), REFUSED);
    let missing = refused(&send("/sign", "", ""));
    assert!(
        missing.starts_with("401 {\"message\":\"client request can't be validated: missing"),
        "{missing}"
    );
    let long = "x".repeat(33);
    let too_large = refused(&send("/sign%20it?a=%20", &fields(long.as_bytes()), &long));
    assert_eq!(
        too_large,
        "413 {\"message\":\"request size 33 is greater than the maximum size 32 allowed\"} -"
    );
}

#[test]
fn plugins_of_a_consumer_replace_the_routes() {
    let origin = Origin::echo("a").unwrap();
    let plugins = "{ key-auth: { anonymous_consumer: anyone }, \
        response-rewrite: { headers: { set: { X-Plan: route } } }, \
        limit-count: { count: 1000, time_window: 600, rejected_code: 429 } }";
    let routes = [
        ("/merged", plugins),
        ("/bare", "{ key-auth: {} }"),
        ("/only", "{ key-auth: {}, consumer-restriction: { whitelist: [jack] } }"),
        (
            "/group",
            "{ key-auth: { anonymous_consumer: anyone }, consumer-restriction: { type: consumer_group_id, whitelist: [gold] } }",
        ),
    ];
    let gateway = gateway(&origin, &routes, &consumers(&public_key().1, 2));
    let plan = |line: &str, key: &str| {
        let answer = ask(&gateway, line, &format!("apikey: {key}\r\n"));
        format!("{} {}", answer.status(), answer.head.get("x-plan").unwrap_or("-"))
    };
    // The limit is the group's, the header each consumer's own if it has one.
    assert_eq!(plan("GET /merged", "jacks-key"), "200 own");
    assert_eq!(plan("GET /merged", "jills-key"), "200 gold");
    assert_eq!(plan("GET /merged", "unknown"), "200 route");
    // Plugins that the route lacks come along as well; the group's limit counts its members together.
    assert_eq!(plan("GET /bare", "jacks-key"), "429 own");
    assert_eq!(plan("GET /merged", "jills-key"), "429 gold");
    assert_eq!(plan("GET /merged", "unknown"), "200 route");

    let refusal = |line: &str, key: &str| refused(&ask(&gateway, line, &format!("apikey: {key}\r\n")));
    assert_eq!(refusal("GET /only", "jills-key"), "403 {\"message\":\"The consumer_name is forbidden.\"} -");
    assert_eq!(
        refusal("GET /group", "unknown"),
        "401 {\"message\":\"The request is rejected, please check the consumer_group_id for this request\"} -"
    );
}

#[test]
fn consumers_change_with_the_file() {
    let origin = Origin::echo("a").unwrap();
    let routes = [("/plain", "{ key-auth: {} }")];
    let before = "consumers:\n  - { username: a, plugins: { key-auth: { key: one } } }\n";
    let after = "consumers:\n  - { username: b, plugins: { key-auth: { key: two } } }\n";
    let gateway = gateway(&origin, &routes, before);
    let status = |key: &str| ask(&gateway, "GET /plain", &format!("apikey: {key}\r\n")).status();
    assert_eq!((status("one"), status("two")), (200, 401));
    gateway.rewrite(&document(&origin, &routes, after)).unwrap();
    gateway.reload().unwrap();
    // Both workers, whichever takes the connection.
    assert!(until(PATIENCE, || (0..8).all(|_| (status("one"), status("two")) == (401, 200))));
}

#[test]
fn ten_thousand_consumers_come_with_one_reload() {
    const COUNT: usize = 10_000;
    let origin = Origin::echo("a").unwrap();
    let list: String = (0..COUNT)
        .map(|n| format!("  - {{ username: u{n}, plugins: {{ key-auth: {{ key: key-{n} }} }} }}\n"))
        .collect();
    let routes = [("/plain", "{ key-auth: {} }")];
    let gateway = gateway(&origin, &routes, "");
    gateway.rewrite(&document(&origin, &routes, &format!("consumers:\n{list}"))).unwrap();
    gateway.reload().unwrap();
    let ask = |n: usize| ask(&gateway, "GET /plain", &format!("apikey: key-{n}\r\n"));
    assert!(until(PATIENCE, || (0..8).all(|_| ask(COUNT - 1).status() == 200)));
    for n in [0, 1, COUNT / 2, COUNT - 1] {
        assert_eq!(told(&ask(n)), format!("u{n} - -"));
    }
    assert_eq!(ask(COUNT).status(), 401);
}

#[test]
fn requests_are_accepted_or_denied_for_every_kind_of_consumer() {
    let origin = Origin::echo("a").unwrap();
    let routes = [
        ("/ip", "{ ip-restriction: { blacklist: [\"127.0.0.0/8\"] } }"),
        ("/ip-ok", "{ ip-restriction: { whitelist: [\"127.0.0.1\"] } }"),
        ("/ua", "{ ua-restriction: { denylist: [\"^bad\"] } }"),
        ("/uri*", "{ uri-blocker: { block_rules: [\"/uri/(admin|root)$\"], rejected_msg: no } }"),
        ("/cors", "{ cors: { allow_origins: \"http://a.com\" }, key-auth: {} }"),
    ];
    let gateway = gateway(&origin, &routes, "");
    assert_eq!(
        refused(&ask(&gateway, "GET /ip", "")),
        "403 {\"message\":\"Your IP address is not allowed\"} -"
    );
    assert_eq!(ask(&gateway, "GET /ip-ok", "").status(), 200);
    assert_eq!(
        refused(&ask(&gateway, "GET /ua", "User-Agent: bad bot\r\n")),
        "403 {\"message\":\"Not allowed\"} -"
    );
    assert_eq!(ask(&gateway, "GET /ua", "User-Agent: good\r\n").status(), 200);
    for path in ["/uri/admin", "/uri//%61dmin", "/uri/%72oot"] {
        let said = refused(&ask(&gateway, &format!("GET {path}"), ""));
        assert_eq!(said, "403 {\"error_msg\":\"no\"} -", "{path}");
    }
    assert_eq!(ask(&gateway, "GET /uri/other", "").status(), 200);
    let answer = ask(&gateway, "OPTIONS /cors", "Origin: http://a.com\r\n");
    assert_eq!((answer.status(), answer.text().as_str()), (200, ""));
    assert_eq!(answer.head.get("access-control-allow-methods"), Some("*"));
    let answer = ask(&gateway, "GET /cors", "Origin: http://a.com\r\n");
    assert_eq!(answer.status(), 401);
    assert_eq!(answer.head.get("access-control-allow-origin"), Some("http://a.com"));
    assert_eq!(answer.head.get("vary"), Some("Origin"));
}

#[test]
fn failed_logins_count_over_all_workers_and_reloads() {
    const MOST: usize = 20;
    const JILL: &str = "consumers: [{ username: jill, plugins: { key-auth: { key: jills-key } } }]\n";
    let origin = Origin::echo("a").unwrap();
    let routes = [("/guarded", "{ login-guard: { max_failures: 20, block_time: 3600 }, key-auth: {} }")];
    let gateway = gateway(&origin, &routes, JILL);
    let status = |key: &str| ask(&gateway, "GET /guarded", &format!("apikey: {key}\r\n")).status();
    assert_eq!(status("jills-key"), 200);
    let failed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (failed, status) = (&failed, &status);
            scope.spawn(move || {
                for n in 0..MOST {
                    let status = status(&format!("guess-{thread}-{n}"));
                    assert!(matches!(status, 401 | 429), "{status}");
                    failed.fetch_add(usize::from(status == 401), Ordering::Relaxed);
                }
            });
        }
    });
    // One login may be under way in the other worker when the block begins.
    let failed = failed.into_inner();
    assert!((MOST..=MOST + 1).contains(&failed), "{failed}");
    assert_eq!([1; 8].map(|_| status("jills-key")), [429; 8]);
    let block = "login-guard: an address is blocked, too many of its logins failed";
    assert_eq!(gateway.stderr().matches(block).count(), 1, "{}", gateway.stderr());
    // The route changes, the plugin does not.
    let changed = routes[0].1.replace("key-auth: {}", "key-auth: { realm: new }");
    let changed = [("/guarded", changed.as_str()), ("/new", "{ key-auth: {} }")];
    gateway.rewrite(&document(&origin, &changed, JILL)).unwrap();
    gateway.reload().unwrap();
    let is_new = || ask(&gateway, "GET /new", "").status() == 401;
    assert!(until(PATIENCE, || (0..8).all(|_| is_new())));
    assert_eq!([1; 8].map(|_| status("jills-key")), [429; 8]);
}
