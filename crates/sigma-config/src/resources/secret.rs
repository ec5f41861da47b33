//! Configurations of secret managers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::described;
use super::shared::UnixTime;
use sigma_schema::Confidential;
use sigma_schema::described::without_defaults;
use sigma_schema::forms::URL_PATTERN;

/// The configuration of a secret manager. The first part of its id names the manager.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(transform = without_defaults("id"))]
pub struct Secret {
    /// The id: `<manager>/<id>`, for example `vault/1`; required.
    #[schemars(with = "String")]
    pub id: Box<str>,
    /// Creation time in Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_time: Option<UnixTime>,
    /// Time of the last change in Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_time: Option<UnixTime>,
    /// vault: its address, for example `http://127.0.0.1:8200`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("pattern" = URL_PATTERN))]
    pub uri: Option<Box<str>>,
    /// vault: the path prefix of every key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub prefix: Option<Box<str>>,
    /// vault: the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<Confidential>,
    /// vault: the namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub namespace: Option<Box<str>>,
    /// aws: the access key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub access_key_id: Option<Box<str>>,
    /// aws: the secret of the access key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_access_key: Option<Confidential>,
    /// aws: the token of a temporary access key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_token: Option<Confidential>,
    /// aws: the region.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("default" = "us-east-1"))]
    pub region: Option<Box<str>>,
    /// aws: an address instead of the region's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("pattern" = URL_PATTERN))]
    pub endpoint_url: Option<Box<str>>,
    /// gcp: the account; or use `auth_file`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth_config: Option<Box<GcpAccount>>,
    /// gcp: the file with the account.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub auth_file: Option<Box<str>>,
    /// aws and gcp: use the identity of the machine, also if there are keys. `cloud_identity` in the settings of each gateway must name the host
    /// of the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = [true]))]
    pub machine_identity: Option<bool>,
    /// gcp: the project, with `machine_identity`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub project_id: Option<Box<str>>,
    /// gcp: the URL for secrets, with `machine_identity`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("pattern" = URL_PATTERN, "default" = ENTRIES_URI))]
    pub entries_uri: Option<Box<str>>,
    /// gcp: whether the certificate must be valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = true))]
    pub ssl_verify: Option<bool>,
}

/// A service account of Google Cloud.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GcpAccount {
    /// The e-mail address of the account.
    pub client_email: String,
    /// The private key of the account, in PEM.
    pub private_key: Confidential,
    /// The project of the account.
    pub project_id: String,
    /// The URL of the token endpoint.
    #[serde(default = "default_token_uri")]
    pub token_uri: String,
    /// The scopes of tokens.
    #[serde(default = "default_scope")]
    pub scope: Vec<String>,
    /// URL for secrets.
    #[serde(default = "default_entries_uri")]
    pub entries_uri: String,
}

impl GcpAccount {
    /// The address of Secret Manager.
    pub const ENTRIES_URI: &str = ENTRIES_URI;
}

const TOKEN_URI: &str = "https://oauth2.googleapis.com/token";
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
const ENTRIES_URI: &str = "https://secretmanager.googleapis.com/v1";

fn default_token_uri() -> String {
    TOKEN_URI.to_owned()
}

fn default_scope() -> Vec<String> {
    vec![SCOPE.to_owned()]
}

fn default_entries_uri() -> String {
    ENTRIES_URI.to_owned()
}

/// A kind of secret manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SecretProvider {
    /// HashiCorp Vault.
    Vault,
    /// AWS Secrets Manager.
    Aws,
    /// Google Cloud Secret Manager.
    Gcp,
}

impl SecretProvider {
    /// All managers.
    pub const ALL: [SecretProvider; 3] = [SecretProvider::Vault, SecretProvider::Aws, SecretProvider::Gcp];

    /// Returns its name in ids and references.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SecretProvider::Vault => "vault",
            SecretProvider::Aws => "aws",
            SecretProvider::Gcp => "gcp",
        }
    }

    /// Returns the manager with this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<SecretProvider> {
        SecretProvider::ALL.into_iter().find(|manager| manager.name() == name)
    }
}

/// Returns the schema of one manager's configuration: its fields and the required ones.
pub(super) fn schema(manager: SecretProvider) -> Value {
    let whole = described::<Secret>();
    let (names, keyword, wanted): (&[&str], _, _) = match manager {
        SecretProvider::Vault => {
            (&["uri", "prefix", "token", "namespace"], "required", json!(["uri", "prefix", "token"]))
        }
        SecretProvider::Aws => (
            &[
                "access_key_id",
                "secret_access_key",
                "session_token",
                "machine_identity",
                "region",
                "endpoint_url",
            ],
            "anyOf",
            json!([{ "required": ["access_key_id", "secret_access_key"] }, { "required": ["machine_identity"] }]),
        ),
        SecretProvider::Gcp => (
            &["auth_config", "auth_file", "machine_identity", "project_id", "entries_uri", "ssl_verify"],
            "oneOf",
            json!([
                { "required": ["auth_config"] },
                { "required": ["auth_file"] },
                { "required": ["machine_identity", "project_id"] },
            ]),
        ),
    };
    let every = ["id", "create_time", "update_time"];
    let named = |name: &&str| Some(((*name).to_owned(), whole.get("properties")?.get(*name)?.clone()));
    let properties: Map<String, Value> = names.iter().chain(&every).filter_map(named).collect();
    json!({ "type": "object", "properties": properties, keyword: wanted })
}
