//! Settings of the machine's identity at clouds.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A host: a name, an address (IPv6 in brackets), or `*.` and the end of names with a dot in it.
const HOST: &str = r"^(\*\.[a-z0-9_-]+(\.[a-z0-9_-]+)+|[a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:]+\])$";

/// An address with `https`, or with `http`.
const URL: &str = r"^https?://[A-Za-z0-9._\[\]:-]+(/[A-Za-z0-9._/-]*)?$";

/// The identity that a cloud gives to this machine, for plugins and secret managers with `machine_identity: true`,
/// instead of keys in the configuration. Without these settings nothing uses it. A resource gets no credential: the
/// gateway adds it to requests to the hosts that are named here, over verified TLS. Read once, at the start.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CloudIdentity {
    /// Amazon Web Services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aws: Option<AwsIdentity>,
    /// Google Cloud.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gcp: Option<GcpIdentity>,
    /// Microsoft Azure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub azure: Option<AzureIdentity>,
}

/// The identity at AWS. The first source with an identity is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AwsIdentity {
    /// Hosts that may get requests signed with this identity, such as `secretsmanager.eu-west-1.amazonaws.com` or
    /// `*.lambda-url.eu-west-1.on.aws`. Each author of a resource can call them with the rights of the machine.
    #[schemars(length(min = 1, max = 64), inner(regex(pattern = HOST)))]
    pub hosts: Vec<String>,
    /// Sources, in their order.
    #[serde(default = "aws_sources")]
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    pub sources: Vec<AwsSource>,
    /// The address of the Security Token Service. Unset: the address for the region in `AWS_REGION`, or the global address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = URL))]
    pub sts_endpoint: Option<String>,
    /// The address that `AWS_CONTAINER_CREDENTIALS_RELATIVE_URI` is relative to.
    #[serde(default = "container_endpoint")]
    #[schemars(regex(pattern = URL))]
    pub container_endpoint: String,
    /// The address of the instance metadata service.
    #[serde(default = "instance_endpoint")]
    #[schemars(regex(pattern = URL))]
    pub instance_endpoint: String,
    /// Timeout of a request in milliseconds.
    #[serde(default = "timeout_ms")]
    #[schemars(range(min = 1, max = 60_000))]
    pub timeout_ms: u32,
}

/// A source of the identity at AWS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AwsSource {
    /// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`.
    Environment,
    /// A role for the token in `AWS_WEB_IDENTITY_TOKEN_FILE` (IAM roles for service accounts of EKS).
    WebIdentity,
    /// The credentials endpoint of containers (ECS, EKS Pod Identity): `AWS_CONTAINER_CREDENTIALS_FULL_URI` or
    /// `AWS_CONTAINER_CREDENTIALS_RELATIVE_URI`.
    Container,
    /// The instance metadata service of EC2, version 2.
    Instance,
}

/// The identity at Google Cloud: a token from the metadata server, or from workload identity federation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GcpIdentity {
    /// Hosts that may get the token. Each author of a resource can call them with the rights of the machine.
    #[schemars(length(min = 1, max = 64), inner(regex(pattern = HOST)))]
    pub hosts: Vec<String>,
    /// A file of workload identity federation (`"type": "external_account"`) whose token is in a file. Unset: the
    /// metadata server is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials_file: Option<PathBuf>,
    /// The address of the metadata server.
    #[schemars(regex(pattern = URL))]
    pub metadata_endpoint: String,
    /// The service account, by its e-mail address or `default`.
    #[schemars(regex(pattern = r"^[A-Za-z0-9@._-]{1,256}$"))]
    pub service_account: String,
    /// Scopes of the token.
    #[schemars(length(min = 1, max = 64), inner(regex(pattern = r"^[!-~]{1,256}$")))]
    pub scopes: Vec<String>,
    /// Timeout of a request in milliseconds.
    #[schemars(range(min = 1, max = 60_000))]
    pub timeout_ms: u32,
}

impl Default for GcpIdentity {
    fn default() -> Self {
        GcpIdentity {
            hosts: vec!["*.googleapis.com".to_owned()],
            credentials_file: None,
            metadata_endpoint: "http://metadata.google.internal".to_owned(),
            service_account: "default".to_owned(),
            scopes: vec!["https://www.googleapis.com/auth/cloud-platform".to_owned()],
            timeout_ms: timeout_ms(),
        }
    }
}

/// The identity at Azure: workload identity if `AZURE_FEDERATED_TOKEN_FILE`, `AZURE_TENANT_ID` and `AZURE_CLIENT_ID` are
/// set, else the managed identity of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AzureIdentity {
    /// The tokens, each for one resource.
    #[schemars(length(min = 1, max = 16))]
    pub tokens: Vec<AzureToken>,
    /// The client id of the identity. Unset: `AZURE_CLIENT_ID`, else the only identity of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9-]{1,64}$"))]
    pub client_id: Option<String>,
    /// The address of the instance metadata service.
    #[serde(default = "instance_endpoint")]
    #[schemars(regex(pattern = URL))]
    pub metadata_endpoint: String,
    /// The authority for workload identity. Unset: `AZURE_AUTHORITY_HOST`, else `https://login.microsoftonline.com`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = URL))]
    pub authority: Option<String>,
    /// Timeout of a request in milliseconds.
    #[serde(default = "timeout_ms")]
    #[schemars(range(min = 1, max = 60_000))]
    pub timeout_ms: u32,
}

/// A token of Azure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AzureToken {
    /// The resource that the token is for, such as `api://my-function` or `https://vault.azure.net`.
    #[schemars(regex(pattern = r"^[!-~]{1,256}$"))]
    pub resource: String,
    /// Hosts that may get the token. Do not name hosts that others can register, such as `*.azurewebsites.net`.
    #[schemars(length(min = 1, max = 64), inner(regex(pattern = HOST)))]
    pub hosts: Vec<String>,
}

fn aws_sources() -> Vec<AwsSource> {
    vec![AwsSource::Environment, AwsSource::WebIdentity, AwsSource::Container, AwsSource::Instance]
}

fn container_endpoint() -> String {
    "http://169.254.170.2".to_owned()
}

fn instance_endpoint() -> String {
    "http://169.254.169.254".to_owned()
}

fn timeout_ms() -> u32 {
    2_000
}
