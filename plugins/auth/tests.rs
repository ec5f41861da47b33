//! The plugins of this folder, one request at a time.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sigma_plugin::context::RouteFacts;
use sigma_plugin::{Consumer, Consumers, Identity, Phase};
use sigma_schema::plugins::PluginScope;

use crate::testing::{Case, entry, field, refusal, refusal_in, summary, warned};

/// Returns the response of a plugin and the fields for the node, for a request with these fields.
fn told(case: &mut Case, plugin: &str, conf: &Value, request: &str) -> String {
    case.request(request);
    let entry = entry(plugin, conf.clone()).unwrap();
    let reply = case.run(&entry, Phase::Rewrite);
    if let Some(reply) = &reply {
        let challenge = field(reply, "www-authenticate").unwrap_or_default();
        return format!("{} {challenge}", summary(Some(reply)));
    }
    let fields = ["x-consumer-username", "x-credential-identifier", "x-consumer-custom-id"];
    fields.map(|name| case.sent(name).unwrap_or_else(|| "-".into())).join(" ")
}

/// A case with `jack`, recognised by `own` and by the credential `c1` that holds `other`.
fn jack(plugin: &'static str, own: &Value, other: &Value) -> Case {
    let mut case = Case::new("GET / HTTP/1.1\nHost: h");
    case.consumer("jack", plugin, own);
    let consumer = Consumer { name: "jack".into(), custom_id: Some("c1".into()), ..Consumer::default() };
    case.identity(consumer, Some("cred"), plugin, other);
    case.consumers.put(Arc::new(Consumer { name: "anyone".into(), ..Consumer::default() }));
    case
}

#[test]
fn key_auth_finds_the_key() {
    let mut case = jack("key-auth", &json!({"key": "own"}), &json!({"key": "other key"}));
    let mut check = |conf: &Value, request: &str, expected: &str| {
        let request =
            format!("GET {}\nHost: h\nX-Consumer-Username: liar\nX-Credential-Identifier: liar", request);
        assert_eq!(told(&mut case, "key-auth", conf, &request), expected, "{conf} {request}");
        (case.target(), case.sent("apikey"))
    };
    let plain = json!({});
    const MISSING: &str = "401 {\"message\":\"Missing API key in request\"} apikey realm=\"key\"";
    const INVALID: &str = "401 {\"message\":\"Invalid API key in request\"} apikey realm=\"key\"";
    check(&plain, "/ HTTP/1.1\nApikey: own", "jack - c1");
    check(&plain, "/?apikey=other%20key HTTP/1.1", "jack cred c1");
    check(&plain, "/ HTTP/1.1", MISSING);
    check(&plain, "/?apikey=own HTTP/1.1\napikey: ", INVALID);
    check(&plain, "/ HTTP/1.1\napikey: OWN", INVALID);
    check(&plain, "/?apikey HTTP/1.1", INVALID);
    check(&plain, "/?apikey=own&apikey=own HTTP/1.1", INVALID);
    check(&plain, "/?Apikey=own HTTP/1.1", MISSING);
    let own = json!({"header": "K", "query": "k", "realm": "here"});
    check(&own, "/?k=own HTTP/1.1", "jack - c1");
    check(&own, "/ HTTP/1.1\nk: x", "401 {\"message\":\"Invalid API key in request\"} apikey realm=\"here\"");
    let hidden = json!({"hide_credentials": true});
    let seen = check(&hidden, "/a?x=%31&apikey=own&y HTTP/1.1", "jack - c1");
    assert_eq!(seen, ("/a?x=%31&y".into(), None));
    let seen = check(&hidden, "/a?apikey=own HTTP/1.1", "jack - c1");
    assert_eq!(seen.0, "/a");
    // Values in the other places of keys are keys as well.
    let seen = check(&hidden, "/a?apikey=own&b HTTP/1.1\napikey: own\napikey: other key", "jack - c1");
    assert_eq!(seen, ("/a?b".into(), None));
    let anyone = json!({"hide_credentials": true, "anonymous_consumer": "anyone"});
    let seen = check(&anyone, "/?apikey=x&b HTTP/1.1\napikey: y", "anyone - -");
    assert_eq!(seen, ("/?b".into(), None));
    check(&json!({"anonymous_consumer": "anyone"}), "/ HTTP/1.1", "anyone - -");
    let nobody = json!({"anonymous_consumer": "nobody"});
    check(&nobody, "/ HTTP/1.1", "401 {\"message\":\"Invalid user authorization\"} apikey realm=\"key\"");
}

#[test]
fn an_underscore_in_a_configured_name_matches_a_hyphen() {
    let mut case = jack("key-auth", &json!({"key": "own"}), &json!({"key": "other"}));
    let mut check = |header: &str, fields: &str, expected: &str| {
        let conf = json!({"header": header, "hide_credentials": true});
        let request = format!("GET / HTTP/1.1\nHost: h\n{fields}");
        let said = told(&mut case, "key-auth", &conf, &request);
        assert!(said.starts_with(expected), "{header} {fields}: {said}");
        assert_eq!((case.sent("x-api-key"), case.sent("x_api_key")), (None, None), "{fields}");
    };
    check("x_api_key", "X-Api-Key: own", "jack -");
    check("x_api_key", "X_Api_Key: own", "jack -");
    check("x_api_key", "X-Api-Key: no\nX_Api_Key: own", "jack -");
    check("x-api-key", "X-Api-Key: own", "jack -");
}

#[test]
fn nothing_is_nobodys_credential() {
    // The values of such a consumer's secrets after look-up.
    for (plugin, conf) in [
        ("key-auth", json!({"key": ""})),
        ("basic-auth", json!({"username": "", "password": "p"})),
        ("basic-auth", json!({"username": "jack", "password": ""})),
        ("hmac-auth", json!({"key_id": "id", "secret_key": ""})),
        ("hmac-auth", json!({"key_id": "", "secret_key": "s"})),
        ("jwt-auth", json!({"key": "", "secret": "s"})),
        ("jwt-auth", json!({"key": "jack", "secret": ""})),
        ("jwt-auth", json!({"key": "jack", "secret": "====", "base64_secret": true})),
    ] {
        let made = crate::testing::roster().identity(plugin, &conf).unwrap();
        assert!(made.is_err(), "{plugin} {conf}");
        assert_ne!(refusal_in(plugin, PluginScope::Consumer, &conf), "", "{plugin} {conf}");
    }
    // Even where one is in the index all the same.
    let mut case = jack("key-auth", &json!({"key": "own"}), &json!({"key": "other"}));
    let identity = Arc::clone(case.consumers.find("key-auth", "own").unwrap());
    case.consumers.put_identity("key-auth", "", identity);
    for target in
        ["/ HTTP/1.1\napikey:", "/?apikey= HTTP/1.1", "/?apikey HTTP/1.1", "/?apikey&apikey HTTP/1.1"]
    {
        let said = told(&mut case, "key-auth", &json!({}), &format!("GET {target}\nHost: h"));
        assert!(said.starts_with("401 {\"message\":\"Invalid"), "{target}: {said}");
    }
}

#[test]
fn basic_auth_compares_passwords() {
    let mut case = jack(
        "basic-auth",
        &json!({"username": "jack", "password": "p:w d"}),
        &json!({"username": "j2", "password": "pw"}),
    );
    let mut check = |conf: Value, value: &str, expected: &str| {
        let request = format!("GET / HTTP/1.1\nHost: h{value}");
        assert_eq!(told(&mut case, "basic-auth", &conf, &request), expected, "{conf} {value}");
        case.sent("authorization")
    };
    let basic = |text: &str| format!("\nAuthorization: Basic {}", STANDARD.encode(text));
    let refused = |text: &str| format!("401 {{\"message\":\"{text}\"}} Basic realm=\"basic\"");
    check(json!({}), &basic("jack:p:w d"), "jack - c1");
    check(json!({}), &basic("j2:pw"), "jack cred c1");
    check(json!({}), &basic("j2:pw\n"), "jack cred c1");
    check(json!({}), &format!("\nAuthorization: x bASIC {}", STANDARD.encode("j2:pw")), "jack cred c1");
    check(json!({}), "", &refused("Missing authorization in request"));
    for bad in [
        "\nAuthorization: Bearer x",
        "\nAuthorization: Basic",
        "\nAuthorization: Basic aa$",
        "\nAuthorization: Basic ajI6cHcx1",
    ] {
        check(json!({}), bad, &refused("Invalid authorization in request"));
    }
    for bad in ["jack", "jack:", "jack::"] {
        check(json!({}), &basic(bad), &refused("Invalid authorization in request"));
    }
    for wrong in ["jack:p", "jack:P:w d", "j2:pw:x", ":pw", "nobody:pw", "j2:p"] {
        check(json!({}), &basic(wrong), &refused("Invalid user authorization"));
    }
    let hidden = json!({"hide_credentials": true, "anonymous_consumer": "anyone"});
    assert_eq!(check(hidden.clone(), &basic("j2:pw"), "jack cred c1"), None);
    assert_eq!(check(hidden, &basic("j2:no"), "anyone - -"), None);
    assert!(check(json!({}), &basic("j2:pw"), "jack cred c1").is_some());
}

/// The request of a client of `hmac-auth`.
struct Signing<'s> {
    algorithm: &'s str,
    headers: &'s str,
    /// The lines that are signed, without the key id.
    text: &'s str,
    date: String,
}

impl Signing<'_> {
    fn fields(&self) -> String {
        use aws_lc_rs::hmac;
        let algorithm = match self.algorithm {
            "hmac-sha1" => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            "hmac-sha512" => hmac::HMAC_SHA512,
            _ => hmac::HMAC_SHA256,
        };
        let key = hmac::Key::new(algorithm, b"secret");
        let text = format!("id\n{}", self.text.replace("{date}", &self.date));
        let signature = STANDARD.encode(hmac::sign(&key, text.as_bytes()));
        format!(
            "Date: {}\nAuthorization: Signature keyId=\"id\",algorithm=\"{}\",headers=\"{}\",signature=\"{signature}\"",
            self.date, self.algorithm, self.headers
        )
    }
}

fn now() -> String {
    httpdate::fmt_http_date(SystemTime::now())
}

#[test]
fn hmac_auth_checks_signatures() {
    let other = json!({"key_id": "id2", "secret_key": "x"});
    let mut case = jack("hmac-auth", &json!({"key_id": "id", "secret_key": "secret"}), &other);
    let mut check = |conf: Value, fields: &str, expected: &str| {
        let request = format!("POST /a%20b?c=%20 HTTP/1.1\nHost: h\nX-A: one\nX-A: two\n{fields}");
        let said = told(&mut case, "hmac-auth", &conf, &request);
        assert_eq!(said, expected, "{conf} {fields}");
        case.sent("authorization").is_some()
    };
    const REFUSED: &str = "401 {\"message\":\"client request can't be validated\"} hmac realm=\"hmac\"";
    let good = |algorithm| Signing {
        algorithm,
        headers: "@request-target date x-a missing",
        text: "POST /a b?c=%20\ndate: {date}\nx-a: one\n",
        date: now(),
    };
    for algorithm in ["hmac-sha1", "hmac-sha256", "hmac-sha512"] {
        assert!(check(json!({}), &good(algorithm).fields(), "jack - c1"));
        assert!(!check(json!({"hide_credentials": true}), &good(algorithm).fields(), "jack - c1"));
    }
    check(json!({"allowed_algorithms": ["hmac-sha1"]}), &good("hmac-sha256").fields(), REFUSED);
    check(json!({}), &good("hmac-md5").fields(), REFUSED);
    check(json!({"signed_headers": ["date", "x-b"]}), &good("hmac-sha1").fields(), REFUSED);
    check(json!({"signed_headers": ["x-a", "@request-target"]}), &good("hmac-sha1").fields(), "jack - c1");
    let undated = || Signing { headers: "x-a", text: "x-a: one\n", ..good("hmac-sha1") };
    check(json!({}), &undated().fields(), REFUSED);
    check(json!({"signed_headers": []}), &undated().fields(), "jack - c1");
    let forged = Signing { text: "POST /a b\ndate: {date}\nx-a: one\n", ..good("hmac-sha256") };
    check(json!({}), &forged.fields(), REFUSED);
    let at = |offset: i64| {
        let now = SystemTime::now();
        let time = Duration::from_secs(offset.unsigned_abs());
        httpdate::fmt_http_date(if offset < 0 { now - time } else { now + time })
    };
    for (offset, expected) in [(-290, "jack - c1"), (290, "jack - c1"), (-400, REFUSED), (400, REFUSED)] {
        check(json!({}), &Signing { date: at(offset), ..good("hmac-sha256") }.fields(), expected);
    }
    check(
        json!({"clock_skew": 900}),
        &Signing { date: at(400), ..good("hmac-sha256") }.fields(),
        "jack - c1",
    );
    check(json!({}), &Signing { date: "yesterday".into(), ..good("hmac-sha256") }.fields(), REFUSED);
    let fields = good("hmac-sha256").fields();
    for (part, instead) in [
        ("keyId=", "x="),
        ("algorithm=", "x="),
        ("signature=", "x="),
        ("\"id\"", "\"no\""),
        ("Date:", "X-Date:"),
    ] {
        check(json!({}), &fields.replace(part, instead), REFUSED);
    }
    check(
        json!({}),
        "X: y",
        "401 {\"message\":\"client request can't be validated: missing Authorization header\"} hmac realm=\"hmac\"",
    );
    check(
        json!({"realm": "r"}),
        "Authorization: Basic x",
        "401 {\"message\":\"client request can't be validated: Authorization header does not start with 'Signature'\"} hmac realm=\"r\"",
    );
    let anyone = json!({"anonymous_consumer": "anyone", "hide_credentials": true});
    assert!(!check(anyone, &forged.fields(), "anyone - -"));
}

#[test]
fn a_path_adds_no_line_to_the_signed_text() {
    let other = json!({"key_id": "id2", "secret_key": "x"});
    let mut case = jack("hmac-auth", &json!({"key_id": "id", "secret_key": "secret"}), &other);
    let mut check = |target: &str, fields: &str, expected: &str| {
        let signing = Signing {
            algorithm: "hmac-sha256",
            headers: "date @request-target x-role",
            text: "date: {date}\nGET /a\nx-role: user\n",
            date: now(),
        };
        let request = format!("GET {target} HTTP/1.1\nHost: h\n{}{fields}", signing.fields());
        let conf = json!({"signed_headers": ["date", "x-role"]});
        let said = told(&mut case, "hmac-auth", &conf, &request);
        assert!(said.starts_with(expected), "{target} {fields}: {said}");
    };
    check("/a", "\nX-Role: user", "jack");
    check("/a", "", "401");
    // The same lines, but the field is gone.
    check("/a%0ax-role:%20user", "", "401");
}

#[test]
fn hmac_auth_checks_the_body() {
    let own = json!({"key_id": "id", "secret_key": "secret"});
    let mut case = jack("hmac-auth", &own, &json!({"key_id": "id2", "secret_key": "x"}));
    let signing = || Signing {
        algorithm: "hmac-sha256",
        headers: "@request-target date",
        text: "POST /\ndate: {date}\n",
        date: now(),
    };
    let mut check = |conf: Value, body: &str, digest: &str, expected: &str| {
        case.body = body.as_bytes().to_vec();
        let length = body.len();
        let request =
            format!("POST / HTTP/1.1\nHost: h\nContent-Length: {length}\n{}{digest}", signing().fields());
        assert_eq!(told(&mut case, "hmac-auth", &conf, &request), expected, "{conf} {body} {digest}");
    };
    let on =
        || json!({"validate_request_body": true, "max_req_body_size": 5, "anonymous_consumer": "anyone"});
    const HELLO: &str = "\nDigest: SHA-256=LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=";
    const EMPTY: &str = "\nDigest: SHA-256=47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";
    check(on(), "hello", HELLO, "jack - c1");
    check(on(), "", EMPTY, "jack - c1");
    check(on(), "hellO", HELLO, "anyone - -");
    check(on(), "hello", "", "anyone - -");
    check(
        on(),
        "hello!",
        HELLO,
        "413 {\"message\":\"request size 6 is greater than the maximum size 5 allowed\"} ",
    );
    check(json!({}), "hello!", HELLO, "jack - c1");
    const REFUSED: &str = "401 {\"message\":\"client request can't be validated\"} hmac realm=\"hmac\"";
    check(json!({"validate_request_body": true}), "hello!", HELLO, REFUSED);
}

#[test]
fn consumer_restriction_admits_and_refuses() {
    let check = |conf: Value, method: &str, consumer: Option<(&str, Option<&str>)>, expected: &str| {
        let entry = entry("consumer-restriction", conf.clone()).unwrap();
        let mut case = Case::new(&format!("{method} / HTTP/1.1\nHost: h"));
        let route = RouteFacts { id: "r1".into(), service_id: Some("s1".into()), ..RouteFacts::default() };
        case.ctx.route = Some(Arc::new(route));
        if let Some((name, group)) = consumer {
            let group_id = group.map(Box::from);
            let consumer = Arc::new(Consumer { name: name.into(), group_id, ..Consumer::default() });
            case.ctx.attach_anonymous(&consumer);
        }
        let reply = case.run(&entry, Phase::Access);
        assert_eq!(summary(reply.as_ref()), expected, "{conf} {method} {consumer:?}");
    };
    const FORBIDDEN: &str = r#"403 {"message":"The consumer_name is forbidden."}"#;
    let (jack, rose) = (Some(("jack", Some("g1"))), Some(("rose", None)));
    let white = || json!({"whitelist": ["jack"]});
    check(white(), "GET", jack, "passed");
    check(white(), "GET", rose, FORBIDDEN);
    let unknown =
        r#"401 {"message":"The request is rejected, please check the consumer_name for this request"}"#;
    check(white(), "GET", None, unknown);
    check(json!({"blacklist": ["jack"]}), "GET", jack, FORBIDDEN);
    check(json!({"blacklist": ["jack"]}), "GET", rose, "passed");
    check(json!({"blacklist": ["jack"], "whitelist": ["jack"]}), "GET", jack, FORBIDDEN);
    let methods = || json!({"allowed_by_methods": [{"user": "jack", "methods": ["GET", "PUT"]}]});
    check(methods(), "PUT", jack, "passed");
    check(methods(), "POST", jack, FORBIDDEN);
    check(methods(), "POST", rose, "passed");
    let both = json!({"whitelist": ["jack"], "allowed_by_methods": [{"user": "jack", "methods": ["GET"]}]});
    check(both, "POST", jack, "passed");
    let worded = json!({"blacklist": ["jack"], "rejected_code": 200, "rejected_msg": "no"});
    check(worded, "GET", jack, r#"200 {"message":"no"}"#);
    let typed = |kind: &str, name: &str| json!({"type": kind, "whitelist": [name]});
    check(typed("consumer_group_id", "g1"), "GET", jack, "passed");
    let unknown =
        r#"401 {"message":"The request is rejected, please check the consumer_group_id for this request"}"#;
    check(typed("consumer_group_id", "g1"), "GET", rose, unknown);
    check(typed("route_id", "r1"), "GET", None, "passed");
    check(typed("route_id", "r2"), "GET", None, r#"403 {"message":"The route_id is forbidden."}"#);
    check(typed("service_id", "s1"), "GET", None, "passed");
}

#[test]
fn bad_configurations_are_refused() {
    let check =
        |plugin: &str, conf: Value, expected: &str| assert_eq!(refusal(plugin, &conf), expected, "{conf}");
    for plugin in ["key-auth", "basic-auth", "jwt-auth", "hmac-auth"] {
        check(plugin, json!({}), "");
        check(
            plugin,
            json!({"hide_credentials": "yes"}),
            "property \"hide_credentials\" validation failed: wrong type: expected boolean, got string",
        );
        for realm in ["", "a\"b", "a\\b", "ü", &"x".repeat(129)] {
            assert_ne!(refusal(plugin, &json!({"realm": realm})), "", "{realm}");
        }
        check(plugin, json!({"realm": "my realm"}), "");
        assert_ne!(refusal(plugin, &json!({"anonymous_consumer": ""})), "");
    }
    check(
        "hmac-auth",
        json!({"clock_skew": 0}),
        "property \"clock_skew\" validation failed: expected 0 to be at least 1",
    );
    check(
        "consumer-restriction",
        json!({}),
        "object matches none of the required: [\"blacklist\"] or [\"whitelist\"] or [\"allowed_by_methods\"]",
    );
    let consumer = |plugin: &str, conf: Value, expected: &str| {
        assert_eq!(refusal_in(plugin, PluginScope::Consumer, &conf), expected, "{conf}");
    };
    consumer("key-auth", json!({}), "property \"key\" is required");
    consumer(
        "key-auth",
        json!({"key": 1}),
        "property \"key\" validation failed: wrong type: expected string, got number",
    );
    consumer("key-auth", json!({"key": "$env://K"}), "");
    consumer("basic-auth", json!({"username": "a"}), "property \"password\" is required");
    consumer("hmac-auth", json!({"key_id": "a"}), "property \"secret_key\" is required");
    consumer(
        "hmac-auth",
        json!({"key_id": "a", "public_key": "PEM"}),
        "property \"algorithm\" is required with a public_key",
    );
    consumer(
        "hmac-auth",
        json!({"key_id": "a", "secret_key": "s", "algorithm": "ed25519"}),
        "algorithm: it has no effect without a public_key",
    );
    let no_key = json!({"key_id": "a", "public_key": "PEM", "algorithm": "ed25519"});
    let made = crate::testing::roster().identity("hmac-auth", &no_key).unwrap();
    assert_eq!(made.err().as_deref(), Some("public_key: it is not a PEM text with a public key"));
    let component = |name: &str| refusal("hmac-auth", &json!({"message_signatures": {"components": [name]}}));
    for (name, reason) in [
        ("@status", "only responses have this component"),
        ("X-A", "it is not the name of a field in small letters"),
        ("\"@query-param\"", "it needs the parameter `name` and no other"),
        ("\"x", "it is not a structured field (RFC 8941)"),
    ] {
        let said = component(name);
        assert!(said.contains("is not a component of a request") && said.contains(reason), "{said}");
    }
    assert_eq!(component("\"@query-param\";name=\"id\""), "");
    let roster = crate::testing::roster();
    let unresolved = roster.identity("basic-auth", &json!({"username": "a", "password": "$env://NO"}));
    assert!(unresolved.unwrap().is_err_and(|reason| reason.contains("`password`")));
}

#[test]
fn open_or_idle_settings_have_warnings() {
    let check = |plugin: &str, scope: PluginScope, conf: Value, expected: &[&str]| {
        assert_eq!(warned(plugin, scope, &conf), expected, "{conf}");
    };
    check("hmac-auth", PluginScope::Http, json!({}), &[]);
    check("hmac-auth", PluginScope::Http, json!({"signed_headers": ["date"]}), &["signed_headers"]);
    check("hmac-auth", PluginScope::Http, json!({"validate_request_body": true}), &["validate_request_body"]);
    check("hmac-auth", PluginScope::Consumer, json!({"key_id": "a", "secret_key": "b"}), &[]);
    let restricted = |conf: Value, expected: &[&str]| {
        check("consumer-restriction", PluginScope::Http, conf, expected);
    };
    restricted(json!({"whitelist": ["a"]}), &[]);
    let methods = json!([{"user": "a", "methods": ["GET"]}]);
    restricted(json!({"allowed_by_methods": methods}), &[]);
    restricted(json!({"blacklist": ["b"], "allowed_by_methods": methods}), &[]);
    restricted(json!({"whitelist": ["a"], "allowed_by_methods": methods}), &["allowed_by_methods"]);
    let signed = |names: &[&str]| json!({"signed_headers": names, "validate_request_body": true});
    check("hmac-auth", PluginScope::Http, signed(&["date", "@request-target", "digest"]), &[]);
    check("hmac-auth", PluginScope::Http, signed(&["@request-target"]), &["validate_request_body"]);
    let rules = |rules: Value| json!({"message_signatures": rules});
    check("hmac-auth", PluginScope::Http, rules(json!({})), &[]);
    let both = json!({"signed_headers": ["date"], "message_signatures": {"accept_authorization": true}});
    check("hmac-auth", PluginScope::Http, both, &["signed_headers"]);
    let components = |names: &[&str]| rules(json!({"components": names}));
    check("hmac-auth", PluginScope::Http, components(&["@method", "@target-uri"]), &[]);
    check("hmac-auth", PluginScope::Http, components(&["@path"]), &["message_signatures.components"]);
    check("jwt-auth", PluginScope::Consumer, json!({"key": "a", "secret": "s", "exp": 60}), &["exp"]);
    check("jwt-auth", PluginScope::Http, json!({}), &["require_exp"]);
    check("jwt-auth", PluginScope::Http, json!({"require_exp": true}), &[]);
}

/// Time for a thousand look-ups among `count` consumers; the best of some rounds, since other work
/// of the machine only ever adds.
fn lookup_time(count: usize) -> Duration {
    let mut consumers = Consumers::default();
    let consumer = Arc::new(Consumer::default());
    let data: Arc<dyn std::any::Any + Send + Sync> = Arc::new(());
    for n in 0..count {
        let identity =
            Identity { consumer: Arc::clone(&consumer), credential: None, data: Arc::clone(&data) };
        consumers.put_identity("key-auth", &format!("key-{n}"), Arc::new(identity));
    }
    let keys: Vec<String> = (0..1000).map(|n| format!("key-{}", n * count / 1000)).collect();
    let round = |_| {
        let start = Instant::now();
        assert!(keys.iter().all(|key| consumers.find("key-auth", key).is_some()));
        start.elapsed()
    };
    (0..20).map(round).min().unwrap_or_default()
}

#[test]
fn a_key_is_found_as_fast_among_a_hundred_thousand() {
    let (few, many) = (lookup_time(1000), lookup_time(100_000));
    // A search through all would take a hundred times as long; memory that no cache holds, some.
    assert!(many < few * 20, "{few:?} among 1,000 and {many:?} among 100,000");
}
