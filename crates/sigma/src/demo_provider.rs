//! A small OpenID provider to try logins with. It logs everybody in as one user, so it listens on loopback addresses
//! only, and leads back to none but those.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use aws_lc_rs::{digest, error::Unspecified};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{RawQuery, State};
use axum::http::header::{ACCEPT, AUTHORIZATION, CACHE_CONTROL, LOCATION};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use sigma_net::listen::Claim;

/// The only user.
const USER: &str = "jack";

/// Lifetime of a code that was not used yet.
const CODE_LIFE: Duration = Duration::from_secs(60);

/// Lifetime of tokens.
const TOKEN_LIFE: Duration = Duration::from_secs(600);

/// Most codes and most access tokens that are kept. The oldest ones go first.
const KEPT_MAX: usize = 1_000;

/// Reads the address of a provider.
///
/// # Errors
/// Returns an error if it is no address, or not one of this machine alone.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr =
        text.parse().map_err(|_| "write an address such as 127.0.0.1:9003".to_owned())?;
    match address.ip().is_loopback() {
        true => Ok(address),
        false => Err(format!(
            "{} is not a loopback address; the demo provider accepts every login, so write 127.0.0.1:{}",
            address.ip(),
            address.port()
        )),
    }
}

/// Starts a provider, which ends with the process.
///
/// # Errors
/// Returns an error if the address is not one of this machine alone, or cannot be listened at.
pub(crate) fn start(address: SocketAddr, claim: Claim) -> Result<()> {
    if !address.ip().is_loopback() {
        bail!("{address} is not a loopback address");
    }
    let listener = crate::demo::listen(address, claim)?;
    let issuer = format!("http://{}", listener.local_addr()?);
    let provider = Provider::new(issuer.clone()).ok().context("cannot generate a key")?;
    let router = Router::new()
        .route("/.well-known/openid-configuration", get(discovery))
        .route("/keys", get(keys))
        .route("/authorize", get(authorize).post(log_in))
        .route("/token", post(token))
        .route("/userinfo", get(userinfo).post(userinfo))
        .route("/logout", get(log_out).post(log_out))
        .with_state(Arc::new(provider));
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "the demo provider has ended");
        }
    });
    println!("the demo provider at {issuer} logs in every user as {USER}: use it for tests only");
    Ok(())
}

/// A refusal, which is a status and a text.
type Refused = (StatusCode, String);

struct Provider {
    issuer: String,
    key: EcdsaKeyPair,
    random: SystemRandom,
    codes: ExpiringValues<Login>,
    access_tokens: ExpiringValues<()>,
}

/// Values under names that cannot be guessed, each with the time of its end.
struct ExpiringValues<T>(Mutex<VecDeque<(String, Instant, T)>>);

/// A login whose tokens were not fetched yet.
struct Login {
    client_id: String,
    redirect_uri: String,
    nonce: Option<String>,
    /// The challenge of PKCE, by SHA-256.
    challenge: Option<String>,
}

impl<T> ExpiringValues<T> {
    fn new() -> ExpiringValues<T> {
        ExpiringValues(Mutex::default())
    }

    fn put(&self, name: String, life: Duration, value: T) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back((name, Instant::now() + life, value));
    }

    fn take(&self, name: &str) -> Option<T> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(_, end, _)| *end > Instant::now());
        let at = kept.iter().position(|(known, ..)| known == name)?;
        kept.remove(at).map(|(.., value)| value)
    }

    fn has(&self, name: &str) -> bool {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().any(|(known, end, _)| known == name && *end > Instant::now())
    }
}

impl Provider {
    fn new(issuer: String) -> Result<Provider, Unspecified> {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING)?;
        let random = SystemRandom::new();
        Ok(Provider {
            issuer,
            key,
            random,
            codes: ExpiringValues::new(),
            access_tokens: ExpiringValues::new(),
        })
    }

    /// A name that cannot be guessed.
    fn secret(&self) -> Result<String, Unspecified> {
        let mut bytes = [0; 32];
        self.random.fill(&mut bytes)?;
        Ok(URL_SAFE_NO_PAD.encode(bytes))
    }

    /// A token with these claims (RFC 7515), by ES256.
    fn signed(&self, claims: &Value) -> Result<String, Unspecified> {
        let header = json!({ "alg": "ES256", "kid": "demo", "typ": "JWT" });
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}", part(&header), part(claims));
        let signature = self.key.sign(&self.random, text.as_bytes())?;
        Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    fn id_token(&self, login: &Login) -> Result<String, Unspecified> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut claims = json!({
            "iss": self.issuer,
            "sub": USER,
            "aud": login.client_id,
            "iat": now,
            "auth_time": now,
            "exp": now + TOKEN_LIFE.as_secs(),
        });
        if let Some(nonce) = &login.nonce {
            claims["nonce"] = nonce.as_str().into();
        }
        self.signed(&claims)
    }
}

fn failed(_: Unspecified) -> Refused {
    (StatusCode::INTERNAL_SERVER_ERROR, "no random bytes\n".to_owned())
}

async fn discovery(State(provider): State<Arc<Provider>>) -> Response {
    let at = |path: &str| format!("{}/{path}", provider.issuer);
    json_of(&json!({
        "issuer": provider.issuer,
        "authorization_endpoint": at("authorize"),
        "token_endpoint": at("token"),
        "userinfo_endpoint": at("userinfo"),
        "jwks_uri": at("keys"),
        "end_session_endpoint": at("logout"),
        "response_types_supported": ["code"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
        "scopes_supported": ["openid", "profile", "email"],
    }))
}

async fn keys(State(provider): State<Arc<Provider>>) -> Response {
    // A point of the curve without compression: 4, then both coordinates (RFC 7518 §6.2.1).
    let point = provider.key.public_key().as_ref();
    let (x, y) = point.get(1..65).unwrap_or(&[0; 64]).split_at(32);
    let (x, y) = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
    json_of(&json!({ "keys": [
        { "kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "demo", "x": x, "y": y },
    ] }))
}

/// A browser gets a page with a button. Other clients, such as curl, are logged in at once.
async fn authorize(
    state: State<Arc<Provider>>,
    query: RawQuery,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if !accept.contains("text/html") {
        return log_in(state, query).await;
    }
    asked(query)?;
    // The form goes to the address of the page, with its query.
    Ok(page(&format!("<form method=\"post\"><button>Log in as {USER}</button></form>")))
}

/// The login itself: a code, with which the browser goes back to the client.
async fn log_in(State(provider): State<Arc<Provider>>, query: RawQuery) -> Result<Response, Refused> {
    let (login, state) = asked(query)?;
    let code = provider.secret().map_err(failed)?;
    let mut answer = vec![("code", code.as_str())];
    answer.extend(state.as_deref().map(|state| ("state", state)));
    let back = with_query(&login.redirect_uri, &answer);
    provider.codes.put(code, CODE_LIFE, login);
    Ok((StatusCode::FOUND, [(LOCATION, back)]).into_response())
}

/// A request for a login, with its state.
fn asked(RawQuery(query): RawQuery) -> Result<(Login, Option<String>), Refused> {
    let wrong = |text: &str| (StatusCode::BAD_REQUEST, format!("{text}\n"));
    let query = query.unwrap_or_default();
    let one = |name: &str| parameter(query.as_bytes(), name);
    if one("response_type").as_deref() != Some("code") {
        return Err(wrong("response_type must be code"));
    }
    let client_id = one("client_id").ok_or_else(|| wrong("client_id is missing"))?;
    let redirect_uri = one("redirect_uri").filter(|uri| is_of_this_machine(uri));
    let redirect_uri = redirect_uri.ok_or_else(|| wrong("redirect_uri must have a loopback address"))?;
    let challenge = one("code_challenge");
    if challenge.is_some() && one("code_challenge_method").as_deref() != Some("S256") {
        return Err(wrong("code_challenge_method must be S256"));
    }
    Ok((Login { client_id, redirect_uri, nonce: one("nonce"), challenge }, one("state")))
}

/// Tokens for a code.
async fn token(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refused> {
    let refused = |error: &str| (StatusCode::BAD_REQUEST, format!("{}\n", json!({ "error": error })));
    let one = |name: &str| parameter(&body, name);
    if one("grant_type").as_deref() != Some("authorization_code") {
        return Err(refused("unsupported_grant_type"));
    }
    let login = one("code").and_then(|code| provider.codes.take(&code));
    let login = login.ok_or_else(|| refused("invalid_grant"))?;
    let proves = match &login.challenge {
        Some(challenge) => one("code_verifier").is_some_and(|verifier| {
            URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, verifier.as_bytes())) == *challenge
        }),
        None => true,
    };
    let client = one("client_id").or_else(|| named_by(&headers));
    let is_the_same = client.is_none_or(|client| client == login.client_id)
        && one("redirect_uri").is_some_and(|uri| uri == login.redirect_uri);
    if !proves || !is_the_same {
        return Err(refused("invalid_grant"));
    }
    let (access_token, id_token) =
        (provider.secret().map_err(failed)?, provider.id_token(&login).map_err(failed)?);
    provider.access_tokens.put(access_token.clone(), TOKEN_LIFE, ());
    Ok(json_of(&json!({
        "access_token": access_token,
        "token_type": "Bearer",
        "expires_in": TOKEN_LIFE.as_secs(),
        "id_token": id_token,
    })))
}

/// The client of a request with a user and a password (RFC 6749 §2.3.1).
fn named_by(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Basic ")?;
    let pair = base64::engine::general_purpose::STANDARD.decode(text.trim()).ok()?;
    let name = pair.split(|byte| *byte == b':').next()?;
    parameter(&[b"name=", name].concat(), "name")
}

async fn userinfo(State(provider): State<Arc<Provider>>, headers: HeaderMap) -> Response {
    let token = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    match token.is_some_and(|token| provider.access_tokens.has(token.trim())) {
        true => json_of(&json!({ "sub": USER, "name": "Jack", "email": "jack@example.com" })),
        false => StatusCode::UNAUTHORIZED.into_response(),
    }
}

/// The end of a login. The provider keeps no session.
async fn log_out(RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    let one = |name: &str| parameter(query.as_bytes(), name);
    match one("post_logout_redirect_uri").filter(|uri| is_of_this_machine(uri)) {
        Some(uri) => {
            let state = one("state");
            let state: Vec<(&str, &str)> = state.iter().map(|state| ("state", state.as_str())).collect();
            (StatusCode::FOUND, [(LOCATION, with_query(&uri, &state))]).into_response()
        }
        None => page("You are logged out."),
    }
}

/// The value of a parameter of a query or a form.
fn parameter(text: &[u8], name: &str) -> Option<String> {
    form_urlencoded::parse(text).find(|(known, _)| known == name).map(|(_, value)| value.into_owned())
}

/// Whether a URI leads to a loopback address.
fn is_of_this_machine(uri: &str) -> bool {
    let Ok(uri) = uri.parse::<Uri>() else { return false };
    let host = uri.host().unwrap_or_default();
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
    is_web && (host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()))
}

fn with_query(uri: &str, members: &[(&str, &str)]) -> String {
    if members.is_empty() {
        return uri.to_owned();
    }
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(members).finish();
    format!("{uri}{}{query}", if uri.contains('?') { '&' } else { '?' })
}

fn json_of(value: &Value) -> Response {
    ([("content-type", "application/json"), ("cache-control", "no-store")], format!("{value}\n"))
        .into_response()
}

fn page(content: &str) -> Response {
    let text = format!("<!doctype html><title>Demo provider</title><p>{content}</p>\n");
    ([(CACHE_CONTROL, "no-store")], Html(text)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_machines_cannot_reach_it() {
        for text in ["127.0.0.1:9003", "127.9.9.9:1", "[::1]:9003"] {
            assert!(address(text).is_ok(), "{text}");
        }
        for text in
            ["0.0.0.0:9003", "192.0.2.1:9003", "[::]:9003", "[::ffff:127.0.0.1]:9003", "9003", "localhost"]
        {
            assert!(address(text).is_err(), "{text}");
        }
        let refused = address("0.0.0.0:9003").unwrap_err();
        assert!(refused.contains("write 127.0.0.1:9003"), "{refused}");
    }

    #[test]
    fn it_leads_back_to_this_machine_only() {
        for uri in ["http://127.0.0.1:9080/a?b=c", "http://localhost/", "https://[::1]:9443/x"] {
            assert!(is_of_this_machine(uri), "{uri}");
        }
        for uri in [
            "http://example.com/",
            "//127.0.0.1/",
            "/a",
            "javascript:alert(1)",
            "http://127.0.0.1@example.com/",
            "http://localhost.example.com/",
            "file://localhost/etc/passwd",
        ] {
            assert!(!is_of_this_machine(uri), "{uri}");
        }
        let members = [("code", "a b"), ("state", "&")];
        assert_eq!(
            with_query("http://localhost/x?y=1", &members),
            "http://localhost/x?y=1&code=a+b&state=%26"
        );
    }

    #[tokio::test]
    async fn a_browser_gets_a_button_and_curl_a_code() {
        let provider = Arc::new(Provider::new("http://127.0.0.1:9003".to_owned()).unwrap());
        let right = "response_type=code&client_id=shop&redirect_uri=http://localhost/x&state=s";
        let ask = async |accept: &'static str, query: &str| {
            let headers = HeaderMap::from_iter([(ACCEPT, accept.parse().unwrap())]);
            authorize(State(Arc::clone(&provider)), RawQuery(Some(query.to_owned())), headers).await
        };
        let place = |answer: &Response| {
            let place = answer.headers().get(LOCATION);
            place.map(|place| place.to_str().unwrap().to_owned())
        };
        let page = ask("text/html,*/*", right).await.unwrap();
        assert_eq!((page.status(), place(&page)), (StatusCode::OK, None));
        let back = place(&ask("*/*", right).await.unwrap()).unwrap();
        assert!(back.starts_with("http://localhost/x?code=") && back.ends_with("&state=s"), "{back}");
        for wrong in [
            right.replace("localhost", "example.com"),
            right.replace("client_id", "id"),
            right.replace("type=code", "type=token"),
            format!("{right}&code_challenge=c&code_challenge_method=plain"),
        ] {
            for accept in ["text/html", "*/*"] {
                assert_eq!(ask(accept, &wrong).await.unwrap_err().0, 400, "{wrong}");
            }
        }
    }

    fn login(challenge: Option<&str>) -> Login {
        Login {
            client_id: "shop".to_owned(),
            redirect_uri: "http://localhost/".to_owned(),
            nonce: None,
            challenge: challenge.map(str::to_owned),
        }
    }

    #[tokio::test]
    async fn a_code_is_for_one_client_and_one_use() {
        let provider = Arc::new(Provider::new("http://127.0.0.1:9003".to_owned()).unwrap());
        let verifier = "dBjftJeZ4CVP-mBC92fo1NTR8oKh5cFsD7FfzbYE7QY";
        // The challenge of this verifier, by SHA-256.
        let challenge = URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, verifier.as_bytes()));
        let right = format!(
            "grant_type=authorization_code&code=c&redirect_uri=http://localhost/&client_id=shop&code_verifier={verifier}"
        );
        for (form, status) in [
            (right.clone(), 200),
            (right.replace(verifier, "guessed"), 400),
            (right.replace("client_id=shop", "client_id=other"), 400),
            (right.replace("http://localhost/", "http://localhost/other"), 400),
            (right.replace("code=c", "code=d"), 400),
            (right.replace("authorization_code", "password"), 400),
        ] {
            let _ = provider.codes.take("c");
            provider.codes.put("c".to_owned(), CODE_LIFE, login(Some(&challenge)));
            let ask = || token(State(Arc::clone(&provider)), HeaderMap::new(), form.clone().into());
            let answer = ask().await.map_or_else(|(refused, _)| refused, |answer| answer.status());
            assert_eq!(answer, status, "{form}");
            if status == 200 {
                assert_eq!(ask().await.unwrap_err().0, 400, "a code is used once");
            }
        }
    }

    #[test]
    fn codes_and_tokens_are_bounded_and_expire() {
        let kept = ExpiringValues::new();
        for number in 0..=KEPT_MAX {
            kept.put(number.to_string(), CODE_LIFE, ());
        }
        assert!(!kept.has("0") && kept.has("1"));
        kept.put("over".to_owned(), Duration::ZERO, ());
        assert!(!kept.has("over") && kept.take("over").is_none());
    }
}
