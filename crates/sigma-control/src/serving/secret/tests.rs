//! Look-ups against servers that act as secret managers, and check their requests.

use std::io::Write;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::{KeyPair as _, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use axum::http::{HeaderMap, StatusCode};
use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use serde_json::json;
use sigma_plugin_kit::sigv4;
use sigma_schema::Confidential;

use super::*;

/// A request that a server received.
struct Asked {
    method: String,
    path: String,
    headers: HeaderMap,
    body: String,
}

impl Asked {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

type Reply = (u16, String);

/// Starts a server and returns its address. Without a reply a request stays unanswered.
async fn serve(reply: impl Fn(Asked) -> Option<Reply> + Send + Sync + 'static) -> String {
    let reply = Arc::new(reply);
    let handler =
        move |method: axum::http::Method, uri: axum::http::Uri, headers: HeaderMap, body: String| {
            let asked = Asked { method: method.to_string(), path: uri.to_string(), headers, body };
            let reply = reply.clone();
            async move {
                match reply(asked) {
                    Some((status, body)) => (StatusCode::from_u16(status).unwrap(), body),
                    None => std::future::pending().await,
                }
            }
        };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let router = axum::Router::new().fallback(handler);
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

fn variables(name: &str) -> Option<String> {
    let text = match name {
        "PLAIN" => "text",
        "JSON" => r#"{"user": "jack", "port": 5432, "list": []}"#,
        "TOKEN" => "s.token",
        "LOOP" => "$env://LOOP",
        _ => return None,
    };
    Some(text.to_owned())
}

fn secrets(limits: Limits, accesses: &[Value]) -> Secrets {
    let Ok(secrets) = Secrets::new(limits, variables);
    secrets.set_accesses(accesses.iter().map(access));
    secrets
}

fn access(value: &Value) -> Arc<Secret> {
    Arc::new(serde_json::from_value(value.clone()).unwrap())
}

/// Looks one reference up; a failure is its reason.
async fn look_up(secrets: &Secrets, reference: &str) -> Result<String, String> {
    let mut value = json!([reference]);
    match secrets.resolve(&mut value).await.pop() {
        Some(unresolved) => {
            assert_eq!(value[0], reference, "what is unresolved stays as it is");
            Err(unresolved.reason)
        }
        None => Ok(value[0].as_str().unwrap().to_owned()),
    }
}

/// `expected` is the text, or a piece of the reason for a failure.
async fn check(secrets: &Secrets, reference: &str, expected: Result<&str, &str>) {
    let outcome = look_up(secrets, reference).await;
    match (&outcome, expected) {
        (Ok(text), Ok(expected)) => assert_eq!(text, expected, "{reference}"),
        (Err(reason), Err(piece)) => assert!(reason.contains(piece), "{reference}: {reason}"),
        _ => panic!("{reference}: {outcome:?}, expected {expected:?}"),
    }
}

#[tokio::test]
async fn environment() {
    let secrets = secrets(Limits::default(), &[]);
    check(&secrets, "$env://PLAIN", Ok("text")).await;
    check(&secrets, "$ENV://JSON/user", Ok("jack")).await;
    check(&secrets, "$Env://JSON/port", Ok("5432")).await;
    check(&secrets, "$env://LOOP", Ok("$env://LOOP")).await;
    check(&secrets, "$env://NONE", Err("environment variable `NONE` is not set")).await;
    check(&secrets, "$env://JSON/list", Err("not a string or a number")).await;
    check(&secrets, "$env://JSON/none", Err("variable `JSON` has no member `none`")).await;
    check(&secrets, "$env://PLAIN/a", Err("variable `PLAIN` is not a JSON object")).await;
    check(&secrets, "$env://", Err("it is not a reference")).await;
    check(&secrets, "$secret://other/1/a", Err("it is not a reference")).await;
    check(&secrets, "$secret://vault/1/a/b", Err("secret resource `vault/1` does not exist")).await;
}

#[tokio::test]
async fn every_text_of_a_value_is_walked() {
    let secrets = secrets(Limits::default(), &[]);
    let mut value = json!({
        "a": "$env://PLAIN",
        "list": [1, null, {"b/c": "$env://NONE"}, "$ENV://PLAIN", "$env://NONE"],
        "$env://PLAIN": "env://PLAIN"
    });
    let unresolved = secrets.resolve(&mut value).await;
    assert_eq!(
        value,
        json!({
            "a": "text",
            "list": [1, null, {"b/c": "$env://NONE"}, "text", "$env://NONE"],
            "$env://PLAIN": "env://PLAIN"
        })
    );
    let places: Vec<_> =
        unresolved.iter().map(|item| (item.pointer.as_str(), item.reference.as_str())).collect();
    assert_eq!(places, [("/list/2/b~1c", "$env://NONE"), ("/list/4", "$env://NONE")]);
}

/// Vault with one secret in each version of its KV engine.
fn vault(asked: &Asked) -> Reply {
    if asked.header("x-vault-token") != "s.token" {
        return (403, r#"{"errors": ["permission denied"]}"#.to_owned());
    }
    match (asked.method.as_str(), asked.path.as_str(), asked.header("x-vault-namespace")) {
        ("GET", "/v1/kv/apisix/jack/login", "") => {
            (200, json!({"data": {"key": "of jack", "list": []}}).to_string())
        }
        ("GET", "/v1/kv/apisix/jack/a%20b%3F", "") => (200, json!({"data": {"key": "escaped"}}).to_string()),
        ("GET", "/v1/secret/data/jack", "team") => {
            (200, json!({"data": {"data": {"key": "second"}, "metadata": {"version": 3}}}).to_string())
        }
        (_, "/v1/kv/apisix/moved/x", _) => (307, String::new()),
        (_, "/v1/kv/apisix/huge/x", _) => (200, "x".repeat((1 << 20) + 1)),
        _ => (404, r#"{"errors": []}"#.to_owned()),
    }
}

#[tokio::test]
async fn vault_is_asked_with_its_token() {
    let uri = serve(|asked| Some(vault(&asked))).await;
    let secrets = secrets(
        Limits::default(),
        &[
            json!({"id": "vault/1", "uri": uri, "prefix": "kv/apisix", "token": "$ENV://TOKEN"}),
            json!({"id": "vault/2", "uri": format!("{uri}/"), "prefix": "/secret/data/", "token": "s.token",
                "namespace": "team"}),
            json!({"id": "vault/3", "uri": uri, "prefix": "kv/apisix", "token": "other"}),
            json!({"id": "vault/4", "uri": uri, "prefix": "kv/apisix", "token": "$secret://vault/1/jack/key"}),
            json!({"id": "vault/5", "uri": "ftp://127.0.0.1", "prefix": "kv", "token": "s.token"}),
            json!({"id": "vault/6", "uri": uri, "prefix": "kv"}),
        ],
    );
    check(&secrets, "$secret://vault/1/jack/login/key", Ok("of jack")).await;
    check(&secrets, "$secret://vault/1/jack/a b?/key", Ok("escaped")).await;
    check(&secrets, "$secret://vault/2/jack/key", Ok("second")).await;
    check(&secrets, "$secret://vault/1/jack/login/none", Err("no member `none`")).await;
    check(&secrets, "$secret://vault/1/jack/login/list", Err("not a string or a number")).await;
    check(&secrets, "$secret://vault/1/joe/key", Err("nothing at `kv/apisix/joe`")).await;
    check(&secrets, "$secret://vault/3/jack/login/key", Err("does not allow the token of `vault/3`")).await;
    check(&secrets, "$secret://vault/4/jack/login/key", Err("only `$env://` is possible")).await;
    check(&secrets, "$secret://vault/5/jack/key", Err("does not begin with http://")).await;
    check(&secrets, "$secret://vault/6/jack/key", Err("secret resource `vault/6`: set `token`")).await;
    check(&secrets, "$secret://vault/1/key", Err("needs a path and a name")).await;
    check(&secrets, "$secret://vault/1/../jack/login/key", Err("segments")).await;
    check(&secrets, "$secret://vault/1/jack//login/key", Err("segments")).await;
    check(&secrets, "$secret://vault/1/moved/x/key", Err("responded with status 307")).await;
    check(&secrets, "$secret://vault/1/huge/x/key", Err("exceeds 1048576 bytes")).await;
}

#[tokio::test]
async fn a_vault_that_is_silent_costs_one_timeout() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let uri = serve(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        None
    })
    .await;
    let limits = Limits { timeout: Duration::from_millis(300), ..Limits::default() };
    let secrets = secrets(limits, &[json!({"id": "vault/1", "uri": uri, "prefix": "kv", "token": "t"})]);
    let references: Vec<_> = (0..200).map(|number| format!("$secret://vault/1/{number}/key")).collect();
    let mut value = json!(references);
    let deadline = Duration::from_secs(10);
    let unresolved = tokio::time::timeout(deadline, secrets.resolve(&mut value)).await.unwrap();
    assert_eq!(unresolved.len(), 200);
    assert!(unresolved.iter().any(|item| item.reason.contains("did not respond in time")));
    assert!(asked.load(Ordering::Relaxed) <= 2 * CONCURRENCY, "the others are not asked for");
    assert_eq!(value, json!(references));
}

/// A Vault whose status can be set, and which counts its requests.
struct Moody {
    status: Arc<AtomicU16>,
    asked: Arc<AtomicUsize>,
    access: Value,
}

impl Moody {
    async fn start() -> Moody {
        let (status, asked) = (Arc::new(AtomicU16::new(200)), Arc::new(AtomicUsize::new(0)));
        let (current, count) = (status.clone(), asked.clone());
        let uri = serve(move |_| {
            let number = count.fetch_add(1, Ordering::SeqCst) + 1;
            let body = json!({"data": {"key": format!("answer {number}")}}).to_string();
            Some((current.load(Ordering::SeqCst), body))
        })
        .await;
        let access = json!({"id": "vault/1", "uri": uri, "prefix": "kv", "token": "t"});
        Moody { status, asked, access }
    }

    fn answer(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    #[track_caller]
    fn was_asked(&self, times: usize) {
        assert_eq!(self.asked.load(Ordering::SeqCst), times);
    }
}

const REFERENCE: &str = "$secret://vault/1/a/key";

#[tokio::test]
async fn answers_are_kept_until_an_access_changes() {
    let vault = Moody::start().await;
    let mut changed = vault.access.clone();
    changed["token"] = json!("t2");
    let secrets = secrets(Limits::default(), std::slice::from_ref(&vault.access));
    check(&secrets, REFERENCE, Ok("answer 1")).await;
    check(&secrets.clone(), REFERENCE, Ok("answer 1")).await;
    secrets.set_accesses([access(&vault.access)]);
    check(&secrets, REFERENCE, Ok("answer 1")).await;
    vault.was_asked(1);
    secrets.set_accesses([access(&changed)]);
    check(&secrets, REFERENCE, Ok("answer 2")).await;
    // Failures are kept as well, and forgotten in the same way.
    vault.answer(404);
    check(&secrets, "$secret://vault/1/b/key", Err("nothing at")).await;
    check(&secrets, "$secret://vault/1/b/key", Err("nothing at")).await;
    vault.was_asked(3);
    vault.answer(200);
    secrets.set_accesses([access(&vault.access)]);
    check(&secrets, "$secret://vault/1/b/key", Ok("answer 4")).await;
    secrets.set_accesses([]);
    check(&secrets, REFERENCE, Err("secret resource `vault/1` does not exist")).await;
    vault.was_asked(4);
}

#[tokio::test]
async fn answers_grow_old() {
    let vault = Moody::start().await;
    let limits = Limits { ttl: Duration::ZERO, negative_ttl: Duration::ZERO, ..Limits::default() };
    let secrets = secrets(limits, std::slice::from_ref(&vault.access));
    check(&secrets, REFERENCE, Ok("answer 1")).await;
    check(&secrets, REFERENCE, Ok("answer 2")).await;
    // A failure of Vault does not drop its last value.
    vault.answer(503);
    check(&secrets, REFERENCE, Ok("answer 2")).await;
    check(&secrets, "$secret://vault/1/b/key", Err("responded with status 503")).await;
    vault.answer(200);
    check(&secrets, REFERENCE, Ok("answer 5")).await;
    // But a refusal counts.
    vault.answer(403);
    check(&secrets, REFERENCE, Err("does not allow the token")).await;
    vault.answer(503);
    check(&secrets, REFERENCE, Err("responded with status 503")).await;
}

#[tokio::test]
async fn one_place_is_enough_for_one_answer() {
    let vault = Moody::start().await;
    let limits = Limits { count: 1, ..Limits::default() };
    let secrets = secrets(limits, std::slice::from_ref(&vault.access));
    for (reference, expected) in
        [(REFERENCE, "answer 1"), ("$secret://vault/1/b/key", "answer 2"), (REFERENCE, "answer 3")]
    {
        check(&secrets, reference, Ok(expected)).await;
    }
}

/// AWS with three secrets. A request that is not signed by the account is refused.
fn aws(asked: &Asked) -> Reply {
    let refusal = |kind: &str| (400, json!({"__type": kind}).to_string());
    let authorization = asked.header("authorization");
    let names = authorization.split_once("SignedHeaders=").and_then(|(_, rest)| rest.split_once(','));
    let Some((names, _)) = names else { return refusal("MissingAuthenticationTokenException") };
    let signer = sigv4::Account {
        access_key_id: "AKID",
        secret_access_key: &Confidential::from("hidden"),
        region: "eu-west-1",
        service: "secretsmanager",
    };
    let signed = sigv4::Request {
        method: asked.method.as_bytes(),
        target: asked.path.as_bytes(),
        paths: sigv4::Paths::Normal,
        fields: names.split(';').map(|name| (name.to_owned(), asked.header(name).into())).collect(),
        payload: &sigv4::sha256(asked.body.as_bytes()),
    };
    let expected = signer.authorization(&signed, asked.header("x-amz-date"));
    let all = ["content-type", "host", "x-amz-date", "x-amz-security-token", "x-amz-target"];
    if authorization != expected || names.split(';').ne(all) {
        return refusal("InvalidSignatureException");
    }
    assert_eq!(asked.header("x-amz-target"), "secretsmanager.GetSecretValue");
    assert_eq!(asked.header("x-amz-security-token"), "session");
    let body: Value = serde_json::from_str(&asked.body).unwrap();
    match body["SecretId"].as_str().unwrap() {
        "a/b/c" => (200, json!({"SecretString": "whole"}).to_string()),
        "a" => (200, json!({"SecretString": r#"{"user": "jack", "x/y": "deep"}"#}).to_string()),
        "binary" => (200, json!({"SecretBinary": "AAAA"}).to_string()),
        "slow" => refusal("ThrottlingException"),
        "locked" => refusal("com.amazonaws.secretsmanager#DecryptionFailure"),
        "broken" => (500, "oops".to_owned()),
        _ => refusal("ResourceNotFoundException"),
    }
}

#[tokio::test]
async fn aws_is_asked_with_a_signature() {
    let endpoint = serve(|asked| Some(aws(&asked))).await;
    let account = json!({"id": "aws/1", "access_key_id": "AKID", "secret_access_key": "hidden",
        "session_token": "session", "region": "eu-west-1", "endpoint_url": endpoint});
    let mut stranger = account.clone();
    stranger["id"] = json!("aws/2");
    stranger["secret_access_key"] = json!("guessed");
    let mut nowhere = account.clone();
    nowhere["id"] = json!("aws/3");
    nowhere["region"] = json!("eu.example.com/");
    let secrets = secrets(Limits::default(), &[account, stranger, nowhere]);
    check(&secrets, "$secret://aws/1/a/b/c", Ok("whole")).await;
    check(&secrets, "$secret://aws/1/a", Ok(r#"{"user": "jack", "x/y": "deep"}"#)).await;
    check(&secrets, "$secret://aws/1/a/user", Ok("jack")).await;
    check(&secrets, "$secret://aws/1/a/x/y", Ok("deep")).await;
    check(&secrets, "$secret://aws/1/a/none", Err("secret `a` in AWS has no member `none`")).await;
    check(&secrets, "$secret://aws/1/b/c", Err("no secret `b/c` in the region eu-west-1")).await;
    check(&secrets, "$secret://aws/1/binary", Err("has no text")).await;
    check(&secrets, "$secret://aws/1/locked", Err("DecryptionFailure")).await;
    check(&secrets, "$secret://aws/1/slow", Err("limits the rate")).await;
    check(&secrets, "$secret://aws/1/broken", Err("responded with status 500")).await;
    check(&secrets, "$secret://aws/1/1/2/3/4/5/6/7/8/9", Err("more than 8 parts")).await;
    check(&secrets, "$secret://aws/2/a", Err("InvalidSignatureException")).await;
    check(&secrets, "$secret://aws/3/a", Err("is not an AWS region")).await;
}

/// An RSA key in PEM, and its public half.
fn rsa_key() -> (String, Vec<u8>) {
    let pair = KeyPair::generate(KeySize::Rsa2048).unwrap();
    let der: Pkcs8V1Der<'_> = pair.as_der().unwrap();
    let body = BASE64_STANDARD.encode(der.as_ref());
    let lines: Vec<_> = body.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", lines.join("\n"));
    (pem, pair.public_key().as_ref().to_vec())
}

/// The claims of a JSON Web Token whose signature holds.
fn claims(token: &str, public_key: &[u8]) -> Option<Value> {
    let (signed, signature) = token.rsplit_once('.')?;
    let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).ok()?;
    UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, public_key)
        .verify(signed.as_bytes(), &signature)
        .ok()?;
    let (header, claims) = signed.split_once('.')?;
    let decode = |text: &str| serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(text).ok()?).ok();
    let header: Value = decode(header)?;
    assert_eq!(header, json!({"alg": "RS256", "typ": "JWT"}));
    decode(claims)
}

/// Google Cloud with one secret, and a token service that sells to one account.
fn gcp(asked: &Asked, public_key: &[u8], tokens: &AtomicUsize) -> Reply {
    if asked.path == "/token" {
        let form: HashMap<_, _> = form_urlencoded::parse(asked.body.as_bytes()).into_owned().collect();
        assert_eq!(form["grant_type"], "urn:ietf:params:oauth:grant-type:jwt-bearer");
        let Some(claims) = claims(&form["assertion"], public_key) else {
            return (401, r#"{"error": "invalid_grant"}"#.to_owned());
        };
        assert_eq!(
            (&claims["iss"], &claims["scope"]),
            (&json!("robot@example.com"), &json!("scope/a scope/b"))
        );
        assert!(claims["aud"].as_str().unwrap().ends_with("/token"));
        assert_eq!(claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap(), 3600);
        tokens.fetch_add(1, Ordering::SeqCst);
        let reply = json!({"access_token": "bought", "expires_in": 3599, "token_type": "Bearer"});
        return (200, reply.to_string());
    }
    if asked.header("authorization") != "Bearer bought" {
        return (401, String::new());
    }
    let payload = |bytes: &[u8]| json!({"payload": {"data": BASE64_STANDARD.encode(bytes)}}).to_string();
    match asked.path.as_str() {
        "/v1/projects/mine/secrets/login/versions/latest:access" => (200, payload(br#"{"user": "jack"}"#)),
        "/v1/projects/mine/secrets/bytes/versions/latest:access" => (200, payload(&[0xff])),
        _ => (404, String::new()),
    }
}

#[tokio::test]
async fn google_cloud_is_asked_with_a_bought_token() {
    let (pem, public_key) = rsa_key();
    let tokens = Arc::new(AtomicUsize::new(0));
    let bought = tokens.clone();
    let uri = serve(move |asked| Some(gcp(&asked, &public_key, &bought))).await;
    let account = |key: &str| {
        json!({"client_email": "robot@example.com", "private_key": key, "project_id": "mine",
            "token_uri": format!("{uri}/token"), "scope": ["scope/a", "scope/b"],
            "entries_uri": format!("{uri}/v1")})
    };
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(account(&pem).to_string().as_bytes()).unwrap();
    let mut no_account = tempfile::NamedTempFile::new().unwrap();
    no_account.write_all(b"{}").unwrap();
    let secrets = secrets(
        Limits::default(),
        &[
            json!({"id": "gcp/1", "auth_config": account(&pem)}),
            json!({"id": "gcp/2", "auth_file": file.path(), "ssl_verify": false}),
            json!({"id": "gcp/3", "auth_config": account(&rsa_key().0)}),
            json!({"id": "gcp/4", "auth_config": account("no key")}),
            json!({"id": "gcp/5", "auth_file": "/nonexistent"}),
            json!({"id": "gcp/6", "auth_file": no_account.path()}),
            json!({"id": "gcp/7"}),
        ],
    );
    check(&secrets, "$secret://gcp/1/login", Ok(r#"{"user": "jack"}"#)).await;
    check(&secrets, "$secret://gcp/1/login/user", Ok("jack")).await;
    check(&secrets, "$secret://gcp/1/login/none", Err("has no member `none`")).await;
    check(&secrets, "$secret://gcp/1/bytes", Err("has no text")).await;
    check(&secrets, "$secret://gcp/1/none", Err("has no secret `none`")).await;
    assert_eq!(tokens.load(Ordering::SeqCst), 1, "a token serves many requests");
    check(&secrets, "$secret://gcp/2/login/user", Ok("jack")).await;
    check(&secrets, "$secret://gcp/3/login", Err("token service responded with status 401")).await;
    check(&secrets, "$secret://gcp/4/login", Err("`private_key` is not an RSA key")).await;
    check(&secrets, "$secret://gcp/5/login", Err("`auth_file` /nonexistent: ")).await;
    check(&secrets, "$secret://gcp/6/login", Err("is not the key file of a service account")).await;
    check(&secrets, "$secret://gcp/7/login", Err("set `auth_config`, `auth_file` or `machine_identity`"))
        .await;
}

#[tokio::test]
async fn an_unreachable_address_is_named_without_its_password() {
    // Bound and closed again: without a listener.
    let port = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let uri = format!("http://user:hidden@127.0.0.1:{port}");
    let secrets =
        secrets(Limits::default(), &[json!({"id": "vault/1", "uri": uri, "prefix": "kv", "token": "t"})]);
    let reason = look_up(&secrets, REFERENCE).await.unwrap_err();
    assert!(reason.starts_with("`127.0.0.1`: ") && !reason.contains("hidden"), "{reason}");
}
