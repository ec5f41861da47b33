//! `batch-requests`: several requests in one, answered together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::vec;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sigma_http::head::reason_phrase;
use sigma_http::{HeaderId, Headers, Method, is_token};
use sigma_plugin::descriptor::Endpoint;
use sigma_plugin::outbound::{Call, GATEWAY, ServiceResponse};
use sigma_plugin::step::{BodyRead, CallResult};
use sigma_plugin::{Configuration, Context, Descriptor, Env, Node, Plugin, Reply, Resident, Step};
use sigma_schema::described::schema_of;
use sigma_schema::validation::Schema;

use crate::shared::subrequest::{fields_of_client, may_be_set};
use sigma_plugin_kit::json_body::{self, Unread};
use sigma_plugin_kit::sigv4::encoded;

/// The plugin.
pub(crate) static BATCH_REQUESTS: Descriptor = Descriptor {
    name: "batch-requests",
    priority: 4010,
    example: include_str!("example.md"),
    metadata_schema: Some(schema_of::<Limits>),
    attributes: Some(schema_of::<Attributes>),
    endpoints: &[Endpoint {
        path: "/apisix/batch-requests",
        path_setting: "uri",
        method: Method::Post,
        answer: read,
    }],
    resident: Some(|build| Ok(Arc::new(InForce(build.metadata_as()?)))),
    ..Descriptor::itself::<BatchRequests>()
};

/// JSON values of a body; 1000 requests with many fields have fewer.
const MOST_VALUES: usize = 250_000;

/// Accepts several requests in one and returns their responses together, for a route with `public-api`.
///
/// The plugin itself needs no route. The requests of `pipeline` run one after another, each as if the client had sent
/// it over its own connection: through routing and all plugins of its route. Each has the fields of the client's
/// request, except fields about its body; `headers` has precedence over them, and the `headers` of a request over
/// both. The client's identity is the gateway's own: `X-Real-IP`, `X-Forwarded-*`, `Forwarded` and certificates
/// cannot be set. A request without a response within `timeout` milliseconds (30000 by default) has the status 504,
/// and so have all later ones. A binary body is in `body_base64`. A batch within a batch is refused.
#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct BatchRequests {}

impl Configuration for BatchRequests {}

impl Plugin for BatchRequests {}

/// The attributes in `plugin_attr`.
#[derive(Deserialize, JsonSchema)]
#[expect(dead_code, reason = "read by its name; see Endpoint::path_setting")]
struct Attributes {
    /// The path of the endpoint. Default: `/apisix/batch-requests`.
    #[schemars(length(min = 1))]
    uri: Option<String>,
}

/// The metadata.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(default)]
struct Limits {
    /// Maximum bytes of the body with the requests.
    #[schemars(extend("exclusiveMinimum" = 0))]
    max_body_size: u64,
    /// Maximum requests of a batch. APISIX allows 1000. Each request runs all plugins of its route.
    #[schemars(extend("exclusiveMinimum" = 0))]
    max_pipeline_items: u64,
    /// Maximum bytes of all response bodies of a batch together.
    #[schemars(range(min = 1), extend("own_default" = true))]
    max_response_size: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { max_body_size: 1 << 20, max_pipeline_items: 100, max_response_size: 10 << 20 }
    }
}

/// The limits in force, for all workers.
struct Shared([AtomicU64; 3]);

impl Shared {
    fn of(node: &Arc<Node>) -> Arc<Shared> {
        node.part(|| {
            let shared = Shared(Default::default());
            shared.set(Limits::default());
            shared
        })
    }

    fn set(&self, limits: Limits) {
        let Limits { max_body_size, max_pipeline_items, max_response_size } = limits;
        let values = [max_body_size, max_pipeline_items, max_response_size];
        self.0.iter().zip(values).for_each(|(kept, value)| kept.store(value, Ordering::Relaxed));
    }

    fn get(&self) -> Limits {
        let [max_body_size, max_pipeline_items, max_response_size] =
            [0, 1, 2].map(|at: usize| self.0[at].load(Ordering::Relaxed));
        Limits { max_body_size, max_pipeline_items, max_response_size }
    }
}

/// Puts the metadata in force.
struct InForce(Limits);

impl Resident for InForce {
    fn prepare(&self, node: &Arc<Node>) {
        Shared::of(node).set(self.0);
    }
}

fn refused(status: u16, reason: &str) -> Step {
    let reply = Reply::new(status).header("Content-Type", "application/json");
    reply.json(&json!({ "error_msg": reason })).into()
}

/// `POST /apisix/batch-requests`.
fn read(ctx: &mut Context, env: &Env<'_>) -> Step {
    if ctx.within > 0 {
        return refused(400, "a request of the gateway to itself cannot send a batch");
    }
    // The node's part takes a lock; each worker requests it once.
    let limits = env.local.part(|| Shared::of(env.node)).get();
    let limit = usize::try_from(limits.max_body_size).unwrap_or(usize::MAX);
    let then = move |ctx: &mut Context, _: &Env<'_>, read| {
        if read == BodyRead::TooLarge {
            let declared = ctx.request.headers.get(HeaderId::ContentLength);
            let declared = declared.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
            let size = declared.unwrap_or(limits.max_body_size.saturating_add(1));
            let most = limits.max_body_size;
            let reason = format!("request size {size} is greater than the maximum size {most} allowed");
            return refused(413, &reason);
        }
        match Batch::parse(ctx, limits) {
            Ok(batch) => Box::new(batch).next(),
            Err(reason) => refused(400, &reason),
        }
    };
    Step::ReadBody { limit, then: Box::new(then) }
}

/// The shape of a body.
static SHAPE: LazyLock<Schema> = LazyLock::new(|| {
    // In the order in which refusals list them.
    let methods = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE", "PURGE"];
    let shape = json!({
        "type": "object",
        "properties": {
            "query": { "type": "object" },
            "headers": { "type": "object" },
            "timeout": { "type": "integer", "minimum": 1, "default": 30000 },
            "pipeline": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "properties": {
                        "version": { "enum": [1.0, 1.1], "default": 1.1 },
                        "method": { "enum": methods, "default": "GET" },
                        "path": { "type": "string", "minLength": 1 },
                        "query": { "type": "object" },
                        "headers": { "type": "object" },
                        "ssl_verify": { "type": "boolean", "default": false },
                        "body": { "type": "string" },
                    },
                    "required": ["path"],
                    "additionalProperties": false,
                },
            },
        },
        "required": ["pipeline"],
    });
    Schema::compile(&shape).unwrap_or_else(|error| unreachable!("the shape is a schema: {error}"))
});

/// A batch under way.
struct Batch {
    /// Calls that have not begun.
    calls: vec::IntoIter<Call>,
    answers: Vec<Value>,
    /// Bytes that answers may still have.
    room: usize,
}

impl Batch {
    /// Reads the body. All of it is checked before anything is queried.
    fn parse(ctx: &Context, limits: Limits) -> Result<Batch, String> {
        let body = ctx.body.as_deref().unwrap_or_default();
        if body.is_empty() {
            return Err("no request body, you should give at least one pipeline setting".to_owned());
        }
        let batch = json_body::read(body, MOST_VALUES).map_err(|unread| {
            let reason = match unread {
                Unread::TooMany => format!("it has more than {MOST_VALUES} values"),
                Unread::Invalid(reason) => reason,
            };
            format!("invalid request body: {}, err: {reason}", String::from_utf8_lossy(body))
        })?;
        SHAPE.check(&batch).map_err(|reason| format!("bad request body: {reason}"))?;
        let pipeline = batch["pipeline"].as_array().map(Vec::as_slice).unwrap_or_default();
        if pipeline.len() as u64 > limits.max_pipeline_items {
            let (items, most) = (pipeline.len(), limits.max_pipeline_items);
            return Err(format!("too many pipeline requests, {items} exceeds the maximum of {most}"));
        }
        let shared = Common::of(ctx, &batch).map_err(|reason| format!("bad request body: {reason}"))?;
        let calls = pipeline.iter().enumerate().map(|(n, item)| {
            shared.call(item).map_err(|reason| format!("bad request body: pipeline[{n}]: {reason}"))
        });
        let calls: Vec<Call> = calls.collect::<Result<_, _>>()?;
        let answers = Vec::with_capacity(calls.len());
        let room = usize::try_from(limits.max_response_size).unwrap_or(usize::MAX);
        Ok(Batch { calls: calls.into_iter(), answers, room })
    }

    /// Makes the next request, or answers when all are made.
    fn next(mut self: Box<Batch>) -> Step {
        let Some(mut call) = self.calls.next() else {
            let reply = Reply::new(200).header("Content-Type", "application/json");
            return reply.json(&Value::Array(self.answers)).into();
        };
        call.limit = self.room;
        let then = move |_: &mut Context, _: &Env<'_>, mut asked: Vec<CallResult>| {
            match asked.pop() {
                Some(Ok(answer)) => {
                    self.room -= answer.body.len().min(self.room);
                    self.answers.push(shown(answer));
                }
                lost => {
                    let reason = lost.and_then(Result::err).map(|error| error.0);
                    self.lose(&reason.unwrap_or_default());
                }
            }
            self.next()
        };
        Step::Ask { calls: vec![call], then: Box::new(then) }
    }

    /// The request that was made last has no response: those behind it are not made, as on a connection that broke.
    fn lose(&mut self, reason: &str) {
        let lost = |error: &str| json!({ "status": 504, "reason": "upstream timeout", "error": error });
        self.answers.push(lost(reason));
        let left = std::mem::take(&mut self.calls);
        self.answers.extend(left.map(|_| lost("an earlier request of the batch got no response")));
    }
}

/// State that all requests of a batch share.
struct Common<'b> {
    fields: Headers,
    host: String,
    headers: Option<&'b Map<String, Value>>,
    query: Option<&'b Map<String, Value>>,
    passes: Vec<u8>,
    timeout_ms: u64,
}

impl<'b> Common<'b> {
    fn of(ctx: &Context, batch: &'b Value) -> Result<Common<'b>, String> {
        let host = String::from_utf8(ctx.request.authority().to_vec());
        Ok(Common {
            fields: fields_of_client(ctx),
            host: host.map_err(|_| "the host of the request is no text")?,
            headers: batch["headers"].as_object(),
            query: batch["query"].as_object(),
            passes: ctx.passes(),
            timeout_ms: batch["timeout"].as_u64().unwrap_or(30_000),
        })
    }

    fn call(&self, item: &Value) -> Result<Call, String> {
        let method = Method::parse(item["method"].as_str().unwrap_or("GET").as_bytes());
        let (mut headers, mut host) = (self.fields.clone(), self.host.clone());
        for fields in [self.headers, item["headers"].as_object()].into_iter().flatten() {
            for (name, value) in fields {
                set_field(&mut headers, &mut host, name, value)?;
            }
        }
        let own = item["query"].as_object();
        let added = self.query.into_iter().flatten();
        let added = added.filter(|(name, _)| own.is_none_or(|own| !own.contains_key(*name)));
        let target =
            target(item["path"].as_str().unwrap_or_default(), own.into_iter().flatten().chain(added))?;
        let takes_body = matches!(method, Method::Post | Method::Put | Method::Patch);
        let body = item["body"].as_str().or(takes_body.then_some(""));
        Ok(Call {
            upstream: GATEWAY.into(),
            method,
            target,
            host: host.into(),
            headers,
            passes: self.passes.clone(),
            body: body.map(|body| body.as_bytes().to_vec()),
            timeout_ms: self.timeout_ms,
            limit: 0,
        })
    }
}

/// Returns the texts of a value in a query or a field; each element of a list is one text.
fn texts(name: &str, value: &Value) -> Result<Vec<String>, String> {
    let text = |value: &Value| match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(_) | Value::Bool(_) => Ok(value.to_string()),
        _ => Err(format!("the value of `{name}` must be a string, a number, or a list of them")),
    };
    match value {
        Value::Array(values) => values.iter().map(text).collect(),
        value => Ok(vec![text(value)?]),
    }
}

/// Sets a field that a batch names, and replaces its former value.
fn set_field(headers: &mut Headers, host: &mut String, name: &str, value: &Value) -> Result<(), String> {
    if !is_token(name.as_bytes()) {
        return Err(format!("`{name}` is no name of a field"));
    }
    let values = texts(name, value)?;
    if values.iter().any(|value| value.bytes().any(|byte| byte < b' ' && byte != b'\t' || byte == 0x7f)) {
        return Err(format!("the value of the field `{name}` contains invalid characters"));
    }
    if !may_be_set(name) {
        return Ok(());
    }
    if name.eq_ignore_ascii_case("host") {
        *host = values.into_iter().next().unwrap_or_default();
        return Ok(());
    }
    headers.remove_name(name.as_bytes());
    values.iter().for_each(|value| headers.append(name, value.as_bytes()));
    Ok(())
}

/// Path and query as they are sent: what cannot stand there is encoded.
fn target<'q>(path: &str, query: impl Iterator<Item = (&'q String, &'q Value)>) -> Result<Vec<u8>, String> {
    if !path.starts_with('/') || path.contains('#') {
        return Err(format!("the path `{path}` must begin with a slash and not have a fragment"));
    }
    let mut target = Vec::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'!'..=b'~' => target.push(byte),
            byte => target.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
    let mut sign = if path.contains('?') { b'&' } else { b'?' };
    for (name, value) in query {
        for text in texts(name, value)? {
            target.push(sign);
            let pair = format!("{}={}", encoded(name.as_bytes(), false), encoded(text.as_bytes(), false));
            target.extend_from_slice(pair.as_bytes());
            sign = b'&';
        }
    }
    Ok(target)
}

/// A response as a batch shows it.
fn shown(answer: ServiceResponse) -> Value {
    let mut headers: Map<String, Value> = Map::new();
    for (name, value) in answer.headers.iter() {
        let value = Value::from(String::from_utf8_lossy(value));
        match headers.entry(String::from_utf8_lossy(name)) {
            serde_json::map::Entry::Vacant(entry) => drop(entry.insert(value)),
            serde_json::map::Entry::Occupied(mut entry) => match entry.get_mut() {
                Value::Array(values) => values.push(value),
                first => *first = json!([first.take(), value]),
            },
        }
    }
    let mut shown = json!({
        "status": answer.status,
        "reason": reason_phrase(answer.status),
        "headers": headers,
    });
    if !answer.body.is_empty() {
        match String::from_utf8(answer.body) {
            Ok(body) => shown["body"] = body.into(),
            Err(bytes) => shown["body_base64"] = STANDARD.encode(bytes.as_bytes()).into(),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        let check = |path: &str, query: Value, expected: Option<&str>| {
            let query = query.as_object().cloned().unwrap_or_default();
            let got = target(path, query.iter()).ok().map(|target| String::from_utf8(target).unwrap());
            assert_eq!(got.as_deref(), expected, "{path} {query:?}");
        };
        check("/a", json!({}), Some("/a"));
        check("/a b\r\nX: y", json!({}), Some("/a%20b%0D%0AX:%20y"));
        check("/a?b=1", json!({"c": "x&y=z"}), Some("/a?b=1&c=x%26y%3Dz"));
        check("/a", json!({"b": [1, "é"], "c": true}), Some("/a?b=1&b=%C3%A9&c=true"));
        check("a", json!({}), None);
        check("http://a/", json!({}), None);
        check("/a#b", json!({}), None);
        check("/a", json!({"b": {}}), None);
    }

    #[test]
    fn a_batch_has_at_most_100_requests_by_default() {
        let check = |items: usize, limits: Limits, expected: Result<(), &str>| {
            let pipeline = vec![json!({ "path": "/" }); items];
            let body = json!({ "pipeline": pipeline }).to_string().into_bytes();
            let mut ctx = Context::default();
            ctx.body = Some(body);
            let parsed = Batch::parse(&ctx, limits).map(|batch| assert_eq!(batch.calls.len(), items));
            assert_eq!(parsed, expected.map_err(str::to_owned), "{items}");
        };
        check(100, Limits::default(), Ok(()));
        check(101, Limits::default(), Err("too many pipeline requests, 101 exceeds the maximum of 100"));
        check(1000, Limits { max_pipeline_items: 1000, ..Limits::default() }, Ok(()));
    }

    #[test]
    fn identity_of_the_client_cannot_be_set() {
        let check = |name: &str, value: Value, expected: Result<&[&str], ()>| {
            let (mut headers, mut host) = (Headers::default(), "h".to_owned());
            headers.append("X-Real-IP", b"127.0.0.1");
            headers.append("a", b"old");
            let set = set_field(&mut headers, &mut host, name, &value).map_err(drop);
            let shown = headers.iter().map(|(name, value)| {
                format!("{}: {}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
            });
            let shown: Vec<String> = shown.chain([format!("host: {host}")]).collect();
            let shown: Vec<&str> = shown.iter().map(String::as_str).collect();
            assert_eq!(set.map(|()| &shown[..]), expected, "{name}");
        };
        let same = &["X-Real-IP: 127.0.0.1", "a: old", "host: h"][..];
        for name in ["x-real-ip", "X-Forwarded-For", "x-forwarded-any", "Forwarded", "Content-Length", "TE"] {
            check(name, json!("10.0.0.1"), Ok(same));
        }
        check("A", json!(["x", 2]), Ok(&["X-Real-IP: 127.0.0.1", "A: x", "A: 2", "host: h"]));
        check("Host", json!("other"), Ok(&["X-Real-IP: 127.0.0.1", "a: old", "host: other"]));
        check("a b", json!("x"), Err(()));
        check("a", json!("x\r\nb: y"), Err(()));
        check("a", json!({}), Err(()));
    }
}
