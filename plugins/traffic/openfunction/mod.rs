//! `openfunction`: functions of OpenFunction.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_plugin::outbound::Call;
use sigma_plugin::{Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Step};
use sigma_schema::Confidential;

use crate::shared::platform::{Called, Credentials, Function, basic};
use sigma_plugin_kit::service::warnings;

/// The plugin.
pub(crate) static OPENFUNCTION: Descriptor = Descriptor {
    name: "openfunction",
    priority: -1902,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    upstreams: Some(Function::upstreams),
    warnings: Some(|_, conf| warnings(conf, &["function_uri"], "the function")),
    build: |build| {
        let Config { function, authorization } = build.config()?;
        let token = authorization.and_then(|authorization| authorization.service_token);
        let token = Token(token.as_ref().map(basic));
        Ok(Arc::new(OpenFunction(function.with(token, build))))
    },
    ..Descriptor::of::<Config>()
};

/// Forwards requests to an OpenFunction function.
///
/// The function gets method, arguments, fields and body of the client. If the route's path ends in `*`, the matched
/// part is appended to the path of `function_uri`. `service_token` replaces the client's `Authorization`. The client
/// gets 503 without a response, for a response that is too large, and after `timeout`. A request that is too large
/// gets 400.
#[derive(Deserialize, JsonSchema)]
struct Config {
    #[serde(flatten)]
    function: Function,
    /// The credentials for the function.
    authorization: Option<Authorization>,
}

impl Configuration for Config {}

#[derive(Deserialize, JsonSchema)]
struct Authorization {
    /// User and password, separated by `:`.
    service_token: Option<Confidential>,
}

/// The value of `Authorization`.
struct Token(Option<String>);

impl Credentials for Token {
    fn add(&self, call: &mut Call, _: &Env<'_>) -> Result<(), String> {
        if let Some(token) = &self.0 {
            call.headers.replace("authorization", token.as_bytes());
        }
        Ok(())
    }
}

struct OpenFunction(Arc<Called<Token>>);

impl Plugin for OpenFunction {
    fn access(&self, _: &mut Context, _: &Env<'_>) -> Step {
        self.0.respond()
    }
}
