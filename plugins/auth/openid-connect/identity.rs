//! The identity of an authenticated user: its required claims, and the fields for the node.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Map, Value, json};
use sigma_http::{HeaderId, Headers};
use sigma_plugin::credentials::Credential;
use sigma_plugin::{OwnedField, Reply, Step};
use sigma_schema::validation;

use super::config::{AudienceValidator, Config};
use crate::shared::tokens::object_of;

/// Fields that the node gets from here alone.
const FIELDS: [&str; 5] = ["X-Access-Token", "X-Userinfo", "X-ID-Token", "X-Refresh-Token", "X-Raw-ID-Token"];

/// The fields that the node gets by this configuration.
pub(super) fn owned_fields(conf: &Value) -> Vec<OwnedField> {
    let in_authorization = conf.get("access_token_in_authorization_header") == Some(&Value::Bool(true));
    let authorization = in_authorization.then(|| OwnedField::shared("Authorization"));
    FIELDS.map(OwnedField::sole).into_iter().chain(authorization).collect()
}

/// Returns the fields with tokens for the node, and the cookies of logins.
pub(super) fn credentials() -> Vec<Credential> {
    let arguments = ["code", "access_token", "id_token", "logout_token"].map(Credential::argument);
    FIELDS.map(Credential::field).into_iter().chain(arguments).collect()
}

/// Whether the client has sent an access token in the field that is the gateway's.
pub(super) fn has_offered_token(headers: &Headers) -> bool {
    headers.was_received(FIELDS[0].as_bytes())
}

/// The user data for the node.
#[derive(Default)]
pub(super) struct NodeUserData<'a> {
    pub(super) access_token: Option<&'a str>,
    pub(super) user: Option<&'a Map<String, Value>>,
    pub(super) id_claims: Option<&'a Map<String, Value>>,
    pub(super) id_token: Option<&'a str>,
    pub(super) refresh_token: Option<&'a str>,
}

impl NodeUserData<'_> {
    /// Tells the node.
    pub(super) fn tell(&self, config: &Config, headers: &mut Headers) {
        let encoded =
            |claims: &Map<String, Value>| STANDARD.encode(Value::Object(claims.clone()).to_string());
        let mut set = |name: &str, value: Option<String>| {
            // A token that no field can hold is invalid.
            if let Some(value) = value.filter(|value| value.bytes().all(|byte| byte.is_ascii_graphic())) {
                headers.append(name, value.as_bytes());
            }
        };
        let access_token = self.access_token.filter(|_| config.set_access_token_header);
        if !config.access_token_in_authorization_header {
            set(FIELDS[0], access_token.map(str::to_owned));
        }
        set(FIELDS[1], self.user.filter(|_| config.set_userinfo_header).map(encoded));
        set(FIELDS[2], self.id_claims.filter(|_| config.set_id_token_header).map(encoded));
        set(FIELDS[3], self.refresh_token.filter(|_| config.set_refresh_token_header).map(str::to_owned));
        set(FIELDS[4], self.id_token.filter(|_| config.set_raw_id_token_header).map(str::to_owned));
        if config.access_token_in_authorization_header
            && let Some(token) =
                access_token.filter(|token| token.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            headers.set(HeaderId::Authorization, format!("Bearer {token}").as_bytes());
        }
    }
}

/// 401 with a challenge (RFC 6750 §3).
pub(super) fn challenge(config: &Config, error: Option<&str>) -> Step {
    let mut value = format!("Bearer realm=\"{}\"", config.realm);
    if let Some(description) = error {
        // Nothing in it may end the text around it.
        let plain = |c: char| if matches!(c, ' '..='~') && !matches!(c, '"' | '\\') { c } else { '\'' };
        let description: String = description.chars().map(plain).collect();
        value.push_str(&format!(", error=\"invalid_token\", error_description=\"{description}\""));
    }
    Reply::new(401).header("WWW-Authenticate", value).because("the token is invalid").into()
}

/// 403 with a reason.
fn forbid(error: String) -> Step {
    Reply::new(403)
        .text(json!({ "error": error }).to_string())
        .because("the token does not allow the request")
        .into()
}

/// Returns the scopes of a token from its claims: `scope` (RFC 9068 §2.2.3), or `scp` of Entra ID and Okta.
pub(super) fn scopes(claims: &Map<String, Value>) -> Option<&Value> {
    claims.get("scope").or_else(|| claims.get("scp"))
}

/// Refuses claims that do not have all required scopes; None if they do.
pub(super) fn refuse_scopes(config: &Config, scope: Option<&Value>) -> Option<Step> {
    let required = config.required_scopes.as_deref().filter(|scopes| !scopes.is_empty())?;
    // A text with spaces (RFC 8693 §4.2), or a list, as some providers have it.
    let has = |wanted: &String| match scope {
        Some(Value::String(text)) => text.split(' ').any(|scope| scope == wanted),
        Some(Value::Array(scopes)) => scopes.iter().any(|scope| scope == wanted),
        _ => false,
    };
    if required.iter().all(has) {
        return None;
    }
    Some(forbid(format!("required scopes {} not present", required.join(", "))))
}

/// Refuses claims that are not for the gateway; None if they are.
pub(super) fn refuse_audience(config: &Config, claims: &Map<String, Value>) -> Option<Step> {
    let AudienceValidator { claim, required, match_with_client_id } =
        config.claim_validator.as_ref()?.audience.as_ref()?;
    if !required && !match_with_client_id {
        return None;
    }
    let is_client = |value: &Value| value.as_str() == Some(&config.client_id);
    match claims.get(claim) {
        None | Some(Value::Null) => Some(forbid("required audience claim not present".to_owned())),
        Some(_) if !match_with_client_id => None,
        Some(Value::Array(names)) if names.iter().any(is_client) => None,
        Some(name) if is_client(name) => None,
        Some(_) => Some(forbid("mismatched audience".to_owned())),
    }
}

/// Steps of one validation. Claims of a few kilobytes take some hundred.
const MOST_STEPS: u64 = 100_000;

/// Refuses claims that do not fit the operator's schema; None if they do.
pub(super) fn refuse_schema(
    config: &Config,
    schema: Option<&validation::Schema>,
    claims: Value,
) -> Option<Step> {
    // Some of the provider's user data was written by the user.
    let fault = schema?.filled_of_stranger(&claims, MOST_STEPS).err()?;
    Some(challenge(config, Some(&fault)))
}

/// The claims of a text that is a token; nothing of it is verified.
pub(super) fn claims_of(text: &str) -> Option<Map<String, Value>> {
    let mut parts = text.split('.');
    let (Some(_), Some(claims), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    object_of(&URL_SAFE_NO_PAD.decode(claims).ok()?)
}
