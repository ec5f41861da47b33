//! AWS Secrets Manager: `GetSecretValue`, signed.
//!
//! The whole key is tried as the name of a secret; if there is no such secret, its last parts name a member
//! of the JSON object in the secret, one part more each time.

use reqwest::{Method, Url};
use serde_json::{Value, json};
use sigma_config::resources::Secret;
use sigma_plugin::cloud::Recipient;
use sigma_plugin_kit::sigv4::{self, Paths};
use sigma_plugin_kit::utc;
use sigma_schema::Confidential;

use super::client::{Request, Verify, address, unexpected};
use super::{Failure, Shared, member_of};
use crate::serving::clock::unix_seconds;

const DEFAULT_REGION: &str = "us-east-1";
const CONTENT_TYPE: &str = "application/x-amz-json-1.1";
const TARGET: &str = "secretsmanager.GetSecretValue";

/// Parts of a key, each of which may cost a request.
const MAX_PARTS: usize = 8;

/// How an access signs in.
struct Account {
    access_key_id: String,
    secret_access_key: Confidential,
    session_token: Option<String>,
    region: String,
    endpoint: Url,
}

pub(super) async fn fetch(shared: &Shared, access: &Secret, key: &str) -> Result<String, Failure> {
    let account = account(shared, access)?;
    if key.split('/').count() > MAX_PARTS {
        return Err(Failure::Refused(format!("the key has more than {MAX_PARTS} parts")));
    }
    let ends = [key.len()].into_iter().chain(key.rmatch_indices('/').map(|(index, _)| index));
    for end in ends {
        let (name, field) = (&key[..end], key.get(end + 1..));
        let Some(text) = value(shared, &account, name).await? else { continue };
        return match field {
            None => Ok(text),
            Some(field) => member_of(&text, field).map_err(|why| why.of(&format!("secret `{name}` in AWS"))),
        };
    }
    Err(Failure::Refused(format!("AWS has no secret `{key}` in the region {}", account.region)))
}

fn account(shared: &Shared, access: &Secret) -> Result<Account, Failure> {
    let secret = |name: &str, text: &Option<Confidential>| {
        shared.plain(access, name, text.as_ref().map(Confidential::reveal))
    };
    let region = shared.plain(access, "region", access.region.as_deref().or(Some(DEFAULT_REGION)))?;
    // It becomes part of a host name.
    if region.is_empty() || !region.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Err(Failure::Refused(format!("`{region}` is not an AWS region")));
    }
    let endpoint = match access.endpoint_url.as_deref() {
        Some(endpoint) => address(&shared.plain(access, "endpoint_url", Some(endpoint))?)?,
        None => address(&format!("https://secretsmanager.{region}.amazonaws.com"))?,
    };
    if access.machine_identity == Some(true) {
        let is_verified = endpoint.scheme() == "https";
        let recipient = Recipient { host: endpoint.host_str().unwrap_or_default(), is_verified };
        let keys = shared.identities().aws(recipient, unix_seconds().unsigned_abs())?;
        return Ok(Account {
            access_key_id: keys.access_key_id.reveal().to_owned(),
            secret_access_key: keys.secret_access_key.clone(),
            session_token: keys.session_token.as_ref().map(|token| token.reveal().to_owned()),
            region,
            endpoint,
        });
    }
    Ok(Account {
        access_key_id: shared.plain(access, "access_key_id", access.access_key_id.as_deref())?,
        secret_access_key: Confidential::from(&*secret("secret_access_key", &access.secret_access_key)?),
        session_token: match access.session_token {
            Some(_) => Some(secret("session_token", &access.session_token)?),
            None => None,
        },
        region,
        endpoint,
    })
}

/// The text of the secret; None if there is no secret of this name.
async fn value(shared: &Shared, account: &Account, name: &str) -> Result<Option<String>, Failure> {
    let body = json!({ "SecretId": name, "VersionStage": "AWSCURRENT" }).to_string();
    let date = utc::compact(unix_seconds().unsigned_abs());
    let host = match (account.endpoint.host_str(), account.endpoint.port()) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        (host, _) => host.unwrap_or_default().to_owned(),
    };
    let mut headers = vec![("content-type", CONTENT_TYPE), ("host", &host), ("x-amz-date", &date)];
    headers.extend(account.session_token.as_deref().map(|token| ("x-amz-security-token", token)));
    headers.push(("x-amz-target", TARGET));
    let signer = sigv4::Account {
        access_key_id: &account.access_key_id,
        secret_access_key: &account.secret_access_key,
        region: &account.region,
        service: "secretsmanager",
    };
    let signed = sigv4::Request {
        method: b"POST",
        target: account.endpoint.path().as_bytes(),
        paths: Paths::Normal,
        fields: headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect(),
        payload: &sigv4::sha256(body.as_bytes()),
    };
    let authorization = signer.authorization(&signed, &date);
    // The client itself sends `host`, the same.
    headers.retain(|(name, _)| *name != "host");
    headers.push(("authorization", &authorization));
    let url = account.endpoint.clone();
    let request = Request { method: Method::POST, url, headers: &headers, body, verify: Verify::Certificate };
    let answer = shared.client.ask(request).await?;
    let parsed: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    if answer.status == 200 {
        let text = parsed["SecretString"].as_str().map(str::to_owned);
        let reason = || Failure::Refused(format!("secret `{name}` in AWS has no text"));
        return text.map(Some).ok_or_else(reason);
    }
    // `com.amazonaws.secretsmanager#ResourceNotFoundException`, or without the name before `#`.
    let kind = parsed["__type"].as_str().and_then(|kind| kind.rsplit('#').next()).unwrap_or_default();
    match kind {
        "ResourceNotFoundException" => Ok(None),
        "ThrottlingException" => Err(Failure::Unreachable("AWS limits the rate of requests".to_owned())),
        _ if kind.is_empty() || answer.status >= 500 => Err(unexpected("AWS", answer.status)),
        _ => Err(Failure::Refused(format!("AWS refuses secret `{name}`: {kind}"))),
    }
}
