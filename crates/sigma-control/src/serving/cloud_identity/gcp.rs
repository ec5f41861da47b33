//! The identity at Google Cloud: from the metadata server, or by workload identity federation.

use std::path::Path;

use reqwest::Method;
use serde_json::{Value, json};
use sigma_config::cloud_identity::GcpIdentity;
use sigma_plugin::cloud::Cloud;
use sigma_schema::Confidential;
use sigma_schema::expr::unix_seconds;

use super::caller::{Caller, CloudRequest, CloudResponse, at, file};
use super::{Credential, Fetching, Service, unix_now};

/// The longest life that a response may claim, in seconds.
const MAX_LIFE_S: u64 = 12 * 3600;

/// The source of the identity.
pub(super) struct Gcp {
    pub(super) settings: GcpIdentity,
    pub(super) caller: Caller,
}

impl Service<Confidential> for Gcp {
    const CLOUD: Cloud = Cloud::Gcp;

    fn fetch(&self) -> Fetching<'_, Confidential> {
        Box::pin(async move {
            match &self.settings.credentials_file {
                Some(path) => self.federated(path).await,
                None => self.of_machine().await,
            }
        })
    }
}

impl Gcp {
    async fn of_machine(&self) -> Result<Credential<Confidential>, String> {
        let GcpIdentity { metadata_endpoint, service_account, scopes, .. } = &self.settings;
        let path = format!("/computeMetadata/v1/instance/service-accounts/{service_account}/token");
        let mut url = at(metadata_endpoint, &path)?;
        url.query_pairs_mut().append_pair("scopes", &scopes.join(","));
        let answer = self.caller.ask(CloudRequest::get(url, &[("metadata-flavor", "Google")])).await?;
        // Any other server at this address is not the metadata server.
        if answer.fields.get("metadata-flavor").is_none_or(|flavor| flavor != "Google") {
            return Err(format!("`{metadata_endpoint}` is not a metadata server of Google Cloud"));
        }
        token_of(&answer)
    }

    /// Exchanges the token in a file for one of Google, and that for one of a service account if the file names one.
    async fn federated(&self, path: &Path) -> Result<Credential<Confidential>, String> {
        let shown = path.display().to_string();
        let unusable = |what: &str| format!("{shown}: {what}");
        let settings: Value =
            serde_json::from_str(&file(path).await?).map_err(|_| unusable("the file is not JSON"))?;
        let text = |name: &str| settings.pointer(name).and_then(Value::as_str);
        let required = |name: &str| text(name).ok_or_else(|| unusable(&format!("`{name}` is missing")));
        if text("/type") != Some("external_account") {
            return Err(unusable("`type` is not `external_account`; keys of accounts belong to `auth_file`"));
        }
        let source = text("/credential_source/file");
        let source = source
            .ok_or_else(|| unusable("`credential_source.file` is missing; other sources are unsupported"))?;
        let mut subject = file(source.as_ref()).await?;
        if text("/credential_source/format/type") == Some("json") {
            let field = required("/credential_source/format/subject_token_field_name")?;
            let whole: Value = serde_json::from_str(&subject).unwrap_or_default();
            subject = whole.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        }
        if subject.is_empty() {
            return Err(unusable("there is no token in `credential_source.file`"));
        }
        let impersonated = text("/service_account_impersonation_url");
        let scope = match impersonated {
            Some(_) => "https://www.googleapis.com/auth/cloud-platform".to_owned(),
            None => self.settings.scopes.join(" "),
        };
        let form = form_urlencoded::Serializer::new(String::new())
            .append_pair("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange")
            .append_pair("audience", required("/audience")?)
            .append_pair("scope", &scope)
            .append_pair("requested_token_type", "urn:ietf:params:oauth:token-type:access_token")
            .append_pair("subject_token", &subject)
            .append_pair("subject_token_type", required("/subject_token_type")?)
            .finish();
        let question = CloudRequest {
            method: Method::POST,
            url: at(required("/token_url")?, "")?,
            fields: &[],
            body: Some(("application/x-www-form-urlencoded", form)),
        };
        let token = token_of(&self.caller.ask(question).await?)?;
        match impersonated {
            None => Ok(token),
            Some(url) => self.impersonated(url, &token.value).await,
        }
    }

    async fn impersonated(
        &self,
        url: &str,
        token: &Confidential,
    ) -> Result<Credential<Confidential>, String> {
        let authorization = format!("Bearer {}", token.reveal());
        let question = CloudRequest {
            method: Method::POST,
            url: at(url, "")?,
            fields: &[("authorization", &authorization)],
            body: Some(("application/json", json!({ "scope": self.settings.scopes }).to_string())),
        };
        let answer = self.caller.ask(question).await?.json()?;
        let text = |name: &str| answer.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let end_s = text("expireTime").and_then(unix_seconds).and_then(|end| u64::try_from(end).ok());
        let token = text("accessToken").filter(|token| is_token(token)).zip(end_s);
        let (token, end_s) = token.ok_or("the service account has no valid token")?;
        Ok(Credential { value: token.into(), end_s: Some(end_s) })
    }
}

/// Returns the token of a response as OAuth 2.0 has it; Azure writes the seconds as text.
pub(super) fn token_of(answer: &CloudResponse) -> Result<Credential<Confidential>, String> {
    let answer = answer.json()?;
    let token = answer.get("access_token").and_then(Value::as_str).filter(|token| is_token(token));
    let life_s = match answer.get("expires_in") {
        Some(Value::String(text)) => text.parse().ok(),
        value => value.and_then(Value::as_u64),
    };
    let (token, life_s) =
        token.zip(life_s).ok_or("the response has no `access_token` with its `expires_in`")?;
    let end_s = unix_now().saturating_add(life_s.min(MAX_LIFE_S));
    Ok(Credential { value: token.into(), end_s: Some(end_s) })
}

/// Returns true if a text can be sent as a bearer token.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}
