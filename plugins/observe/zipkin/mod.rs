//! `zipkin`: traces by B3, and spans for a collector of Zipkin (v2, JSON).

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use reqwest::header::HeaderMap;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_plugin::address::NodeAddr;
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, ResponseStep, Step,
};
use sigma_schema::described::schema_of;

use crate::shared::b3::{self, B3Context, B3Trace, Incoming, SamplingRequest};
use crate::shared::finished_exchange::{AttemptResult, FinishedExchange, Nanos, target};
use crate::shared::ids::{SpanId, TraceId, happens, text};
use crate::shared::post::Collector;
use crate::shared::w3c::SpanContext;
use sigma_plugin_kit::batch::{Batches, Destination, Limits, Pace, Processor, Refusal, Sending};
use sigma_plugin_kit::cleartext::is_exposed;
use sigma_plugin_kit::log_throttle::LogThrottle;

const NAME: &str = "zipkin";

/// How long the collector may take for a batch.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The beginning of the fields that carry baggage.
const BAGGAGE: &[u8] = b"uberctx-";

/// `zipkin`.
pub(crate) static ZIPKIN: Descriptor = Descriptor {
    name: NAME,
    priority: 12011,
    doc: include_str!("doc.md"),
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite, Phase::Access, Phase::HeaderFilter, Phase::Log]),
    attributes: Some(schema_of::<Attributes>),
    owned_fields: Some(|_| b3::owned_fields()),
    build: |build| Ok(Arc::new(Zipkin::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Makes spans of sampled requests and sends them to a collector of Zipkin.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// The URL for spans, such as `http://127.0.0.1:9411/api/v2/spans`. With `https` the certificate is verified.
    endpoint: Endpoint,
    /// The sampled share of requests, if their sender does not decide it.
    #[schemars(range(min = 0.00001, max = 1))]
    sample_ratio: f64,
    /// The name of the gateway in its spans.
    #[schemars(extend("default" = "APISIX"))]
    service_name: String,
    /// The IPv4 address of the gateway in its spans. Default: the address that the client connected to.
    #[schemars(regex(pattern = r"^[0-9]{1,3}.[0-9]{1,3}.[0-9]{1,3}.[0-9]{1,3}$"))]
    server_addr: Option<String>,
    /// Form of the spans: `2` measures the time until the response and the time after it, `1` the phases.
    #[schemars(schema_with = "version_schema")]
    span_version: u8,
    /// Continues the trace of the request, and its sampling decision. `false` for untrusted clients.
    #[schemars(extend("default" = true, "own_default" = true))]
    trust_incoming: bool,
}

fn version_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"enum": [1, 2], "default": 2})
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        match self.server_addr.as_deref().filter(|addr| addr.parse::<Ipv4Addr>().is_err()) {
            None => Ok(()),
            Some(addr) => Err(format!("server_addr: `{addr}` is not an IPv4 address")),
        }
    }
}

/// The URL for spans.
#[derive(Deserialize, JsonSchema)]
#[serde(try_from = "String")]
struct Endpoint(#[schemars(with = "String")] Url);

impl TryFrom<String> for Endpoint {
    type Error = String;

    fn try_from(text: String) -> Result<Endpoint, String> {
        let url = Url::parse(&text).map_err(|error| format!("endpoint: `{text}` is not a URL: {error}"))?;
        match url.scheme() {
            "http" | "https" => Ok(Endpoint(url)),
            other => Err(format!("endpoint: the scheme {other} is neither http nor https")),
        }
    }
}

/// The settings of the plugin for the process.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Attributes {
    /// Publishes the variables `zipkin_context_traceparent`, `zipkin_trace_id` and `zipkin_span_id`, for logs.
    set_ngx_var: bool,
}

/// An instance.
struct Zipkin {
    sample_ratio: f64,
    service_name: String,
    /// Replaces the address that the client connected to.
    server_addr: Option<Ipv4Addr>,
    layout: Layout,
    trusts: bool,
    sets_variables: bool,
    processor: Arc<Processor>,
}

/// How the spans are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    Phases,
    Answer,
}

/// A request that is sampled, and how far it has come by the clock of the process.
#[derive(Debug)]
struct Sampled {
    trace: B3Trace,
    own: SpanId,
    parent: Option<SpanId>,
    /// The span that nodes know.
    proxy: SpanId,
    rewritten: Duration,
    passed: Option<Duration>,
    answered: Option<Duration>,
}

impl Zipkin {
    fn new(build: &Build<'_>) -> Result<Zipkin, String> {
        let config: Config = build.config()?;
        let told = Option::<Attributes>::deserialize(build.node.attribute(NAME));
        let told = told.map_err(|error| format!("plugin_attr.{NAME}: {error}"))?.unwrap_or_default();
        let url = config.endpoint.0;
        if is_exposed(url.as_str()) {
            tracing::warn!("zipkin: spans are sent to {url} in cleartext");
        }
        let pace = Pace {
            name: "zipkin_report".to_owned(),
            batch_max_size: 1000,
            inactive_timeout: Duration::from_secs(5),
            buffer_duration: Duration::from_secs(60),
            max_retry_count: 0,
            retry_delay: Duration::from_secs(1),
        };
        let make =
            || Arc::new(Reporter { url, collector: Collector::new(HeaderMap::new(), TIMEOUT) }) as Arc<_>;
        let processor =
            Batches::processor(build.node, NAME, build.conf_hash(), pace, Limits::default(), make);
        Ok(Zipkin {
            sample_ratio: config.sample_ratio,
            service_name: config.service_name,
            server_addr: config.server_addr.and_then(|addr| addr.parse().ok()),
            layout: if config.span_version == 1 { Layout::Phases } else { Layout::Answer },
            trusts: config.trust_incoming,
            sets_variables: told.set_ngx_var,
            processor,
        })
    }

    /// Returns the trace context of a request. None if it says something that cannot be read.
    fn incoming(&self, ctx: &mut Context) -> Option<Incoming> {
        static COMPLAINT: LogThrottle = LogThrottle::new();
        let headers = &mut ctx.request.headers;
        if !self.trusts {
            headers.remove_where(|_, name| {
                let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
                let is_baggage = name.get(..BAGGAGE.len()).is_some_and(|s| s.eq_ignore_ascii_case(BAGGAGE));
                is_baggage || is(b3::SINGLE) || is(b3::FLAGS)
            });
            return Some(Incoming::default());
        }
        let debug = headers.find(b3::FLAGS.as_bytes()) == Some(b"1");
        let Some(single) = headers.find(b3::SINGLE.as_bytes()).map(Incoming::of_single) else {
            return Some(Incoming::of_fields(headers));
        };
        headers.remove_name(b3::SINGLE.as_bytes());
        let Ok(mut incoming) = single else {
            if let Some(left_out) = COMPLAINT.due() {
                tracing::error!(left_out, "zipkin: a request has an invalid b3 header");
            }
            return None;
        };
        if incoming.wish == Some(SamplingRequest::Debug) {
            headers.replace(b3::FLAGS, b"1");
        }
        incoming.wish = incoming.wish.or(debug.then_some(SamplingRequest::Debug));
        Some(incoming)
    }
}

impl Plugin for Zipkin {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        static COMPLAINT: LogThrottle = LogThrottle::new();
        let Some(incoming) = self.incoming(ctx) else { return Reply::new(400).text("").into() };
        if incoming.is_invalid
            && let Some(left_out) = COMPLAINT.due()
        {
            tracing::warn!(left_out, "zipkin: a request has invalid trace ids; it starts a new trace");
        }
        let is_sampled = match incoming.wish {
            Some(wish) => wish.is_sampled(),
            None => happens(self.sample_ratio, env),
        };
        let parent = incoming.context.and_then(|context| context.span);
        let trace = incoming.context.map_or_else(|| TraceId::draw(env).into(), |context| context.trace);
        let own = SpanId::draw(env);
        let told = match is_sampled {
            true => B3Context { trace, span: Some(SpanId::draw(env)), parent: Some(own) },
            false => B3Context { trace, span: Some(own), parent },
        };
        b3::set_fields(&mut ctx.request.headers, &told, is_sampled);
        if self.sets_variables {
            let context = SpanContext { trace: trace.id(), span: own, is_sampled };
            ctx.set_variable_with("zipkin_context_traceparent", move || context.write().to_vec());
            ctx.set_variable_with("zipkin_trace_id", move || trace.hex().into_bytes());
            ctx.set_variable_with("zipkin_span_id", move || own.hex().to_vec());
        }
        if let Some(proxy) = told.span.filter(|_| is_sampled) {
            ctx.record.sampled();
            let rewritten = env.machine.uptime();
            // For other plugins that report the same request.
            ctx.keep(self, SpanContext { trace: trace.id(), span: own, is_sampled });
            ctx.keep(self, Sampled { trace, own, parent, proxy, rewritten, passed: None, answered: None });
        } else {
            ctx.record.not_sampled();
        }
        Step::Next
    }

    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        if let Some(sampled) = ctx.kept::<_, Sampled>(self) {
            sampled.passed = Some(env.machine.uptime());
        }
        Step::Next
    }

    fn header_filter(&self, ctx: &mut Context, env: &Env<'_>) -> ResponseStep {
        if let Some(sampled) = ctx.kept::<_, Sampled>(self) {
            sampled.answered = Some(env.machine.uptime());
        }
        ResponseStep::Next
    }

    fn samples(&self) -> bool {
        true
    }

    fn log(&self, ctx: &mut Context, env: &Env<'_>) {
        let Some(sampled) = ctx.take_kept::<_, Sampled>(self) else { return };
        for span in self.spans(ctx, env, &sampled) {
            self.processor.push(span.to_string().into_bytes(), &*ctx, env);
        }
    }
}

impl Zipkin {
    /// The spans of an exchange that has ended.
    fn spans(&self, ctx: &Context, env: &Env<'_>, sampled: &Sampled) -> Vec<Value> {
        let Some(course) = FinishedExchange::of(ctx, env) else { return Vec::new() };
        let local = self.local(ctx);
        let trace = sampled.trace.hex();
        let span = |name: &str, parent: Option<SpanId>, id: SpanId, (began, ended): (Nanos, Nanos)| {
            let mut span = json!({
                "traceId": trace,
                "name": name,
                "id": text(&id.hex()),
                "timestamp": began / 1000,
                "duration": (ended.saturating_sub(began) / 1000).max(1),
                "localEndpoint": local,
                "tags": {},
                "annotations": [],
            });
            if let Some(parent) = parent {
                span["parentId"] = text(&parent.hex()).into();
            }
            span
        };
        let mut root = span("apisix.request", sampled.parent, sampled.own, (course.began, course.ended));
        root["kind"] = "SERVER".into();
        root["remoteEndpoint"] = endpoint(ctx.client.addr, ctx.client.port);
        root["tags"] = tags(ctx);
        let mut all = vec![root];
        let at = |uptime: Duration| course.at_uptime(uptime, env);
        let child = |name: &str, parent: SpanId, time| span(name, Some(parent), SpanId::draw(env), time);
        let proxied = |time| span("apisix.proxy", Some(sampled.own), sampled.proxy, time);
        let (own, ended, answered) = (sampled.own, course.ended, sampled.answered.map(at));
        match self.layout {
            Layout::Answer => {
                all.push(proxied((course.began, answered.unwrap_or(ended))));
                all.extend(answered.map(|answered| child("apisix.response_span", own, (answered, ended))));
            }
            Layout::Phases => {
                let (rewritten, passed) = (at(sampled.rewritten), sampled.passed.map(at));
                all.push(child("apisix.rewrite", own, (course.began, rewritten)));
                all.extend(passed.map(|passed| child("apisix.access", own, (rewritten, passed))));
                all.extend(passed.map(|passed| proxied((passed, ended))));
                let under = if passed.is_some() { sampled.proxy } else { own };
                all.extend(answered.map(|answered| child("apisix.body_filter", under, (answered, ended))));
            }
        }
        all.extend(course.waits().map(|wait| child(&wait.name(), own, (wait.began, wait.ended))));
        all.extend(course.tries().map(|one| {
            let mut span = child("apisix.attempt", sampled.proxy, (one.began, one.ended));
            describe(&mut span, &one);
            span
        }));
        all
    }

    /// The gateway.
    fn local(&self, ctx: &Context) -> Value {
        let local = ctx.client.local;
        let addr = self.server_addr.map(IpAddr::V4).or(local.map(|local| local.ip()));
        let mut endpoint = endpoint(addr, local.map_or(0, |local| local.port()));
        if endpoint.is_null() {
            endpoint = json!({});
        }
        endpoint["serviceName"] = (*self.service_name).into();
        endpoint
    }
}

fn tags(ctx: &Context) -> Value {
    let record = &ctx.record;
    let mut tags = json!({
        "component": "apisix",
        "http.method": String::from_utf8_lossy(ctx.request.method_token()),
        "http.url": String::from_utf8_lossy(&target(ctx)),
        "apisix.response_source": record.source.as_str(),
    });
    if record.status != 0 {
        tags["http.status_code"] = record.status.to_string().into();
    }
    if let Some(fault) = record.fault {
        tags["error"] = fault.kind.error_type().into();
    } else if record.status >= 500 {
        tags["error"] = record.status.to_string().into();
    }
    tags
}

/// Adds the data of an attempt on a node.
fn describe(span: &mut Value, one: &AttemptResult<'_>) {
    let attempt = one.attempt;
    span["kind"] = "CLIENT".into();
    match &attempt.addr {
        NodeAddr::Tcp(addr) => span["remoteEndpoint"] = endpoint(Some(addr.ip()), addr.port()),
        NodeAddr::Unix(path) => span["tags"]["peer.path"] = (*path.to_string_lossy()).into(),
    }
    let tags = &mut span["tags"];
    tags["peer.hostname"] = (*attempt.host).into();
    tags["retry"] = one.number.to_string().into();
    tags["connection.reused"] = attempt.reused.to_string().into();
    match one.failure {
        Some(failure) => tags["error"] = failure.into(),
        None => tags["http.status_code"] = attempt.status.to_string().into(),
    }
    let events = one.events.iter().map(|(name, at)| json!({"timestamp": at / 1000, "value": name}));
    span["annotations"] = events.collect();
}

/// An address as Zipkin has it; `null` if the address is unknown.
fn endpoint(addr: Option<IpAddr>, port: u16) -> Value {
    let Some(addr) = addr.map(|addr| addr.to_canonical()) else { return Value::Null };
    let family = if addr.is_ipv4() { "ipv4" } else { "ipv6" };
    let mut endpoint = json!({ family: addr.to_string() });
    if port != 0 {
        endpoint["port"] = port.into();
    }
    endpoint
}

/// The collector.
struct Reporter {
    url: Url,
    collector: Collector,
}

impl Reporter {
    async fn report(&self, entries: &[Vec<u8>]) -> Result<(), Refusal> {
        let body = [b"[", &entries.join(&b',')[..], b"]"].concat();
        let answer = self.collector.post(&self.url, "application/json", body).await?;
        if answer.is_success() { Ok(()) } else { Err(answer.reason(&self.url).into()) }
    }
}

impl Destination for Reporter {
    fn send<'s>(&'s self, entries: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(self.report(entries))
    }
}
