//! Requests and responses of functions that have a URL of their own.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_http::{HeaderId, Headers, Method};
use sigma_plugin::cloud::{Cloud, CloudIdentities, Recipient};
use sigma_plugin::descriptor::InlineUpstream;
use sigma_plugin::outbound::{Call, CallError, Service, ServiceResponse};
use sigma_plugin::step::BodyRead;
use sigma_plugin::variables::{pairs, percent_encode_path};
use sigma_plugin::{Build, Context, Env, Reply, Step};
use sigma_schema::Confidential;

use sigma_plugin_kit::fields::frames;
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::service::Keepalive;
use sigma_plugin_kit::sigv4;

/// The name of the function among the plugin's upstreams.
const FUNCTION: &str = "function";

/// The variable with the part of the path that the route's `*` matches.
const REST: &str = ":ext";

/// Most arguments of a client that a function gets.
const MOST_ARGUMENTS: usize = 100;

/// User and password as `Authorization` has them.
pub(crate) fn basic(token: &Confidential) -> String {
    format!("Basic {}", STANDARD.encode(token.reveal()))
}

/// The function, and the call of it.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct Function {
    /// The URL of the function, with `http` or `https`; its query is dropped.
    function_uri: Service,
    /// Timeout of the call in milliseconds.
    #[schemars(range(min = 100), extend("default" = 3000))]
    timeout: u64,
    /// Whether the function's certificate is verified.
    #[schemars(extend("default" = true))]
    ssl_verify: bool,
    #[serde(flatten)]
    keepalive: Keepalive,
    #[serde(flatten)]
    sizes: Sizes,
}

/// The memory limits of one call.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct Sizes {
    /// Largest body of a request, in bytes; it is held in memory.
    #[schemars(range(min = 1), extend("default" = 67_108_864))]
    pub(crate) max_req_body_size: usize,
    /// Largest response body of the function in bytes; it is held in memory.
    #[schemars(range(min = 1), extend("default" = 67_108_864, "own_default" = true))]
    pub(crate) max_resp_body_size: usize,
}

/// Says of a request to a function who it is from.
pub(crate) trait Credentials: Send + Sync + 'static {
    /// Adds it.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if there is no credential now; then the function is not called.
    fn add(&self, call: &mut Call, env: &Env<'_>) -> Result<(), String>;
}

/// The identity of the machine, for one function.
pub(crate) struct MachineIdentity {
    pub(crate) identities: Arc<CloudIdentities>,
    host: Box<str>,
    is_verified: bool,
}

impl MachineIdentity {
    /// # Errors
    /// Returns an error, which is a sentence, if the settings of the gateway do not allow it for this function.
    pub(crate) fn new(
        cloud: Cloud,
        function: &Function,
        build: &Build<'_>,
    ) -> Result<MachineIdentity, String> {
        let identities = build.node.part(CloudIdentities::default);
        let Recipient { host, is_verified } = function.recipient();
        identities.check(cloud, Recipient { host, is_verified })?;
        Ok(MachineIdentity { identities, host: host.into(), is_verified })
    }

    /// The function.
    pub(crate) fn recipient(&self) -> Recipient<'_> {
        Recipient { host: &self.host, is_verified: self.is_verified }
    }
}

/// A function that is ready to be called.
pub(crate) struct Called<C> {
    function: Function,
    credentials: C,
    upstream: Box<str>,
}

impl Function {
    /// The function as an upstream.
    fn upstream(&self) -> InlineUpstream {
        let upstream = self.keepalive.upstream(&self.function_uri, self.ssl_verify, self.timeout);
        InlineUpstream { name: FUNCTION.to_owned(), upstream }
    }

    /// That of a configuration, for [`sigma_plugin::Descriptor::upstreams`].
    pub(crate) fn upstreams(conf: &Value) -> Vec<InlineUpstream> {
        Function::deserialize(conf).iter().map(Function::upstream).collect()
    }

    /// Ready to be called with these credentials.
    pub(crate) fn with<C: Credentials>(self, credentials: C, build: &Build<'_>) -> Arc<Called<C>> {
        Arc::new(Called { function: self, credentials, upstream: build.upstream_key(FUNCTION).into() })
    }

    /// The function as the recipient of a credential.
    fn recipient(&self) -> Recipient<'_> {
        let is_verified = &*self.function_uri.scheme == "https" && self.ssl_verify;
        Recipient { host: &self.function_uri.node, is_verified }
    }

    /// Path and query of a call.
    fn target(&self, ctx: &Context) -> Vec<u8> {
        let path = self.function_uri.target.split('?').next().unwrap_or_default();
        let mut target = path.as_bytes().to_vec();
        if let Some(rest) = ctx.params.get(REST) {
            if !path.ends_with('/') && rest.first() != Some(&b'/') {
                target.push(b'/');
            }
            percent_encode_path(rest, &mut target);
        }
        let mut mark = b'?';
        for (name, value) in pairs(ctx.outgoing_query().unwrap_or_default()).take(MOST_ARGUMENTS) {
            target.push(mark);
            mark = b'&';
            target.extend_from_slice(sigv4::encoded(&name, false).as_bytes());
            if let Some(value) = value {
                target.push(b'=');
                target.extend_from_slice(sigv4::encoded(&value, false).as_bytes());
            }
        }
        target
    }
}

/// Returns the fields of a client's request that a function gets: all but fields of the message and of hops.
fn fields(request: &Headers) -> Headers {
    let mut fields = Headers::default();
    for (id, name, value) in request.fields() {
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        let is_of_way = matches!(id, HeaderId::Host | HeaderId::CdnLoop | HeaderId::Expect | HeaderId::Te);
        if !is_of_way && !frames(&name) {
            fields.append(&name, value);
        }
    }
    fields
}

impl<C: Credentials> Called<C> {
    /// Responds to a request with the function's response.
    pub(crate) fn respond(self: &Arc<Self>) -> Step {
        let called = Arc::clone(self);
        let then = move |ctx: &mut Context, env: &Env<'_>, read: BodyRead| match read {
            BodyRead::Whole => called.ask(ctx, env),
            BodyRead::TooLarge => Reply::new(400).because("the body exceeds max_req_body_size").into(),
        };
        Step::ReadBody { limit: self.function.sizes.max_req_body_size, then: Box::new(then) }
    }

    fn ask(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let method = ctx.request.method;
        if matches!(method, Method::Other | Method::Connect) {
            return Reply::new(501).because("functions do not support this method").into();
        }
        let function = &self.function;
        let has_body = matches!(method, Method::Post | Method::Put | Method::Patch);
        let mut call = Call {
            upstream: self.upstream.clone(),
            method,
            target: function.target(ctx),
            // Without the port.
            host: function.function_uri.node.clone(),
            headers: fields(&ctx.request.headers),
            passes: ctx.passes(),
            body: ctx.body.take().filter(|body| has_body || !body.is_empty()),
            timeout_ms: function.timeout,
            limit: function.sizes.max_resp_body_size,
        };
        if let Err(reason) = self.credentials.add(&mut call, env) {
            return unreachable_function(&CallError(reason));
        }
        Step::wait(env.outbound.call(call), |answer, _, _| match answer {
            Ok(answer) => reply(answer).into(),
            Err(error) => unreachable_function(&error),
        })
    }
}

/// The response where the platform gives none.
pub(crate) fn unreachable_function(error: &CallError) -> Step {
    static COMPLAINT: LogThrottle = LogThrottle::new();
    if let Some(left_out) = COMPLAINT.due() {
        tracing::error!(left_out, "failed to process a function: {error}");
    }
    Reply::new(503).because("the function did not respond").into()
}

/// The response of a function as the client gets it.
fn reply(answer: ServiceResponse) -> Reply {
    let length = answer.headers.get(HeaderId::ContentLength);
    let length = length.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
    let mut reply = Reply::new(answer.status).text(answer.body);
    (reply.is_passed_on, reply.unsent_length) = (true, length);
    for (name, value) in answer.headers.iter() {
        let name = String::from_utf8_lossy(name).into_owned();
        if !frames(&name) {
            reply = reply.header(name, value);
        }
    }
    reply
}
