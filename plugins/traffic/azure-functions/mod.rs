//! `azure-functions`: functions of Azure.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_plugin::cloud::Cloud;
use sigma_plugin::credentials::Credential;
use sigma_plugin::outbound::Call;
use sigma_plugin::{Configuration, Context, Descriptor, Env, OwnedField, Phase, PhaseSet, Plugin, Step};
use sigma_schema::Confidential;
use sigma_schema::described::schema_of;

use crate::shared::platform::{Called, Credentials, Function, MachineIdentity};
use sigma_plugin_kit::service::warnings;

/// The plugin.
pub(crate) static AZURE_FUNCTIONS: Descriptor = Descriptor {
    name: "azure-functions",
    priority: -1900,
    example: include_str!("example.md"),
    credentials: Some(|_| vec![Credential::field(KEY)]),
    phases: PhaseSet::of(&[Phase::Access]),
    metadata_schema: Some(schema_of::<Metadata>),
    upstreams: Some(Function::upstreams),
    owned_fields: Some(|_| [KEY, CLIENT, "Authorization"].map(OwnedField::shared).into()),
    warnings: Some(|_, conf| warnings(conf, &["function_uri"], "the function")),
    build: |build| {
        let Config { function, authorization } = build.config()?;
        let keys = match authorization {
            Some(Authorization { apikey, clientid, machine_identity }) => {
                let machine = machine_identity.then(|| MachineIdentity::new(Cloud::Azure, &function, build));
                Keys { key: apikey, client: clientid, machine: machine.transpose()? }
            }
            None if build.metadata.is_null() => Keys::default(),
            None => {
                let metadata = Metadata::deserialize(build.metadata).map_err(|error| error.to_string())?;
                let client = metadata.master_clientid.reveal().to_owned();
                Keys { key: Some(metadata.master_apikey), client: Some(client), machine: None }
            }
        };
        Ok(Arc::new(AzureFunctions(function.with(keys, build))))
    },
    ..Descriptor::of::<Config>()
};

/// Forwards requests to an Azure function.
///
/// The function gets method, arguments, fields and body of the client. If the route's path ends in `*`, the matched
/// part is appended to the path of `function_uri`. A request without `X-Functions-Key` and `X-Functions-ClientId`
/// gets both from `authorization`, or else from the plugin metadata. The client gets 503 without a response, for a
/// response that is too large, and after `timeout`. A request that is too large gets 400.
#[derive(Deserialize, JsonSchema)]
struct Config {
    #[serde(flatten)]
    function: Function,
    /// The credentials for the function. Default: those in the plugin metadata.
    authorization: Option<Authorization>,
}

impl Configuration for Config {}

#[derive(Deserialize, JsonSchema)]
struct Authorization {
    /// The key of the function: `X-Functions-Key`.
    apikey: Option<Confidential>,
    /// The client id of the key: `X-Functions-ClientId`.
    clientid: Option<String>,
    /// Whether requests carry a token of the gateway's machine in `Authorization`. `cloud_identity.azure` in the
    /// settings of the gateway must name the host of the function. Without a valid token the client gets 503.
    #[schemars(extend("default" = false, "own_default" = true))]
    machine_identity: bool,
}

/// Keys of functions without credentials in their configuration.
#[derive(Deserialize, JsonSchema)]
struct Metadata {
    /// The key of the application: `X-Functions-Key`.
    #[schemars(extend("default" = ""))]
    master_apikey: Confidential,
    /// The client id of the key: `X-Functions-ClientId`.
    #[schemars(extend("default" = ""))]
    master_clientid: Confidential,
}

impl Configuration for Metadata {}

#[derive(Default)]
struct Keys {
    key: Option<Confidential>,
    client: Option<String>,
    machine: Option<MachineIdentity>,
}

const KEY: &str = "x-functions-key";
const CLIENT: &str = "x-functions-clientid";

impl Credentials for Keys {
    fn add(&self, call: &mut Call, env: &Env<'_>) -> Result<(), String> {
        if let Some(machine) = &self.machine {
            let now_s = env.unix_time().as_secs();
            let token = machine.identities.token(Cloud::Azure, machine.recipient(), now_s);
            let value = format!("Bearer {}", token.map_err(|error| error.to_string())?.reveal());
            call.headers.replace("authorization", value.as_bytes());
        }
        if [KEY, CLIENT].iter().any(|name| call.headers.find(name.as_bytes()).is_some()) {
            return Ok(());
        }
        if let Some(key) = &self.key {
            call.headers.append(KEY, key.reveal().as_bytes());
        }
        if let Some(client) = &self.client {
            call.headers.append(CLIENT, client.as_bytes());
        }
        Ok(())
    }
}

struct AzureFunctions(Arc<Called<Keys>>);

impl Plugin for AzureFunctions {
    fn access(&self, _: &mut Context, _: &Env<'_>) -> Step {
        self.0.respond()
    }
}
