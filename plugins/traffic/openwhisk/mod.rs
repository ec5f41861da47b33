//! `openwhisk`: actions of Apache OpenWhisk.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_http::{HeaderId, Headers, Method};
use sigma_plugin::descriptor::InlineUpstream;
use sigma_plugin::outbound::{Call, Service, ServiceResponse};
use sigma_plugin::step::BodyRead;
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Step};
use sigma_schema::Confidential;

use crate::shared::platform::{Sizes, basic, unreachable_function};
use sigma_plugin_kit::fields::{frames, is_name};
use sigma_plugin_kit::json_body;
use sigma_plugin_kit::service::{Keepalive, warnings};
use sigma_plugin_kit::sigv4;

/// The plugin.
pub(crate) static OPENWHISK: Descriptor = Descriptor {
    name: "openwhisk",
    priority: -1901,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    upstreams: Some(|conf| Config::deserialize(conf).iter().map(Config::upstream).collect()),
    warnings: Some(|_, conf| warnings(conf, &["api_host"], "the platform")),
    build: |build| Ok(Arc::new(OpenWhisk(Arc::new(Action::new(build)?)))),
    ..Descriptor::of::<Config>()
};

/// The name of the platform among the plugin's upstreams.
const PLATFORM: &str = "platform";

/// Most values in the response of an action.
const MOST_VALUES: usize = 250_000;

/// Forwards requests to an Apache OpenWhisk action.
///
/// The action gets only the client's body. Its response is JSON: in an object `statusCode` is the status, `headers`
/// are fields and `body` is the body; without `body` the whole JSON is the body. The client gets 503 without a
/// response, for one that is not JSON or too large, and after `timeout`. A request that is too large gets 413.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// The URL of the platform, with `http` or `https` and without a slash at its end.
    api_host: Service,
    /// User and password, separated by `:`.
    service_token: Confidential,
    /// The namespace of the action.
    #[schemars(length(max = 256), regex(pattern = r"\A([\w]|[\w][\w@ .-]*[\w@.-]+)\z"))]
    namespace: String,
    /// The action.
    #[schemars(length(max = 256), regex(pattern = r"\A([\w]|[\w][\w@ .-]*[\w@.-]+)\z"))]
    action: String,
    /// The package of the action.
    #[schemars(length(max = 256), regex(pattern = r"\A([\w]|[\w][\w@ .-]*[\w@.-]+)\z"))]
    package: Option<String>,
    /// Whether the platform returns only the result of the action, without the record of its run.
    #[schemars(extend("default" = true))]
    result: bool,
    /// Timeout of the call and of the action in milliseconds.
    #[schemars(range(min = 1, max = 60_000), extend("default" = 3000))]
    timeout: u64,
    /// Whether the platform's certificate is verified.
    #[schemars(extend("default" = true))]
    ssl_verify: bool,
    #[serde(flatten)]
    keepalive: Keepalive,
    #[serde(flatten)]
    sizes: Sizes,
}

impl Configuration for Config {}

impl Config {
    fn upstream(&self) -> InlineUpstream {
        let upstream = self.keepalive.upstream(&self.api_host, self.ssl_verify, self.timeout);
        InlineUpstream { name: PLATFORM.to_owned(), upstream }
    }

    /// Path and query of the action.
    fn target(&self) -> String {
        let base = self.api_host.target.split('?').next().unwrap_or_default().trim_end_matches('/');
        let name = |text: &str| sigv4::encoded(text.as_bytes(), false);
        let package = self.package.as_deref().map(|package| name(package) + "/").unwrap_or_default();
        let (namespace, action) = (name(&self.namespace), name(&self.action));
        let (result, timeout) = (self.result, self.timeout);
        format!(
            "{base}/api/v1/namespaces/{namespace}/actions/{package}{action}?blocking=true&result={result}&timeout={timeout}"
        )
    }
}

/// What is called.
struct Action {
    config: Config,
    upstream: Box<str>,
    target: String,
    credentials: String,
}

impl Action {
    fn new(build: &Build<'_>) -> Result<Action, String> {
        let config: Config = build.config()?;
        let upstream = build.upstream_key(PLATFORM).into();
        Ok(Action { upstream, target: config.target(), credentials: basic(&config.service_token), config })
    }

    fn ask(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let mut headers = Headers::default();
        headers.set(HeaderId::Authorization, self.credentials.as_bytes());
        headers.set(HeaderId::ContentType, b"application/json");
        let call = Call {
            upstream: self.upstream.clone(),
            method: Method::Post,
            target: self.target.clone().into_bytes(),
            host: self.config.api_host.host.clone(),
            headers,
            passes: ctx.passes(),
            body: Some(ctx.body.take().unwrap_or_default()),
            timeout_ms: self.config.timeout,
            limit: self.config.sizes.max_resp_body_size,
        };
        Step::wait(env.outbound.call(call), |answer, _, _| match answer {
            Ok(answer) => reply(answer).into(),
            Err(error) => unreachable_function(&error),
        })
    }
}

/// Returns the client's response to an action's response.
fn reply(answer: ServiceResponse) -> Reply {
    let wrong = |reason| Reply::new(503).because(reason);
    let Ok(said) = json_body::read(&answer.body, MOST_VALUES) else {
        return wrong("the action's response is not JSON");
    };
    let status = match said.get("statusCode") {
        None | Some(Value::Null) => Some(answer.status),
        Some(Value::String(text)) => text.parse().ok(),
        Some(code) => code.as_u64().and_then(|code| code.try_into().ok()),
    };
    let Some(status) = status.filter(|status| (200..=599).contains(status)) else {
        return wrong("the action's status is not between 200 and 599");
    };
    let mut reply = Reply::new(status);
    reply.is_passed_on = true;
    let mut reply = match said.get("body") {
        None | Some(Value::Null) => reply.text(answer.body),
        Some(Value::String(text)) => reply.text(text.clone()),
        Some(body) => reply.json(body),
    };
    let fields = said.get("headers").and_then(Value::as_object);
    for (name, value) in fields.into_iter().flatten().filter(|(name, _)| is_name(name) && !frames(name)) {
        let values = match value {
            Value::Array(values) => &values[..],
            one => std::slice::from_ref(one),
        };
        for value in values {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            reply = reply.header(name.clone(), text);
        }
    }
    reply
}

struct OpenWhisk(Arc<Action>);

impl Plugin for OpenWhisk {
    fn access(&self, _: &mut Context, _: &Env<'_>) -> Step {
        let action = Arc::clone(&self.0);
        let then = move |ctx: &mut Context, env: &Env<'_>, read: BodyRead| match read {
            BodyRead::Whole => action.ask(ctx, env),
            BodyRead::TooLarge => Reply::new(413).because("the body exceeds max_req_body_size").into(),
        };
        Step::ReadBody { limit: self.0.config.sizes.max_req_body_size, then: Box::new(then) }
    }
}
