//! The identity at AWS, from the sources that AWS's own programs know.

use reqwest::{Method, Url};
use serde_json::Value;
use sigma_config::cloud_identity::{AwsIdentity, AwsSource};
use sigma_plugin::cloud::{AwsKeys, Cloud};
use sigma_schema::Confidential;
use sigma_schema::expr::unix_seconds;

use super::caller::{Caller, CloudRequest, at, file};
use super::{Credential, Environment, Fetching, Service};

/// The life of a token of the instance metadata service, in seconds. Each renewal fetches another one.
const TOKEN_TTL: &str = "300";

/// The name of the session if `AWS_ROLE_SESSION_NAME` is not set.
const SESSION: &str = "sigma";

/// The sources of the identity.
pub(super) struct Aws {
    pub(super) settings: AwsIdentity,
    pub(super) caller: Caller,
    pub(super) environment: Environment,
}

impl Service<AwsKeys> for Aws {
    const CLOUD: Cloud = Cloud::Aws;

    fn fetch(&self) -> Fetching<'_, AwsKeys> {
        Box::pin(async move {
            for source in &self.settings.sources {
                let found = match source {
                    AwsSource::Environment => self.environment_keys(),
                    AwsSource::WebIdentity => self.web_identity().await,
                    AwsSource::Container => self.container().await,
                    AwsSource::Instance => self.instance().await.map(Some),
                };
                // A source that is there, and fails, is not replaced by another identity.
                if let Some(credential) = found? {
                    return Ok(credential);
                }
            }
            Err("no source of `cloud_identity.aws.sources` has an identity".to_owned())
        })
    }
}

impl Aws {
    fn variable(&self, name: &str) -> Option<String> {
        (self.environment)(name).filter(|text| !text.is_empty())
    }

    fn environment_keys(&self) -> Result<Option<Credential<AwsKeys>>, String> {
        let Some(id) = self.variable("AWS_ACCESS_KEY_ID") else { return Ok(None) };
        let secret = self.variable("AWS_SECRET_ACCESS_KEY");
        let secret = secret.ok_or("`AWS_ACCESS_KEY_ID` is set, but `AWS_SECRET_ACCESS_KEY` is not")?;
        let token = self.variable("AWS_SESSION_TOKEN");
        let value = AwsKeys {
            access_key_id: id.as_str().into(),
            secret_access_key: secret.as_str().into(),
            session_token: token.as_deref().map(Confidential::from),
        };
        Ok(Some(Credential { value, end_s: None }))
    }

    /// Exchanges the token of an orchestrator for keys of a role.
    async fn web_identity(&self) -> Result<Option<Credential<AwsKeys>>, String> {
        let Some(path) = self.variable("AWS_WEB_IDENTITY_TOKEN_FILE") else { return Ok(None) };
        let role = self.variable("AWS_ROLE_ARN");
        let role = role.ok_or("`AWS_WEB_IDENTITY_TOKEN_FILE` is set, but `AWS_ROLE_ARN` is not")?;
        let session = self.variable("AWS_ROLE_SESSION_NAME").unwrap_or_else(|| SESSION.to_owned());
        let token = file(path.as_ref()).await?;
        let region = self.variable("AWS_REGION").or_else(|| self.variable("AWS_DEFAULT_REGION"));
        let base = match (&self.settings.sts_endpoint, region) {
            (Some(endpoint), _) => endpoint.clone(),
            (None, Some(region)) => format!("https://sts.{region}.amazonaws.com"),
            (None, None) => "https://sts.amazonaws.com".to_owned(),
        };
        let form = form_urlencoded::Serializer::new(String::new())
            .append_pair("Action", "AssumeRoleWithWebIdentity")
            .append_pair("Version", "2011-06-15")
            .append_pair("RoleArn", &role)
            .append_pair("RoleSessionName", &session)
            .append_pair("WebIdentityToken", &token)
            .finish();
        let question = CloudRequest {
            method: Method::POST,
            url: at(&base, "/")?,
            fields: &[],
            body: Some(("application/x-www-form-urlencoded", form)),
        };
        let answer = self.caller.ask(question).await?;
        let unusable = || "the Security Token Service returned no credentials".to_owned();
        let document = roxmltree::Document::parse(&answer.body).map_err(|_| unusable())?;
        let text = |name: &str| {
            let mut nodes = document.descendants();
            nodes.find(|node| node.tag_name().name() == name).and_then(|node| node.text())
        };
        let of = ["AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration"].map(text);
        keys(of).map(Some).ok_or_else(unusable)
    }

    /// Asks the credentials endpoint of a container.
    async fn container(&self) -> Result<Option<Credential<AwsKeys>>, String> {
        let relative = self.variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
        let url = match (relative, self.variable("AWS_CONTAINER_CREDENTIALS_FULL_URI")) {
            (Some(path), _) if path.starts_with('/') => at(&self.settings.container_endpoint, &path)?,
            (Some(_), _) => {
                return Err("`AWS_CONTAINER_CREDENTIALS_RELATIVE_URI` does not begin with `/`".to_owned());
            }
            (None, Some(whole)) => at(&whole, "")?,
            (None, None) => return Ok(None),
        };
        let token = match self.variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE") {
            Some(path) => Some(file(path.as_ref()).await?),
            None => self.variable("AWS_CONTAINER_AUTHORIZATION_TOKEN"),
        };
        let fields: Vec<(&str, &str)> =
            token.as_deref().map(|token| ("authorization", token)).into_iter().collect();
        self.asked_keys(url, &fields).await.map(Some)
    }

    /// Asks the metadata service of an instance (IMDSv2).
    async fn instance(&self) -> Result<Credential<AwsKeys>, String> {
        let base = &self.settings.instance_endpoint;
        let question = CloudRequest {
            method: Method::PUT,
            url: at(base, "/latest/api/token")?,
            fields: &[("x-aws-ec2-metadata-token-ttl-seconds", TOKEN_TTL), ("content-length", "0")],
            body: None,
        };
        let token = self.caller.ask(question).await?.body;
        let fields = [("x-aws-ec2-metadata-token", token.trim())];
        let roles = "/latest/meta-data/iam/security-credentials/";
        let found = self.caller.ask(CloudRequest::get(at(base, roles)?, &fields)).await?;
        let role = found.body.lines().next().unwrap_or_default().trim();
        // It becomes part of a path.
        let is_name = !role.is_empty()
            && role.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+=,.@_-".contains(&byte));
        if !is_name {
            return Err("the instance has no role".to_owned());
        }
        self.asked_keys(at(base, &format!("{roles}{role}"))?, &fields).await
    }

    async fn asked_keys(&self, url: Url, fields: &[(&str, &str)]) -> Result<Credential<AwsKeys>, String> {
        let host = url.host_str().unwrap_or_default().to_owned();
        let answer = self.caller.ask(CloudRequest::get(url, fields)).await?.json()?;
        let text = |name: &str| answer.get(name).and_then(Value::as_str);
        let of = ["AccessKeyId", "SecretAccessKey", "Token", "Expiration"].map(text);
        keys(of).ok_or_else(|| format!("`{host}` returned no credentials"))
    }
}

/// Returns keys from their four members: id, secret, token and end.
fn keys([id, secret, token, end]: [Option<&str>; 4]) -> Option<Credential<AwsKeys>> {
    let given =
        |text: Option<&str>| text.map(str::trim).filter(|text| !text.is_empty()).map(Confidential::from);
    let value = AwsKeys {
        access_key_id: given(id)?,
        secret_access_key: given(secret)?,
        session_token: Some(given(token)?),
    };
    let end_s = u64::try_from(unix_seconds(end?.trim())?).ok()?;
    Some(Credential { value, end_s: Some(end_s) })
}
