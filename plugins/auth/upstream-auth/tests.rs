//! The credentials that nodes get, and those that stay hidden.

use serde_json::{Value, json};
use sigma_plugin::Phase;

use crate::testing::{Case, entry, field, refusal, summary, warned};

const NAME: &str = "upstream-auth";

/// Returns the node's fields of these names, or the response.
fn shown(conf: &Value, request: &str, names: &[&str]) -> String {
    let entry = entry(NAME, conf.clone()).unwrap();
    let mut case = Case::new(&format!("GET /a?b HTTP/1.1\nHost: h\n{request}"));
    match case.run(&entry, Phase::BeforeProxy) {
        Some(reply) => summary(Some(&reply)),
        None => {
            let values = names.iter().map(|name| {
                let headers = &case.ctx.request.headers;
                let values = headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name.as_bytes()));
                values
                    .map(|(_, value)| String::from_utf8_lossy(value).into_owned())
                    .collect::<Vec<_>>()
                    .join(" | ")
            });
            values.collect::<Vec<_>>().join("; ")
        }
    }
}

#[test]
fn fixed_fields_replace_what_clients_send() {
    let check = |conf: Value, request: &str, names: &[&str], expected: &str| {
        assert_eq!(shown(&conf, request, names), expected, "{conf} {request}");
    };
    let own = json!({"header": {"name": "X-Key", "value": "own"}});
    check(own.clone(), "", &["x-key"], "own");
    check(own.clone(), "X-Key: liar\nx-key: other", &["x-key"], "own");
    check(own.clone(), "X_Key: liar\nX_KEY: other", &["x-key", "x_key"], "own; ");
    check(own, "Authorization: of-the-client", &["x-key", "authorization"], "own; of-the-client");
    let basic = json!({"basic": {"username": "gw", "password": "p:w"}});
    check(basic, "Authorization: Bearer x\nAuthorization: y", &["authorization"], "Basic Z3c6cDp3");
}

#[test]
fn relayed_tokens_are_tokens() {
    const NONE: &str = "401 {\"message\":\"A token is required\"}";
    let check = |conf: Value, request: &str, expected: &str| {
        let said = shown(&json!({"token_relay": conf}), request, &["authorization", "x-token"]);
        assert_eq!(said, expected, "{conf} {request}");
    };
    check(json!({}), "Authorization: Bearer a.b", "Bearer a.b; ");
    check(json!({}), "Authorization: a.b", "Bearer a.b; ");
    check(json!({"from": "X-Token"}), "Authorization: Bearer x\nX-Token: a", "Bearer a; ");
    check(json!({"header": "X-Token"}), "Authorization: bearer a\nX-Token: liar", "; Bearer a");
    check(json!({}), "", NONE);
    check(json!({}), "Authorization: Bearer ", NONE);
    check(json!({}), "Authorization: Basic YTpi", NONE);
    check(json!({}), "Authorization: Bearer a, Bearer b", NONE);
    check(json!({}), "Authorization: Bearer a\nAuthorization: Bearer b", NONE);
}

/// A request that is tried again says the same.
#[test]
fn a_second_attempt_shows_the_same() {
    for (conf, name, expected) in [
        (json!({"token_relay": {"from": "X-Token"}}), "authorization", "Bearer a"),
        (json!({"token_relay": {"header": "X-Other"}}), "x-other", "Bearer of"),
        (json!({"header": {"name": "X-Key", "value": "own"}}), "x-key", "own"),
    ] {
        let entry = entry(NAME, conf).unwrap();
        let mut case = Case::new("GET / HTTP/1.1\nHost: h\nX-Token: a\nAuthorization: Bearer of");
        for _ in 0..2 {
            assert!(case.run(&entry, Phase::BeforeProxy).is_none());
            assert_eq!(case.sent(name).as_deref(), Some(expected));
        }
    }
}

/// No fetch runs here, as when the server is unreachable.
#[test]
fn without_a_token_nothing_is_sent() {
    let server =
        json!({"token_endpoint": "http://127.0.0.1:1/", "client_id": "gw", "client_secret": "secret"});
    const NONE: &str = "{\"message\":\"The gateway has no credential for the upstream\"}";
    let own = json!({"client_credentials": server});
    assert_eq!(shown(&own, "Authorization: Bearer liar", &[]), format!("503 {NONE}"));
    let own = json!({"client_credentials": server, "status_on_error": 502});
    assert_eq!(shown(&own, "Authorization: Bearer liar", &[]), format!("502 {NONE}"));
    let exchange = json!({"token_exchange": server});
    assert_eq!(shown(&exchange, "Authorization: Bearer a", &[]), format!("503 {NONE}"));
    assert_eq!(shown(&exchange, "", &[]), "401 {\"message\":\"A token is required\"}");
}

#[test]
fn requests_are_signed_for_aws() {
    let account = json!({"access_key_id": "AKID", "secret_access_key": "secret", "region": "eu-west-1",
        "service": "execute-api", "session_token": "session"});
    let lies = "Authorization: AWS4-HMAC-SHA256 liar\nX-Amz-Date: 19700101T000000Z\nX-Amz-Security-Token: liar\n\
        X-Amz-Content-Sha256: liar\nX-Other: y";
    let names = ["x-amz-security-token", "x-amz-content-sha256", "authorization", "x-amz-date"];
    let said = shown(&json!({"aws_sigv4": account}), lies, &names);
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert!(said.starts_with(&format!("session; {empty}; AWS4-HMAC-SHA256 Credential=AKID/")), "{said}");
    let signed = "SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token, Signature=";
    assert!(said.contains(signed) && !said.contains("1970") && !said.contains("liar"), "{said}");
    let mut unsigned = account;
    unsigned["payload"] = "unsigned".into();
    assert!(shown(&json!({"aws_sigv4": unsigned}), "", &names).starts_with("session; UNSIGNED-PAYLOAD; "));
}

#[test]
fn a_body_that_is_signed_has_a_limit() {
    let account = json!({"access_key_id": "AKID", "secret_access_key": "secret", "region": "eu-west-1",
        "service": "s3", "max_req_body_size": 5});
    let signature = json!({"key_id": "k", "secret_key": "s", "content_digest": true, "max_req_body_size": 5});
    for conf in [json!({"aws_sigv4": account}), json!({"message_signature": signature})] {
        let entry = entry(NAME, conf).unwrap();
        let mut case = Case::new("PUT / HTTP/1.1\nHost: h\nContent-Length: 6");
        case.body = b"hello!".to_vec();
        let reply = case.run(&entry, Phase::BeforeProxy);
        assert_eq!(summary(reply.as_ref()), "413 {\"message\":\"The body is too large to be signed\"}");
        case.request("PUT / HTTP/1.1\nHost: h\nContent-Length: 5");
        case.body = b"hello".to_vec();
        assert!(case.run(&entry, Phase::BeforeProxy).is_none());
        let digests = [case.sent("x-amz-content-sha256"), case.sent("content-digest")];
        let expected = [
            "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
            "sha-256=:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=:",
        ];
        assert!(digests.iter().flatten().all(|digest| expected.contains(&&**digest)), "{digests:?}");
        assert_eq!(digests.iter().flatten().count(), 1);
    }
}

const ED25519: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF
-----END PRIVATE KEY-----";

/// `hmac-auth` accepts the signatures of this plugin.
#[test]
fn requests_are_signed() {
    let public = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAJrQLj5P/89iXES9+vFgrIy29clF9CC/oPPsw3c5D0bs=\n-----END PUBLIC KEY-----";
    let pair =
        json!({"key_id": "pair", "private_key": ED25519, "algorithm": "ed25519", "content_digest": true});
    let secret = json!({"key_id": "secret", "secret_key": "s3cret", "tag": "app", "expires": 60,
        "components": ["@method", "@target-uri", "x-a", "x-none"], "label": "gw"});
    for (conf, signer) in [(pair, "pair"), (secret, "secret")] {
        let signing = entry(NAME, json!({"message_signature": conf})).unwrap();
        let rules = json!({"require_nonce": true});
        let verifying = entry(
            "hmac-auth",
            json!({"message_signatures": rules, "validate_request_body": signer == "pair"}),
        );
        let verifying = verifying.unwrap();
        let mut case = Case::new(
            "POST /a?b HTTP/1.1\nHost: h\nX-A: 1\nSignature: x=:AAAA:\nSignature-Input: x=()\nContent-Length: 5",
        );
        let algorithm = json!({"key_id": "pair", "public_key": public, "algorithm": "ed25519"});
        case.consumer("pair", "hmac-auth", &algorithm);
        case.consumer("secret", "hmac-auth", &json!({"key_id": "secret", "secret_key": "s3cret"}));
        case.body = b"hello".to_vec();
        assert!(case.run(&signing, Phase::BeforeProxy).is_none());
        let input = case.sent("signature-input").unwrap();
        assert!(
            input.contains(";nonce=\"") && !input.contains("x=()") && !input.contains("x-none"),
            "{input}"
        );
        let reply = case.run(&verifying, Phase::Rewrite);
        assert_eq!(summary(reply.as_ref()), "passed", "{input}");
        assert_eq!(case.sent("x-consumer-username").as_deref(), Some(signer));
        let replayed = case.run(&verifying, Phase::Rewrite);
        assert_eq!(summary(replayed.as_ref()), "401 {\"message\":\"client request can't be validated\"}");
    }
}

#[test]
fn configurations() {
    let check = |conf: Value, expected: &str| {
        let said = refusal(NAME, &conf);
        assert!(
            if expected.is_empty() { said.is_empty() } else { said.contains(expected) },
            "{conf}: {said}"
        );
    };
    const ONE: &str = "write exactly one of header, basic,";
    check(json!({}), ONE);
    check(json!({"token_relay": {}, "basic": {"username": "a", "password": "b"}}), ONE);
    check(json!({"token_relay": {}}), "");
    check(json!({"token_relay": {"from": "a b"}}), "`a b` is not the name of a header field");
    check(
        json!({"header": {"name": "Content-Length", "value": "1"}}),
        "the gateway itself sets `Content-Length`",
    );
    check(json!({"header": {"name": "Host", "value": "1"}}), "the gateway itself sets `Host`");
    check(json!({"basic": {"username": "a:b", "password": "c"}}), "failed to match pattern");
    let server = |more: Value| {
        let mut server =
            json!({"token_endpoint": "https://idp/token", "client_id": "a", "client_secret": "b"});
        server.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"client_credentials": server})
    };
    check(server(json!({})), "");
    check(server(json!({"token_endpoint": "file:///etc/passwd"})), "neither http nor https");
    check(server(json!({"client_auth": "none"})), "matches none of the enum values");
    check(server(json!({"timeout": 0})), "expected 0 to be at least 1");
    check(json!({"client_credentials": {"client_id": "a"}}), "property \"token_endpoint\" is required");
    let aws = json!({"access_key_id": "a", "secret_access_key": "b", "region": "EU west", "service": "s3"});
    check(json!({"aws_sigv4": aws}), "failed to match pattern");
    let signature = |more: Value| {
        let mut signature = json!({"key_id": "a"});
        signature.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"message_signature": signature})
    };
    const KEY: &str = "write secret_key, or private_key and its algorithm";
    check(signature(json!({})), KEY);
    check(signature(json!({"secret_key": "a", "private_key": "b"})), KEY);
    check(signature(json!({"private_key": "b"})), KEY);
    check(signature(json!({"secret_key": "a", "label": "A"})), "failed to match pattern");
    check(signature(json!({"secret_key": "a"})), "");
    let no_key = signature(json!({"private_key": "PEM", "algorithm": "ed25519"}));
    let built = entry(NAME, no_key).err().unwrap_or_default();
    assert!(built.contains("it is not a PEM text with a private key"), "{built}");
    let torn = entry(NAME, json!({"header": {"name": "X-Key", "value": "a\r\nX: y"}}));
    assert!(
        torn.err().unwrap_or_default().contains("it contains a character that a header field cannot carry")
    );
    let told = |conf: Value| warned(NAME, sigma_schema::plugins::PluginScope::Http, &conf);
    assert!(told(server(json!({}))).is_empty());
    let places = ["client_credentials.token_endpoint", "client_credentials.ssl_verify"];
    assert_eq!(told(server(json!({"token_endpoint": "http://idp", "ssl_verify": false}))), places);
}

#[test]
fn a_challenge_names_the_required_scheme() {
    let entry = entry(NAME, json!({"token_relay": {}})).unwrap();
    let mut case = Case::new("GET / HTTP/1.1\nHost: h");
    let reply = case.run(&entry, Phase::BeforeProxy).unwrap();
    assert_eq!(field(&reply, "www-authenticate").as_deref(), Some("Bearer realm=\"upstream\""));
}
