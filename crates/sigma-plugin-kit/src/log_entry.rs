//! The common part of all loggers: the entry of an exchange, and the bodies that are collected for it.

use std::borrow::Cow;
use std::cell::RefCell;
use std::io::Read;
use std::rc::Rc;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};
use sigma_http::{BodyLength, Chunk, Headers};
use sigma_plugin::credentials::{Masked, Masks};
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::{
    BodyFilter, Context, Env, Phase, PhaseSet, Pieces, Plugin, ResponseStep, Step, Transform, variables,
};
use sigma_schema::expr::Expr;

use crate::condition;
use crate::inflate;
use crate::log_format::{Bodies, LogFormat, text_of};
use crate::log_throttle::LogThrottle;

/// Header fields and query arguments that an entry shows at most.
pub const MAX_FIELDS: usize = 100;

/// The phases of a logger.
pub const PHASES: PhaseSet =
    PhaseSet::of(&[Phase::Access, Phase::HeaderFilter, Phase::BodyFilter, Phase::Log]);

/// The number of [`VARIABLES`], from the first on, that belong to [`Formats`].
pub const FORMATS: usize = 2;

/// Where [`EntryConfig`] names variables.
pub const VARIABLES: [VariableField; 4] = [
    VariableField::shown("log_format", VariableForm::LogFormat),
    VariableField::shown("log_format_extra", VariableForm::LogFormat),
    VariableField::shown("include_req_body_expr", VariableForm::Condition),
    VariableField::shown("include_resp_body_expr", VariableForm::Condition),
];

/// Bytes of a body that an entry shows where its plugin has no setting for it.
const MAX_BODY_BYTES: usize = 512 << 10;

/// The fields of entries, in a configuration or its metadata.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub struct Formats {
    /// Members of an entry, instead of the default ones. A value that begins with `$` is a variable.
    pub log_format: Option<LogFormat>,
    /// Additional members of an entry, in the form of `log_format`.
    log_format_extra: Option<LogFormat>,
    /// Whether credentials are logged: `Authorization`, cookies, and the credentials that the plugins of the route
    /// read. Otherwise `***` replaces them.
    log_credentials: Option<bool>,
}

/// The configuration that loggers have in common.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct EntryConfig {
    #[serde(flatten)]
    formats: Formats,
    /// Logs the request body.
    #[schemars(extend("default" = false))]
    include_req_body: bool,
    /// Logs the request body only if these conditions match.
    #[serde(default, deserialize_with = "request_condition")]
    #[schemars(length(min = 1), extend("items" = {"type": "array"}))]
    include_req_body_expr: Option<Expr>,
    /// Logs the response body.
    #[schemars(extend("default" = false))]
    include_resp_body: bool,
    /// Logs the response body only if these conditions match.
    #[serde(default, deserialize_with = "response_condition")]
    #[schemars(length(min = 1), extend("items" = {"type": "array"}))]
    include_resp_body_expr: Option<Expr>,
    /// Maximum bytes of the request body in an entry.
    #[schemars(range(min = 1), extend("default" = 524_288))]
    max_req_body_bytes: usize,
    /// Maximum bytes of the response body in an entry.
    #[schemars(range(min = 1), extend("default" = 524_288))]
    max_resp_body_bytes: usize,
}

impl EntryConfig {
    /// Returns the same configuration, whose entries have the usual fields.
    pub fn without_formats(self) -> EntryConfig {
        EntryConfig { formats: Formats::default(), ..self }
    }

    /// Returns the most bytes of the request body in an entry.
    pub fn max_request_body(&self) -> usize {
        self.max_req_body_bytes
    }
}

fn request_condition<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Expr>, D::Error> {
    condition::read("include_req_body_expr", deserializer).map(Some)
}

fn response_condition<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Expr>, D::Error> {
    condition::read("include_resp_body_expr", deserializer).map(Some)
}

/// The destination of a logger's entries.
pub trait Sink: Send + Sync + 'static {
    /// Returns true if an exchange has an entry.
    fn wants(&self, _: &Context) -> bool {
        true
    }

    /// Accepts an entry. Never waits.
    fn take(&self, entry: Map<String, Value>, ctx: &Context, env: &Env<'_>);
}

/// Joins entries that are JSON texts: the only one if each is `single`, or else a list.
pub fn json_list(entries: &[Vec<u8>], single: bool) -> Vec<u8> {
    match single {
        true => entries.concat(),
        false => [b"[", &entries.join(&b',')[..], b"]"].concat(),
    }
}

/// The operator's format of entries.
#[derive(Debug)]
pub struct Shape {
    /// Replaces the usual fields.
    format: Option<LogFormat>,
    /// Fields in addition to them.
    extra: LogFormat,
    /// Credentials are shown.
    shows_credentials: bool,
}

impl Shape {
    /// Makes the shape of a logger's configuration and its metadata.
    pub fn new(own: Formats, shared: Formats) -> Shape {
        Shape {
            format: LogFormat::in_force(own.log_format, shared.log_format),
            extra: own.log_format_extra.or(shared.log_format_extra).unwrap_or_default(),
            shows_credentials: own.log_credentials.or(shared.log_credentials).unwrap_or_default(),
        }
    }

    /// Returns the entry of a format. None for the usual fields.
    pub fn formatted(&self, ctx: &Context, bodies: Bodies<'_>) -> Option<Map<String, Value>> {
        let mut out = Map::new();
        self.fill(self.format.as_ref()?, ctx, bodies, &mut out);
        if let Some(route) = &ctx.route {
            out.insert("route_id".into(), (*route.id).into());
            route.service_id.as_deref().map(|id| out.insert("service_id".into(), id.into()));
        }
        Some(out)
    }

    /// Adds the fields that extend the usual ones and replace none of them.
    pub fn extend(&self, ctx: &Context, bodies: Bodies<'_>, out: &mut Map<String, Value>) {
        let mut extra = Map::new();
        self.fill(&self.extra, ctx, bodies, &mut extra);
        for (name, value) in extra {
            out.entry(name).or_insert(value);
        }
    }

    fn fill(&self, format: &LogFormat, ctx: &Context, bodies: Bodies<'_>, out: &mut Map<String, Value>) {
        match self.shows_credentials {
            true => format.fill(ctx, bodies, out),
            false => format.fill(&Masked(ctx), bodies, out),
        }
    }

    /// Returns the fields of an entry without a format.
    pub fn usual(&self, ctx: &Context, env: &Env<'_>, bodies: Bodies<'_>) -> Map<String, Value> {
        usual(ctx, env, bodies, (!self.shows_credentials).then(|| Masks::of(ctx)))
    }

    fn shows_request_body(&self) -> bool {
        let formats = self.format.iter().chain([&self.extra]);
        formats.into_iter().any(LogFormat::shows_request_body)
    }
}

/// A plugin that makes an entry of each exchange.
#[derive(Debug)]
pub struct Logger<S> {
    shape: Shape,
    request: Option<Expr>,
    response: Option<Arc<Expr>>,
    max_request: usize,
    max_response: usize,
    sink: S,
}

impl<S: Sink> Logger<S> {
    /// Makes a logger of its configuration and its metadata.
    pub fn new(config: EntryConfig, metadata: Formats, sink: S) -> Logger<S> {
        let wanted = |flag: bool, expr: Option<Expr>| flag.then(|| expr.unwrap_or_default());
        Logger {
            shape: Shape::new(config.formats, metadata),
            request: wanted(config.include_req_body, config.include_req_body_expr),
            response: wanted(config.include_resp_body, config.include_resp_body_expr).map(Arc::new),
            max_request: config.max_req_body_bytes,
            max_response: config.max_resp_body_bytes,
            sink,
        }
    }

    /// Returns the entry of a finished exchange.
    fn entry(&self, ctx: &mut Context, env: &Env<'_>) -> Map<String, Value> {
        let collected = ctx.take_kept::<_, Collected>(self).and_then(|collected| collected.0.take());
        let coding = ctx.take_kept::<_, Coding>(self);
        let coding = coding.as_ref().map(|coding| &*coding.0);
        let response = collected.map(|body| text_of(&decoded(&body, coding, self.max_response)));
        let request = ctx.seen_request_body(self.max_request).map(|body| text_of(&body));
        let bodies = Bodies { request: request.as_deref(), response: response.as_deref() };
        if let Some(entry) = self.shape.formatted(ctx, bodies) {
            return entry;
        }
        let shown = self.request.as_ref().is_some_and(|expr| expr.eval(ctx));
        let mut out =
            self.shape.usual(ctx, env, Bodies { request: bodies.request.filter(|_| shown), ..bodies });
        self.shape.extend(ctx, bodies, &mut out);
        out
    }
}

impl<S: Sink> Plugin for Logger<S> {
    /// Copies the request body if the entry will show it.
    fn access(&self, ctx: &mut Context, _: &Env<'_>) -> Step {
        // A condition on the body holds or not when all of it has passed.
        let may_show = |expr: &Expr| expr.needs_body().is_some() || expr.eval(ctx);
        let asks = |expr: &Expr| expr.needs_body().is_some();
        if self.shape.shows_request_body()
            || self.request.as_ref().is_some_and(may_show)
            || self.response.as_deref().is_some_and(asks)
        {
            ctx.copy_request_body(self.max_request);
        }
        Step::Next
    }

    /// Remembers the node's encoding of the body. A body that the gateway encodes later, on the way to the client, is
    /// collected before that.
    fn header_filter(&self, ctx: &mut Context, _: &Env<'_>) -> ResponseStep {
        if self.response.is_some()
            && let Some(coding) = ctx.response.headers.find(b"content-encoding")
        {
            let coding = Coding(coding.into());
            ctx.keep(self, coding);
        }
        ResponseStep::Next
    }

    /// Collects the response body, if the entry may show it.
    fn body_filter(&self, ctx: &mut Context, _: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        let condition = Arc::clone(self.response.as_ref()?);
        let body = Rc::default();
        ctx.keep(self, Collected(Rc::clone(&body)));
        Some(Collector { condition, wanted: None, body, limit: self.max_response }.filter())
    }

    fn log(&self, ctx: &mut Context, env: &Env<'_>) {
        if self.sink.wants(ctx) {
            let entry = self.entry(ctx, env);
            self.sink.take(entry, ctx, env);
        }
    }
}

/// Returns the request body if a plugin has read it, without its own limit.
pub fn request_body(ctx: &Context) -> Option<String> {
    ctx.seen_request_body(MAX_BODY_BYTES).map(|body| text_of(&body))
}

/// Returns the begin of the exchange, in Unix milliseconds.
pub fn started_ms(ctx: &Context, env: &Env<'_>) -> u64 {
    let elapsed = ctx.record.elapsed_ms().unwrap_or_default() as u64;
    (env.unix_time().as_millis() as u64).saturating_sub(elapsed)
}

/// Returns the fields of an entry without a format. Without `masks` credentials are shown.
fn usual(ctx: &Context, env: &Env<'_>, bodies: Bodies<'_>, masks: Option<Masks<'_>>) -> Map<String, Value> {
    let (record, mut out) = (&ctx.record, Map::new());
    let latency = record.elapsed_ms().unwrap_or_default();
    out.insert("request".into(), request(ctx, bodies.request, masks));
    let mut response = json!({
        "status": record.status,
        "headers": fields(&ctx.response.headers, masks),
        "size": record.bytes_sent,
    });
    if let Some(body) = bodies.response.filter(|body| !body.is_empty()) {
        response["body"] = body.into();
    }
    out.insert("response".into(), response);
    out.insert(
        "server".into(),
        json!({"hostname": env.node.hostname(), "version": env!("CARGO_PKG_VERSION")}),
    );
    match &ctx.route {
        Some(route) => {
            out.insert("service_id".into(), route.service_id.as_deref().unwrap_or_default().into());
            out.insert("route_id".into(), (*route.id).into());
        }
        None => drop(out.insert("service_id".into(), text_of(&ctx.host_name()).into())),
    }
    if let Some(consumer) = ctx.consumer() {
        out.insert("consumer".into(), json!({"username": &*consumer.name}));
    }
    out.insert("client_ip".into(), ctx.remote_addr().into());
    out.insert("start_time".into(), started_ms(ctx, env).into());
    out.insert("latency".into(), latency.into());
    if record.attempts.is_empty() {
        out.insert("apisix_latency".into(), latency.into());
    } else {
        let addresses: Vec<String> = record.attempts.iter().map(|attempt| attempt.addr.to_string()).collect();
        out.insert("upstream".into(), addresses.join(", ").into());
        let upstream = record.attempts.iter().filter_map(|attempt| attempt.response_ms).sum::<f64>().round();
        out.insert("upstream_latency".into(), (upstream as u64).into());
        out.insert("apisix_latency".into(), (latency - upstream).max(0.0).into());
    }
    out
}

fn request(ctx: &Context, body: Option<&str>, masks: Option<Masks<'_>>) -> Value {
    let uri = ctx.request_uri();
    let uri = masks.map_or(Cow::Borrowed(&uri[..]), |masks| masks.target(&uri));
    let uri = text_of(&uri);
    let port = ctx.client.local.map_or(0, |addr| addr.port());
    let mut request = json!({
        "url": format!("{}://{}:{port}{uri}", ctx.scheme(), text_of(&ctx.host_name())),
        "uri": uri,
        "method": text_of(ctx.request.method_token()),
        "headers": fields(&ctx.request.headers, masks),
        // Without arguments that were credentials and are hidden.
        "querystring": arguments(ctx.outgoing_query().unwrap_or_default(), masks),
        "size": ctx.record.bytes_received,
    });
    if let Some(body) = body.filter(|body| !body.is_empty()) {
        request["body"] = body.into();
    }
    request
}

/// Returns the header fields, names in lower case; several of one name are a list.
fn fields(headers: &Headers, masks: Option<Masks<'_>>) -> Value {
    let pairs = headers.iter().take(MAX_FIELDS);
    grouped(pairs.map(|(name, value)| {
        let value = masks.map_or(Cow::Borrowed(value), |masks| masks.field(name, value));
        (text_of(&name.to_ascii_lowercase()), text_of(&value).into())
    }))
}

fn arguments(query: &[u8], masks: Option<Masks<'_>>) -> Value {
    let query = masks.map_or(Cow::Borrowed(query), |masks| masks.query(query));
    let query = &query[..];
    let pairs = variables::pairs(query).take(MAX_FIELDS);
    grouped(
        pairs
            .map(|(name, value)| (text_of(&name), value.map_or(true.into(), |value| text_of(&value).into()))),
    )
}

fn grouped(pairs: impl Iterator<Item = (String, Value)>) -> Value {
    let mut out: Map<String, Value> = Map::new();
    for (name, value) in pairs {
        match out.get_mut(&name) {
            Some(Value::Array(values)) => values.push(value),
            Some(first) => *first = Value::Array(vec![first.take(), value]),
            None => drop(out.insert(name, value)),
        }
    }
    Value::Object(out)
}

/// A collected response body. None if it is not wanted, or without a body.
struct Collected(Rc<RefCell<Option<Vec<u8>>>>);

/// A filter that copies the bytes.
struct Collector {
    /// Evaluated at the first piece, when the response is known.
    condition: Arc<Expr>,
    wanted: Option<bool>,
    body: Rc<RefCell<Option<Vec<u8>>>>,
    limit: usize,
}

impl Transform for Collector {
    fn length(&self, length: BodyLength) -> BodyLength {
        length
    }

    fn data(&mut self, ctx: &mut Context, data: Chunk, out: &mut Pieces) {
        if *self.wanted.get_or_insert_with(|| self.condition.eval(ctx)) {
            let mut body = self.body.borrow_mut();
            let body = body.get_or_insert_default();
            let room = self.limit.saturating_sub(body.len());
            body.extend_from_slice(&data[..data.len().min(room)]);
        }
        out.piece(data);
    }
}

/// The content coding of the body that the node sent.
struct Coding(Box<[u8]>);

/// Returns a body without its content coding, up to `limit` bytes; unchanged if that fails.
fn decoded<'b>(body: &'b [u8], coding: Option<&[u8]>, limit: usize) -> Cow<'b, [u8]> {
    let Some(coding) = coding else { return Cow::Borrowed(body) };
    let mut out = Vec::new();
    let limit = inflate::most(body.len(), limit) as u64;
    let result = if coding.eq_ignore_ascii_case(b"gzip") {
        flate2::read::GzDecoder::new(body).take(limit).read_to_end(&mut out)
    } else if coding.eq_ignore_ascii_case(b"br") {
        brotli::Decompressor::new(body, 4096).take(limit).read_to_end(&mut out)
    } else {
        Err(std::io::Error::other("the content coding is unknown"))
    };
    match result {
        Ok(_) => Cow::Owned(out),
        Err(error) => {
            static COMPLAINT: LogThrottle = LogThrottle::new();
            if let Some(left_out) = COMPLAINT.due() {
                let coding = text_of(coding);
                tracing::warn!(left_out, %error, ?coding, "a response body is logged without decoding");
            }
            Cow::Borrowed(body)
        }
    }
}
