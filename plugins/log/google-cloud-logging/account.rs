//! The gateway's identity at Google: a service account, and the tokens for its key.

use std::path::Path;
use std::time::UNIX_EPOCH;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_plugin::system::{Host, System};
use sigma_schema::Confidential;
use tokio::sync::Mutex;

use super::NAME;
use crate::shared::http_sender::{Address, Fields, HttpSender, Transport};
use sigma_plugin_kit::key_pair::{PairAlgorithm, Signer};

const TOKEN_URI: &str = "https://oauth2.googleapis.com/token";

/// The scope of an account whose file names none.
const FILE_SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

/// Seconds for which a signed question is good.
const ASSERTION_S: u64 = 3600;

/// A token is renewed so many seconds before its end.
const RENEWED_BEFORE_S: u64 = 60;

/// Seconds for which a token is believed to be good at most.
const TOKEN_S: u64 = 86_400;

/// Bytes of a response with a token.
const ANSWER_BYTES: usize = 64 << 10;

/// A service account.
#[derive(Deserialize, JsonSchema)]
pub(super) struct AuthConfig {
    /// The e-mail address of the account.
    client_email: String,
    /// The private key of the account: RSA, PEM (PKCS #8).
    private_key: Confidential,
    /// The project of the log.
    project_id: String,
    /// The URL of the token endpoint.
    #[schemars(extend("default" = TOKEN_URI))]
    token_uri: Address,
    /// Scopes of the token; `scopes` has precedence.
    #[schemars(length(min = 1), extend("uniqueItems" = true, "default" = [
        "https://www.googleapis.com/auth/logging.read",
        "https://www.googleapis.com/auth/logging.write",
        "https://www.googleapis.com/auth/logging.admin",
        "https://www.googleapis.com/auth/cloud-platform"
    ]))]
    scope: Vec<String>,
    /// Scopes of the token.
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    scopes: Option<Vec<String>>,
    /// The URL that entries are sent to.
    #[schemars(extend("default" = "https://logging.googleapis.com/v2/entries:write"))]
    entries_uri: Address,
}

/// A service account as it is used.
pub(super) struct Account {
    email: String,
    key: Signer,
    scope: String,
    pub(super) project: String,
    pub(super) token: Address,
    pub(super) entries: Address,
}

impl Account {
    /// # Errors
    /// Returns an error, which is a sentence, if the key cannot be used.
    pub(super) fn new(settings: &AuthConfig) -> Result<Account, String> {
        Ok(Account {
            email: settings.client_email.clone(),
            key: key_of(settings.private_key.reveal()).map_err(|error| format!("auth_config.{error}"))?,
            scope: settings.scopes.as_ref().unwrap_or(&settings.scope).join(" "),
            project: settings.project_id.clone(),
            token: settings.token_uri.clone(),
            entries: settings.entries_uri.clone(),
        })
    }

    /// The account in a file.
    ///
    /// # Errors
    /// Returns an error, in APISIX's words and without anything that the file says, if it cannot be used.
    pub(super) async fn read(file: &Path) -> Result<Account, String> {
        let name = file.display();
        let path = file.to_owned();
        let read = tokio::task::spawn_blocking(move || std::fs::read(path)).await;
        let text = read
            .map_err(std::io::Error::other)
            .flatten()
            .map_err(|error| format!("failed to read configuration, file: {name} err: {error}"))?;
        Account::parse(&text).map_err(|error| format!("config parse failure, file: {name}, err: {error}"))
    }

    fn parse(text: &[u8]) -> Result<Account, String> {
        let file: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let member = |name: &str| {
            let text = file.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
            text.map(str::to_owned).ok_or_else(|| format!("{name}: a string is missing"))
        };
        let address =
            |name: &str| Address::try_from(member(name)?).map_err(|error| format!("{name}: {error}"));
        let scopes = ["scopes", "scope"].iter().find_map(|name| file.get(*name)?.as_array());
        let scopes =
            scopes.map(|scopes| scopes.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "));
        Ok(Account {
            email: member("client_email")?,
            key: key_of(&member("private_key")?)?,
            scope: scopes.filter(|scopes| !scopes.is_empty()).unwrap_or_else(|| FILE_SCOPE.to_owned()),
            project: member("project_id")?,
            token: match file.get("token_uri") {
                Some(_) => address("token_uri")?,
                None => Address::try_from(TOKEN_URI.to_owned())?,
            },
            entries: address("entries_uri")?,
        })
    }

    /// A signed question for a token (RFC 7523), which is a secret as long as it is good.
    fn assertion(&self, now_s: u64) -> Result<String, String> {
        let header = json!({"alg": "RS256", "typ": "JWT"});
        let claims = json!({
            "iss": self.email, "aud": self.token.as_str(), "scope": self.scope, "iat": now_s, "exp": now_s + ASSERTION_S
        });
        let [header, claims] = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
        let text = format!("{header}.{claims}");
        let signature = self.key.sign(text.as_bytes()).ok_or("cannot get random bytes")?;
        Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

fn key_of(pem: &str) -> Result<Signer, String> {
    Signer::parse(pem, PairAlgorithm::RsaV15Sha256)
}

/// The token in force, for all batches of a configuration.
pub(super) struct Tokens {
    sender: HttpSender,
    /// One batch asks, the others wait for it.
    current: Mutex<Option<Token>>,
}

struct Token {
    /// As `Authorization` has it.
    field: Confidential,
    /// In Unix seconds.
    end_s: u64,
}

impl Tokens {
    pub(super) fn new(transport: Transport) -> Result<Tokens, String> {
        let mut fields = Fields::default();
        fields.set("content-type", "application/x-www-form-urlencoded", "auth_config")?;
        Ok(Tokens { sender: HttpSender::new(NAME, &[], transport, fields), current: Mutex::default() })
    }

    /// Returns the value of `Authorization` for this account.
    ///
    /// # Errors
    /// Returns an error, in APISIX's words, if there is no token.
    pub(super) async fn current(&self, account: &Account) -> Result<String, String> {
        let now_s = Host.now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut current = self.current.lock().await;
        let token = match current.take().filter(|token| token.end_s >= now_s + RENEWED_BEFORE_S) {
            Some(token) => token,
            None => self
                .fetched(account, now_s)
                .await
                .map_err(|reason| format!("failed to get google oauth token: {reason}"))?,
        };
        let field = token.field.reveal().to_owned();
        *current = Some(token);
        Ok(field)
    }

    async fn fetched(&self, account: &Account, now_s: u64) -> Result<Token, String> {
        // All letters of an assertion stand for themselves in a form.
        let form = format!(
            "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion={}",
            account.assertion(now_s)?
        );
        let answer = self.sender.post(&account.token, form.into_bytes()).await;
        let mut answer = answer.map_err(|failure| failure.to_string())?;
        let (status, body) = (answer.status, answer.body(ANSWER_BYTES).await);
        granted(status, &body, now_s)
    }
}

/// The token of a response.
fn granted(status: u16, body: &[u8], now_s: u64) -> Result<Token, String> {
    let told: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |name: &str| told.get(name).and_then(Value::as_str);
    if status != 200 {
        // Only names of RFC 6749: other texts may repeat the request.
        let known =
            ["invalid_grant", "invalid_request", "invalid_client", "unauthorized_client", "invalid_scope"];
        let code = known.into_iter().find(|known| text("error") == Some(*known));
        return Err(format!("status {status}, {}", code.unwrap_or("no known error")));
    }
    let token = text("access_token").filter(|token| !token.is_empty());
    let token = token.ok_or("the response has no access_token")?;
    let kind = text("token_type").filter(|kind| !kind.is_empty()).unwrap_or("Bearer");
    // A token without an end serves this batch alone.
    let seconds = told.get("expires_in").and_then(Value::as_u64).unwrap_or_default();
    let field = format!("{kind} {token}");
    Ok(Token { field: field.as_str().into(), end_s: now_s.saturating_add(seconds.min(TOKEN_S)) })
}

#[cfg(test)]
mod tests;
