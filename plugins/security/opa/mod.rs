//! `opa`: authorization by an Open Policy Agent.

mod documents;
#[cfg(test)]
mod tests;

use std::rc::Rc;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sigma_http::{Headers, Method};
use sigma_plugin::descriptor::InlineUpstream;
use sigma_plugin::outbound::{Call, CallError, Service, ServiceResponse};
use sigma_plugin::owned::texts;
use sigma_plugin::step::BodyRead;
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::variables::pairs;
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, OwnedField, Phase, PhaseSet, Plugin, Reply, Slot, Step,
};
use sigma_schema::described::schema_of;
use sigma_schema::expr::{VarName, VarValue, Variables};

use crate::shared::inquiry::{self, Cache, Inquiry, Memory, Outcome, bytes_of};
use crate::shared::user_digest::UserDigest;
use documents::Documents;
use sigma_plugin_kit::decision_service::DecisionService;
use sigma_plugin_kit::decisions::{Bound, KeyOf};
use sigma_plugin_kit::fields::{frames, is_name};
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::service::{Keepalive, warnings};

/// The plugin.
pub(crate) static OPA: Descriptor = Descriptor {
    name: "opa",
    priority: 2001,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    guards: true,
    warnings: Some(|_, conf| warnings(conf, &["host"], "the agent")),
    variables: &[VariableField::guard("cache.key.*", VariableForm::Template)],
    upstreams: Some(|conf| upstream(conf).into_iter().collect()),
    attributes: Some(schema_of::<Bound>),
    identifies: true,
    // The policy may judge the client's values there.
    owned_fields: Some(|conf| texts(conf, "send_headers_upstream").map(OwnedField::judged).collect()),
    build: |build| Ok(Arc::new(Opa::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// The name of the agent among the plugin's upstreams.
const AGENT: &str = "agent";

/// Most bytes of the agent's response: a page for a person, or a list of fields.
const ANSWER_BYTES: usize = 1 << 20;

/// Authorizes requests by an Open Policy Agent.
///
/// The agent gets the request as `input` at `/v1/data/POLICY`; the policy is a package with `allow`, and may have
/// `status_code`, `headers` and `reason` for a refusal. If the agent is unreachable, the client gets 403; without a
/// decision in the response, 503. The agent gets secrets of routes, services and consumers as `***`. It is an
/// upstream of the plugin: its name is resolved in advance, and connections are kept alive. A response of more than 1
/// MiB counts as no response.
///
/// With `cache` each worker stores decisions: at most 8192, or `plugin_attr.opa.worker_decisions`. Equal requests at
/// the same time cause one call. Without a `key` a decision applies to requests with the same input for the agent,
/// apart from the time. The input includes the client's port, and so its connection. Not stored are decisions of more
/// than 8 KiB, refusals that set a cookie or have a status other than 401, 403, 404 and 429, and failures.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// The agent's URL, with `http` or `https`.
    host: Service,
    /// The path of the policy: `example`, or `package/subpackage`.
    policy: String,
    /// Whether the agent's certificate is verified.
    #[schemars(extend("default" = true))]
    ssl_verify: bool,
    /// Timeout of the call in milliseconds.
    #[schemars(range(min = 1, max = 60000), extend("default" = 3000))]
    timeout: u64,
    #[serde(flatten)]
    keepalive: Keepalive,
    /// Whether the agent gets the route, with the plugins of its service and plugin config.
    #[schemars(extend("default" = false))]
    with_route: bool,
    /// Whether the agent gets the route's service.
    #[schemars(extend("default" = false))]
    with_service: bool,
    /// Whether the agent gets the consumer.
    #[schemars(extend("default" = false))]
    with_consumer: bool,
    /// Whether the agent gets the body, as text.
    #[schemars(extend("default" = false, "own_default" = true))]
    with_body: bool,
    /// Maximum bytes of a body in the call; a larger one gets 413.
    #[schemars(range(min = 1, max = 67_108_864), extend("default" = 1_048_576, "own_default" = true))]
    max_req_body_size: usize,
    /// Fields of the decision that the node gets. It never gets these fields from the client.
    #[schemars(length(min = 1))]
    send_headers_upstream: Option<Vec<String>>,
    /// Cache of decisions. Unset: the agent is called for each request.
    #[serde(default)]
    #[schemars(extend("own_default" = true))]
    cache: Option<Cache>,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        if self.host.target.contains('?') {
            return Err("host: it has a query".to_owned());
        }
        if self.policy.is_empty()
            || !self.policy.bytes().all(|b| b.is_ascii_graphic() && !b"?#%".contains(&b))
        {
            return Err("policy: write a path such as `example/rules`".to_owned());
        }
        if self.cache.is_some() && self.with_body {
            let hint = "remove with_body or cache";
            return Err(format!("cache: with the body, OPA must decide about each request; {hint}"));
        }
        let mut names = self.send_headers_upstream.iter().flatten();
        match names.find(|name| !is_name(name) || frames(name)) {
            Some(name) => Err(format!("send_headers_upstream: `{name}` cannot be set")),
            None => Ok(()),
        }
    }
}

/// The agent as an upstream.
fn upstream(conf: &Value) -> Option<InlineUpstream> {
    let config = Config::deserialize(conf).ok()?;
    let upstream = config.keepalive.upstream(&config.host, config.ssl_verify, config.timeout);
    Some(InlineUpstream { name: AGENT.to_owned(), upstream })
}

struct Opa(Arc<Agent>);

/// The queries to the agent, and the handling of its responses.
struct Agent {
    /// The key of the agent's upstream.
    upstream: Box<str>,
    target: Box<[u8]>,
    documents: Option<Documents>,
    /// The variables that the agent gets, with their names.
    variables: [(&'static str, VarName); 4],
    config: Config,
    memory: Option<Memory>,
}

impl Opa {
    fn new(build: &Build<'_>) -> Result<Opa, String> {
        let upstream = build.upstream_key(AGENT).into();
        let mut config: Config = build.config()?;
        let memory = config.cache.take().map(|cache| Memory::new(build, cache)).transpose()?;
        let shows = config.with_route || config.with_service || config.with_consumer;
        let target = format!(
            "{}/v1/data/{}",
            config.host.target.trim_end_matches('/'),
            config.policy.trim_matches('/')
        );
        let target = target.into_bytes().into();
        Ok(Opa(Arc::new(Agent {
            upstream,
            target,
            documents: shows.then(|| Documents::of(build)),
            variables: VARIABLES.map(|name| (name, VarName::parse(name))),
            config,
            memory,
        })))
    }
}

/// The variables that the agent gets.
const VARIABLES: [&str; 4] = ["server_addr", "server_port", "remote_addr", "remote_port"];

/// Text as JSON can have it.
fn text(bytes: &[u8]) -> Value {
    String::from_utf8_lossy(bytes).into()
}

/// Puts a value under a name; several become a list.
fn put(all: &mut Map<String, Value>, name: &[u8], value: Value) {
    let name = String::from_utf8_lossy(name).into_owned();
    match all.get_mut(&name) {
        Some(Value::Array(values)) => values.push(value),
        Some(one) => *one = Value::Array(vec![one.take(), value]),
        None => drop(all.insert(name, value)),
    }
}

/// The agent's input: JSON without the time, which goes between the two parts.
struct Input {
    before_time: String,
    behind_time: String,
}

impl Agent {
    /// The documents that the agent is shown, with their names.
    fn shown(
        &self,
        documents: &Documents,
        ctx: &Context,
        env: &Env<'_>,
    ) -> impl Iterator<Item = (&'static str, Rc<str>)> + use<> {
        let Config { with_route, with_service, with_consumer, .. } = self.config;
        let all = [
            ("route", with_route.then(|| documents.route(ctx, env)).flatten()),
            ("service", with_service.then(|| documents.service(ctx, env)).flatten()),
            ("consumer", with_consumer.then(|| documents.consumer(ctx, env)).flatten()),
        ];
        all.into_iter().filter_map(|(name, document)| Some((name, document?)))
    }

    fn input(&self, ctx: &Context, env: &Env<'_>, body: Option<&[u8]>) -> Input {
        let mut headers = Map::new();
        for (name, value) in ctx.request.headers.iter() {
            put(&mut headers, &name.to_ascii_lowercase(), text(value));
        }
        let mut query = Map::new();
        for (name, value) in pairs(ctx.request.query().unwrap_or_default()) {
            put(&mut query, &name, value.map_or(Value::Bool(true), |value| text(&value)));
        }
        let mut request = json!({
            "scheme": ctx.scheme(),
            "method": text(ctx.request.method_token()),
            "host": text(&ctx.host_name()),
            "port": ctx.client.local.map_or(0, |local| local.port()),
            "path": text(&ctx.uri),
            "target": text(ctx.request.path_and_query()),
            "headers": headers,
            "query": query,
        });
        if let Some(body) = body {
            request["body"] = text(body);
        }
        let mut before_time = format!("{{\"input\":{{\"type\":\"http\",\"request\":{request},\"var\":{{");
        for (name, variable) in &self.variables {
            let value = match ctx.get(variable) {
                Some(VarValue::Text(value)) => text(&value),
                _ => Value::Null,
            };
            before_time.push_str(&format!("\"{name}\":{value},"));
        }
        before_time.push_str("\"timestamp\":");
        let mut behind_time = "}".to_owned();
        if let Some(documents) = &self.documents {
            for (name, document) in self.shown(documents, ctx, env) {
                behind_time.push_str(&format!(",\"{name}\":{document}"));
            }
        }
        behind_time.push_str("}}");
        Input { before_time, behind_time }
    }
}

/// The agent's decision.
enum Verdict {
    /// The request passes; the values of each field of `send_headers_upstream`, in their order.
    Pass(Vec<Vec<Vec<u8>>>),
    /// The request gets a response.
    Refusal(Reply),
    /// There was no decision: the status for the client, and the reason.
    None(u16, String),
}

impl inquiry::Verdict for Verdict {
    fn outcome(&self) -> Outcome {
        match self {
            Verdict::Pass(_) => Outcome::Passes,
            Verdict::Refusal(reply) => Outcome::of(reply),
            Verdict::None(..) => Outcome::Alone,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Verdict::Pass(values) => values.iter().flatten().map(Vec::len).sum(),
            Verdict::Refusal(reply) => bytes_of(reply),
            Verdict::None(..) => 0,
        }
    }

    fn failure(&self) -> Option<&str> {
        match self {
            Verdict::None(_, error) => Some(error),
            _ => None,
        }
    }
}

impl Inquiry for Agent {
    type Body = Vec<u8>;
    type Verdict = Verdict;

    fn memory(&self) -> Option<&Memory> {
        self.memory.as_ref()
    }

    /// The sources of [`Agent::input`]: building the input costs more than a cached decision may.
    fn key_parts(&self, ctx: &Context, env: &Env<'_>, told: &mut KeyOf) {
        told.part(ctx.scheme().as_bytes());
        told.part(ctx.request.method_token());
        told.part(&ctx.host_name());
        told.part(&ctx.client.local.map_or(0, |local| local.port()).to_le_bytes());
        told.part(&ctx.uri);
        told.part(ctx.request.path_and_query());
        told.fields(&ctx.request.headers);
        told.part(ctx.request.query().unwrap_or_default());
        for (_, name) in &self.variables {
            match ctx.get(name) {
                Some(VarValue::Text(value)) => told.part(&value),
                _ => told.part(b""),
            }
        }
        if let Some(documents) = &self.documents {
            for (name, document) in self.shown(documents, ctx, env) {
                told.part(name.as_bytes());
                told.part(document.as_bytes());
            }
        }
    }

    fn call(&self, ctx: &Context, env: &Env<'_>, body: Option<Vec<u8>>) -> Call {
        let Input { before_time, behind_time } = self.input(ctx, env, body.as_deref());
        let mut headers = Headers::default();
        headers.append("Content-Type", b"application/json");
        Call {
            upstream: self.upstream.clone(),
            method: Method::Post,
            target: self.target.to_vec(),
            host: self.config.host.host.clone(),
            headers,
            passes: ctx.passes(),
            body: Some(format!("{before_time}{}{behind_time}", env.unix_time().as_secs()).into_bytes()),
            timeout_ms: self.config.timeout,
            limit: ANSWER_BYTES,
        }
    }

    fn verdict(&self, answer: Result<ServiceResponse, CallError>) -> Verdict {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return Verdict::None(403, error.0),
        };
        let told: Option<Value> = serde_json::from_slice(&answer.body).ok();
        let result = match told.as_ref().and_then(|told| told.get("result")) {
            Some(Value::Object(result)) => result,
            None | Some(Value::Null | Value::Bool(false)) => {
                let error = "its response has no `result`: does the policy exist, and is it a package?";
                return Verdict::None(503, error.to_owned());
            }
            Some(_) => {
                let error =
                    "`result` of its response is not an object: set `policy` to the package, not to a rule";
                return Verdict::None(500, error.to_owned());
            }
        };
        if matches!(result.get("allow"), None | Some(Value::Null | Value::Bool(false))) {
            return Verdict::Refusal(refusal(result));
        }
        let values_of = |name: &String| {
            let value = result.get("headers").and_then(|headers| headers.get(name));
            value.map(values).unwrap_or_default()
        };
        Verdict::Pass(self.config.send_headers_upstream.iter().flatten().map(values_of).collect())
    }

    fn service(&self) -> DecisionService {
        DecisionService {
            plugin: "opa",
            url: self.config.host.url_of(&String::from_utf8_lossy(&self.target)),
        }
    }

    fn throttle() -> &'static LogThrottle {
        static UNDECIDED: LogThrottle = LogThrottle::new();
        &UNDECIDED
    }

    fn follow(&self, verdict: &Verdict, _: Slot, ctx: &mut Context) -> Step {
        let fields = match verdict {
            Verdict::Pass(fields) => fields,
            Verdict::Refusal(reply) => return reply.clone().into(),
            Verdict::None(status, _) => return Step::status(*status),
        };
        let mut user_digest = UserDigest::of(ctx);
        user_digest.add_request(ctx);
        fields.iter().flatten().for_each(|value| user_digest.add(value));
        user_digest.mark("opa", ctx);
        for (name, values) in self.config.send_headers_upstream.iter().flatten().zip(fields) {
            // The client's own field is not the policy's.
            ctx.request.headers.remove_name(name.as_bytes());
            for value in values {
                ctx.request.headers.append(name, value);
            }
        }
        Step::Next
    }
}

/// Returns the response to a refused client.
fn refusal(result: &Map<String, Value>) -> Reply {
    let status = result.get("status_code").and_then(Value::as_u64);
    let status =
        status.and_then(|status| u16::try_from(status).ok()).filter(|status| (200..=999).contains(status));
    let mut reply = Reply::new(status.unwrap_or(403)).because("the policy denies the request");
    for (name, value) in result.get("headers").and_then(Value::as_object).into_iter().flatten() {
        if is_name(name) && !frames(name) {
            for value in values(value) {
                reply = reply.header(name.clone(), value);
            }
        }
    }
    match result.get("reason") {
        None | Some(Value::Null) => reply,
        Some(Value::String(reason)) => reply.text(reason.as_str()),
        Some(reason) => reply.text(reason.to_string()),
    }
}

/// The values of a field in a decision, as far as they can be sent.
fn values(value: &Value) -> Vec<Vec<u8>> {
    let one = |value: &Value| match value {
        Value::String(text) => Some(text.clone().into_bytes()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string().into_bytes()),
        _ => None,
    };
    let all: Vec<Vec<u8>> = match value {
        Value::Array(several) => several.iter().filter_map(one).collect(),
        value => one(value).into_iter().collect(),
    };
    // A policy may repeat a client's text.
    all.into_iter().filter(|value| !value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0))).collect()
}

impl Plugin for Opa {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let (agent, slot) = (Arc::clone(&self.0), Slot::from(self));
        if !agent.config.with_body {
            return inquiry::ask(&agent, slot, ctx, env, None);
        }
        Step::ReadBody {
            limit: agent.config.max_req_body_size,
            then: Box::new(move |ctx, env, read| match read {
                BodyRead::TooLarge => Reply::new(413).text(Vec::new()).into(),
                BodyRead::Whole => {
                    let body = ctx.body.clone().unwrap_or_default();
                    inquiry::ask(&agent, slot, ctx, env, Some(body))
                }
            }),
        }
    }
}
