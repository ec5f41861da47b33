//! Google Cloud Secret Manager: a signed claim buys a token, the token buys the newest version of a
//! secret. The first part of a key names the secret, the rest a member of the JSON object in it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeyPair;
use aws_lc_rs::signature::RSA_PKCS1_SHA256;
use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use reqwest::Method;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;
use serde_json::{Value, json};
use sigma_config::resources::{GcpAccount, Secret};
use sigma_plugin::cloud::{Cloud, Recipient};

use super::client::{Request, Verify, address, below, unexpected};
use super::{Failure, Shared, member_of};
use crate::serving::cloud_identity::unix_now;

/// How long a claim is good for: the longest that Google accepts.
const CLAIM_SECONDS: u64 = 3600;

/// A token is renewed this much before it ends, as a request takes time.
const TOKEN_MARGIN: Duration = Duration::from_secs(60);

/// What requests carry.
#[derive(Clone)]
pub(super) struct Token {
    /// The value of `Authorization`.
    authorization: String,
    good_until: Instant,
}

pub(super) async fn fetch(shared: &Shared, access: &Secret, key: &str) -> Result<String, Failure> {
    let verify = if access.ssl_verify == Some(false) { Verify::Nothing } else { Verify::Certificate };
    let Login { authorization, project, entries } = login(shared, access, verify).await?;
    let (name, field) = match key.split_once('/') {
        Some((name, field)) => (name, Some(field)),
        None => (key, None),
    };
    let segments = ["projects", &project, "secrets", name, "versions", "latest:access"];
    let url = below(address(&entries)?, segments)?;
    let headers = [("authorization", authorization.as_str())];
    let answer = shared
        .client
        .ask(Request { method: Method::GET, url, headers: &headers, body: String::new(), verify })
        .await?;
    let text = match answer.status {
        200 => payload(&answer.body)
            .ok_or_else(|| Failure::Refused(format!("secret `{name}` in Google Cloud has no text")))?,
        404 => return Err(Failure::Refused(format!("Google Cloud has no secret `{name}`"))),
        status => {
            // The token may have been taken back.
            shared.state().tokens.remove(&access.id);
            return Err(unexpected("Google Cloud", status));
        }
    };
    match field {
        None => Ok(text),
        Some(field) => {
            member_of(&text, field).map_err(|why| why.of(&format!("secret `{name}` in Google Cloud")))
        }
    }
}

/// The result of a login: the field of requests, the project, and the address of its secrets.
struct Login {
    authorization: String,
    project: String,
    entries: String,
}

async fn login(shared: &Shared, access: &Secret, verify: Verify) -> Result<Login, Failure> {
    if access.machine_identity != Some(true) {
        let account = account(shared, access).await?;
        let authorization = token(shared, access, &account, verify).await?.authorization;
        return Ok(Login { authorization, project: account.project_id, entries: account.entries_uri });
    }
    let project = shared.plain(access, "project_id", access.project_id.as_deref())?;
    let entries = access.entries_uri.as_deref().unwrap_or(GcpAccount::ENTRIES_URI).to_owned();
    let url = address(&entries)?;
    let is_verified = url.scheme() == "https" && verify == Verify::Certificate;
    let recipient = Recipient { host: url.host_str().unwrap_or_default(), is_verified };
    let token = shared.identities().token(Cloud::Gcp, recipient, unix_now())?;
    Ok(Login { authorization: format!("Bearer {}", token.reveal()), project, entries })
}

async fn account(shared: &Shared, access: &Secret) -> Result<GcpAccount, Failure> {
    let mut account = match (&access.auth_config, &access.auth_file) {
        (Some(account), _) => (**account).clone(),
        (None, Some(path)) => from_file(path).await?,
        (None, None) => {
            return Err(Failure::Refused(format!(
                "secret resource `{}`: set `auth_config`, `auth_file` or `machine_identity`",
                access.id
            )));
        }
    };
    let key = shared.plain(access, "auth_config.private_key", Some(account.private_key.reveal()))?;
    account.private_key = key.as_str().into();
    account.client_email = shared.plain(access, "auth_config.client_email", Some(&account.client_email))?;
    account.project_id = shared.plain(access, "auth_config.project_id", Some(&account.project_id))?;
    Ok(account)
}

async fn from_file(path: &str) -> Result<GcpAccount, Failure> {
    let owned = path.to_owned();
    let read = tokio::task::spawn_blocking(move || std::fs::read(owned)).await;
    let text = match read {
        Ok(Ok(text)) => text,
        Ok(Err(error)) => return Err(Failure::Refused(format!("`auth_file` {path}: {error}"))),
        Err(error) => return Err(Failure::Unreachable(format!("`auth_file` {path}: {error}"))),
    };
    // The error of the parser could show a piece of the private key.
    let reason = || format!("`auth_file` {path} is not the key file of a service account");
    serde_json::from_slice(&text).map_err(|_| Failure::Refused(reason()))
}

async fn token(
    shared: &Shared,
    access: &Secret,
    account: &GcpAccount,
    verify: Verify,
) -> Result<Token, Failure> {
    let (known, generation) = {
        let state = shared.state();
        (state.tokens.get(&access.id).cloned(), state.generation)
    };
    if let Some(token) = known.filter(|token| token.good_until > Instant::now()) {
        return Ok(token);
    }
    let assertion = assertion(account, SystemTime::now())?;
    let body = form_urlencoded::Serializer::new(String::new())
        .append_pair("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer")
        .append_pair("assertion", &assertion)
        .finish();
    let url = address(&account.token_uri)?;
    let headers = [("content-type", "application/x-www-form-urlencoded")];
    let answer =
        shared.client.ask(Request { method: Method::POST, url, headers: &headers, body, verify }).await?;
    if answer.status != 200 {
        return Err(unexpected("Google Cloud's token service", answer.status));
    }
    let parsed: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let Some(text) = parsed["access_token"].as_str() else {
        return Err(Failure::Refused("Google Cloud's token service returned no token".to_owned()));
    };
    let life = Duration::from_secs(parsed["expires_in"].as_u64().unwrap_or(0).min(CLAIM_SECONDS));
    let token = Token {
        authorization: format!("{} {text}", parsed["token_type"].as_str().unwrap_or("Bearer")),
        good_until: Instant::now() + life.saturating_sub(TOKEN_MARGIN),
    };
    let mut state = shared.state();
    if state.generation == generation {
        state.tokens.insert(access.id.clone(), token.clone());
    }
    Ok(token)
}

/// The claim of the account, as a JSON Web Token signed with RS256 (RFC 7523 §3).
fn assertion(account: &GcpAccount, now: SystemTime) -> Result<String, Failure> {
    let unusable = || Failure::Refused("`private_key` is not an RSA key in PEM".to_owned());
    let key =
        PrivateKeyDer::from_pem_slice(account.private_key.reveal().as_bytes()).map_err(|_| unusable())?;
    let pair = match &key {
        PrivateKeyDer::Pkcs8(key) => KeyPair::from_pkcs8(key.secret_pkcs8_der()),
        PrivateKeyDer::Pkcs1(key) => KeyPair::from_der(key.secret_pkcs1_der()),
        _ => return Err(unusable()),
    };
    let pair = pair.map_err(|_| unusable())?;
    let issued = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let header = json!({ "alg": "RS256", "typ": "JWT" });
    let claims = json!({
        "iss": account.client_email,
        "scope": account.scope.join(" "),
        "aud": account.token_uri,
        "iat": issued,
        "exp": issued + CLAIM_SECONDS,
    });
    let encode = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", encode(&header), encode(&claims));
    let mut signature = vec![0; pair.public_modulus_len()];
    pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature)
        .map_err(|_| unusable())?;
    Ok(format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
}

/// The text of a version, which comes in base64.
fn payload(body: &[u8]) -> Option<String> {
    let answer: Value = serde_json::from_slice(body).ok()?;
    let data = BASE64_STANDARD.decode(answer["payload"]["data"].as_str()?).ok()?;
    String::from_utf8(data).ok()
}
