//! `skywalking`: contexts in `sw8`, and segments for an OAP server of SkyWalking.

mod reporter;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, OwnedField, Phase, PhaseSet, Plugin, RunPolicy, Step,
};
use sigma_schema::described::schema_of;

use self::reporter::Reporter;
use crate::shared::finished_exchange::{FinishedExchange, Nanos, target};
use crate::shared::ids::{happens, uuid};
use crate::shared::sw8::{self, Reference};
use sigma_plugin_kit::batch::{Batches, Limits, Pace, Processor};

const NAME: &str = "skywalking";

/// The number of this gateway among SkyWalking's components.
const COMPONENT: u32 = 6002;

/// The name of a node that is not known yet when it gets its parent.
const PEER: &str = "upstream service";

/// Segments of a batch.
const BATCH: usize = 100;

/// Bytes of segments that may wait; APISIX has as much in the memory that its workers share.
const WAITING_BYTES: usize = 32 << 20;

/// `skywalking`.
pub(crate) static SKYWALKING: Descriptor = Descriptor {
    name: NAME,
    priority: 12010,
    doc: include_str!("doc.md"),
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite, Phase::Log]),
    run_policy: RunPolicy::PreferRoute,
    attributes: Some(schema_of::<Attributes>),
    owned_fields: Some(|_| [sw8::SW8, sw8::CORRELATION].map(OwnedField::shared).into()),
    build: |build| Ok(Arc::new(Skywalking::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Makes segments of sampled requests and sends them to an OAP server.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// The sampled share of requests.
    #[schemars(range(min = 0.00001, max = 1), extend("default" = 1))]
    sample_ratio: f64,
}

impl Configuration for Config {}

/// The settings of the plugin for the process.
#[derive(Deserialize, JsonSchema)]
#[serde(default)]
struct Attributes {
    /// The name of the gateway as a service.
    service_name: String,
    /// The name of this gateway among the instances of the service; `$hostname` is the name of the machine.
    service_instance_name: String,
    /// The URL of the OAP server. With `https` the certificate is verified.
    endpoint_addr: String,
    /// Seconds between two reports.
    #[schemars(range(min = 1))]
    report_interval: u64,
}

impl Default for Attributes {
    fn default() -> Attributes {
        Attributes {
            service_name: "APISIX".to_owned(),
            service_instance_name: "APISIX Instance Name".to_owned(),
            endpoint_addr: "http://127.0.0.1:12800".to_owned(),
            report_interval: 3,
        }
    }
}

/// The service of the segments.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    service: String,
    instance: String,
}

/// An instance.
struct Skywalking {
    sample_ratio: f64,
    identity: Identity,
    processor: Arc<Processor>,
}

/// A request that is sampled.
struct Sampled {
    trace: String,
    segment: String,
    parent: Option<Reference>,
}

impl Skywalking {
    fn new(build: &Build<'_>) -> Result<Skywalking, String> {
        let config: Config = build.config()?;
        let told = Option::<Attributes>::deserialize(build.node.attribute(NAME));
        let told = told.map_err(|error| format!("plugin_attr.{NAME}: {error}"))?.unwrap_or_default();
        let instance = told.service_instance_name.replace("$hostname", build.node.hostname());
        let identity = Identity { service: told.service_name, instance };
        let interval = sigma_plugin_kit::batch::seconds(told.report_interval);
        let reporter = Reporter::new(&told.endpoint_addr, identity.clone(), interval)
            .map_err(|reason| format!("plugin_attr.{NAME}.endpoint_addr: {reason}"))?;
        let pace = Pace {
            name: NAME.to_owned(),
            batch_max_size: BATCH,
            inactive_timeout: interval,
            buffer_duration: interval,
            max_retry_count: 0,
            retry_delay: Duration::ZERO,
        };
        let limits = Limits { bytes: WAITING_BYTES, ..Limits::default() };
        let processor = Batches::processor(build.node, NAME, 0, pace, limits, || Arc::new(reporter));
        Ok(Skywalking { sample_ratio: config.sample_ratio, identity, processor })
    }
}

impl Plugin for Skywalking {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        if !happens(self.sample_ratio, env) {
            ctx.record.not_sampled();
            return Step::Next;
        }
        ctx.record.sampled();
        let headers = &mut ctx.request.headers;
        let parent = headers.find(sw8::SW8.as_bytes()).and_then(Reference::parse);
        let correlation = headers.find(sw8::CORRELATION.as_bytes()).and_then(sw8::correlation);
        let segment = uuid(env);
        let trace = match &parent {
            Some(parent) => parent.trace.clone(),
            None => headers.find(b"request-id").and_then(plain).unwrap_or_else(|| segment.clone()),
        };
        let own = Reference {
            trace: trace.clone(),
            segment: segment.clone(),
            // The exit span of the segment.
            span: 1,
            service: self.identity.service.clone(),
            instance: self.identity.instance.clone(),
            endpoint: String::from_utf8_lossy(&ctx.uri).into_owned(),
            address: PEER.to_owned(),
        };
        headers.replace(sw8::SW8, own.write().as_bytes());
        match correlation {
            Some(correlation) => headers.replace(sw8::CORRELATION, correlation.as_bytes()),
            None => headers.remove_name(sw8::CORRELATION.as_bytes()),
        }
        ctx.keep(self, Sampled { trace, segment, parent });
        Step::Next
    }

    fn samples(&self) -> bool {
        true
    }

    fn log(&self, ctx: &mut Context, env: &Env<'_>) {
        let Some(sampled) = ctx.take_kept::<_, Sampled>(self) else { return };
        if let Some(segment) = segment(ctx, env, &self.identity, &sampled) {
            self.processor.push(segment.to_string().into_bytes(), &*ctx, env);
        }
    }
}

/// Returns the id of a request that may be the id of its trace.
fn plain(id: &[u8]) -> Option<String> {
    let is_plain = !id.is_empty() && id.len() <= 128 && id.iter().all(u8::is_ascii_graphic);
    is_plain.then(|| String::from_utf8_lossy(id).into_owned())
}

/// The segment of an exchange that has ended.
fn segment(ctx: &Context, env: &Env<'_>, identity: &Identity, sampled: &Sampled) -> Option<Value> {
    let course = FinishedExchange::of(ctx, env)?;
    let uri = String::from_utf8_lossy(&ctx.uri);
    let record = &ctx.record;
    let span = |number: usize, parent: i32, kind: &str, (began, ended): (Nanos, Nanos)| {
        json!({
            "spanId": number,
            "parentSpanId": parent,
            "startTime": began / 1_000_000,
            "endTime": ended / 1_000_000,
            "operationName": uri,
            "spanType": kind,
            "spanLayer": "Http",
            "componentId": COMPONENT,
            "isError": false,
            "tags": [],
        })
    };
    let mut entry = span(0, -1, "Entry", (course.began, course.ended));
    entry["isError"] = (record.status >= 500 || record.fault.is_some()).into();
    entry["tags"] = entry_tags(ctx);
    if let Some(parent) = &sampled.parent {
        entry["refs"] = json!([{
            "refType": "CrossProcess",
            "traceId": parent.trace,
            "parentTraceSegmentId": parent.segment,
            "parentSpanId": parent.span,
            "parentService": parent.service,
            "parentServiceInstance": parent.instance,
            "parentEndpoint": parent.endpoint,
            "networkAddressUsedAtPeer": parent.address,
        }]);
    }
    let mut spans = vec![entry];
    let tries: Vec<_> = course.tries().collect();
    if let (Some(first), Some(last)) = (tries.first(), tries.last()) {
        let mut exit = span(1, 0, "Exit", (first.began, last.ended));
        exit["peer"] = PEER.into();
        exit["isError"] = (last.failure.is_some() || last.attempt.status >= 500).into();
        exit["tags"] = tags([
            ("http.status_code", status(last.attempt.status)),
            ("node", last.attempt.addr.to_string()),
        ]);
        spans.push(exit);
    }
    // One attempt is the exit span; of several each has its own.
    for one in tries.iter().filter(|_| tries.len() > 1) {
        let mut attempt = span(spans.len(), 1, "Local", (one.began, one.ended));
        attempt["operationName"] = format!("attempt {}", one.attempt.addr).into();
        attempt["isError"] = (one.failure.is_some() || one.attempt.status >= 500).into();
        let retry = ("retry", one.number.to_string());
        attempt["tags"] = tags([("http.status_code", status(one.attempt.status)), retry]);
        spans.push(attempt);
    }
    for wait in course.waits() {
        // The exit span has its number even where it is missing: nodes got it.
        let mut waited = span(spans.len().max(2), 0, "Local", (wait.began, wait.ended));
        waited["operationName"] = wait.name().into();
        spans.push(waited);
    }
    Some(json!({
        "traceId": sampled.trace,
        "traceSegmentId": sampled.segment,
        "service": identity.service,
        "serviceInstance": identity.instance,
        "spans": spans,
    }))
}

fn entry_tags(ctx: &Context) -> Value {
    let url = [ctx.scheme().as_bytes(), b"://", &ctx.host_name(), &target(ctx)].concat();
    tags([
        ("http.method", String::from_utf8_lossy(ctx.request.method_token()).into_owned()),
        ("http.params", String::from_utf8_lossy(&url).into_owned()),
        ("http.status_code", status(ctx.record.status)),
    ])
}

/// Without a status that was not sent.
fn status(status: u16) -> String {
    if status == 0 { String::new() } else { status.to_string() }
}

fn tags<const N: usize>(pairs: [(&str, String); N]) -> Value {
    let told = pairs.into_iter().filter(|(_, value)| !value.is_empty());
    told.map(|(key, value)| json!({"key": key, "value": value})).collect()
}
