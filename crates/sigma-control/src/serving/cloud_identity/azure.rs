//! The identity at Azure: workload identity, or the managed identity of the machine.

use reqwest::Method;
use sigma_config::cloud_identity::AzureIdentity;
use sigma_plugin::cloud::Cloud;
use sigma_schema::Confidential;

use super::caller::{Caller, CloudRequest, at, file};
use super::gcp::token_of;
use super::{Credential, Environment, Fetching, Service};

/// The public cloud.
const AUTHORITY: &str = "https://login.microsoftonline.com";

/// The version of the metadata service.
const VERSION: &str = "2018-02-01";

/// The source of the token for one resource.
pub(super) struct Azure {
    pub(super) settings: AzureIdentity,
    pub(super) resource: String,
    pub(super) caller: Caller,
    pub(super) environment: Environment,
}

impl Service<Confidential> for Azure {
    const CLOUD: Cloud = Cloud::Azure;

    fn fetch(&self) -> Fetching<'_, Confidential> {
        Box::pin(async move {
            match self.variable("AZURE_FEDERATED_TOKEN_FILE") {
                Some(path) => self.federated(&path).await,
                None => self.managed().await,
            }
        })
    }
}

impl Azure {
    fn variable(&self, name: &str) -> Option<String> {
        (self.environment)(name).filter(|text| !text.is_empty())
    }

    fn client_id(&self) -> Option<String> {
        self.settings.client_id.clone().or_else(|| self.variable("AZURE_CLIENT_ID"))
    }

    async fn federated(&self, path: &str) -> Result<Credential<Confidential>, String> {
        let tenant = self.variable("AZURE_TENANT_ID").filter(|tenant| is_tenant(tenant));
        let tenant =
            tenant.ok_or("`AZURE_FEDERATED_TOKEN_FILE` is set, but `AZURE_TENANT_ID` is no tenant")?;
        let client = self.client_id();
        let client = client.ok_or("set `AZURE_CLIENT_ID` or `cloud_identity.azure.client_id`")?;
        let authority = self.settings.authority.clone().or_else(|| self.variable("AZURE_AUTHORITY_HOST"));
        let assertion = file(path.as_ref()).await?;
        let form = form_urlencoded::Serializer::new(String::new())
            .append_pair("grant_type", "client_credentials")
            .append_pair("client_id", &client)
            .append_pair("scope", &format!("{}/.default", self.resource))
            .append_pair("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
            .append_pair("client_assertion", &assertion)
            .finish();
        let base = authority.as_deref().unwrap_or(AUTHORITY);
        let question = CloudRequest {
            method: Method::POST,
            url: at(base, &format!("/{tenant}/oauth2/v2.0/token"))?,
            fields: &[],
            body: Some(("application/x-www-form-urlencoded", form)),
        };
        token_of(&self.caller.ask(question).await?)
    }

    async fn managed(&self) -> Result<Credential<Confidential>, String> {
        let mut url = at(&self.settings.metadata_endpoint, "/metadata/identity/oauth2/token")?;
        url.query_pairs_mut().append_pair("api-version", VERSION).append_pair("resource", &self.resource);
        if let Some(client) = self.client_id() {
            url.query_pairs_mut().append_pair("client_id", &client);
        }
        token_of(&self.caller.ask(CloudRequest::get(url, &[("metadata", "true")])).await?)
    }
}

/// A tenant becomes part of a path.
fn is_tenant(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte)) && !text.starts_with('.')
}
