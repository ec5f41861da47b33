//! `prometheus`: requests and sessions counted by route, and the page that a Prometheus server scrapes.

mod cell;
mod exemplars;
mod gzip;
mod labels;
mod latency;
mod native;
mod page;
mod protobuf;
mod push;
mod render;
mod series;
mod settings;
mod shared_page;
#[cfg(test)]
mod tests;
mod text;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::header::list_items;
use sigma_http::{BodyLength, HeaderId, Headers, Method};
use sigma_plugin::descriptor::Endpoint;
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, Flow, FlowPlugin, Node, Phase, PhaseSet, Plugin, Reply,
    RunPolicy, Session, Step, StreamBody,
};
use sigma_schema::described::schema_of;

use exemplars::Exemplar;
use labels::Labels;
use series::{Registry, Sample, Table};
use settings::{Attributes, Disabled, Metadata, Settings};
use shared_page::{Pieces, SharedPages};
use text::{Coding, Form, Look};

use crate::shared::matched::{matched_host, matched_uri};
use crate::shared::w3c::SpanContext;
use sigma_plugin_kit::coding;

const NAME: &str = "prometheus";

/// `prometheus`.
pub(crate) static PROMETHEUS: Descriptor = Descriptor {
    name: NAME,
    version: "0.2",
    priority: 500,
    doc: include_str!("doc.md"),
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Log]),
    metadata_schema: Some(schema_of::<Metadata>),
    run_policy: RunPolicy::PreferRoute,
    endpoints: &[Endpoint {
        path: "/apisix/prometheus/metrics",
        path_setting: "export_uri",
        method: Method::Get,
        answer,
    }],
    build: |build| Ok(Arc::new(Prometheus::new(build)?)),
    flow: Some(Flow::of::<Config>(|build| Ok(Arc::new(Prometheus::new(build)?)))),
    attributes: Some(schema_of::<Attributes>),
    ..Descriptor::of::<Config>()
};

#[derive(Deserialize, JsonSchema)]
struct Config {
    /// Uses the names of route and service instead of their ids, if they have one.
    #[schemars(extend("default" = false))]
    prefer_name: bool,
}

impl Configuration for Config {}

/// The page, together with all who wait for it.
fn answer(ctx: &mut Context, env: &Env<'_>) -> Step {
    let headers = &ctx.request.headers;
    let gzip = coding::weight_or_any(headers, "gzip");
    let is_wanted = gzip > 0 && gzip >= coding::weight(headers, "identity").unwrap_or(0);
    let coding = if is_wanted { Coding::Gzip } else { Coding::Identity };
    let (node, registry) = (Arc::clone(env.node), registry(env.node));
    let mut offered = vec![Form::Text];
    offered.extend((registry.settings.exemplar_series > 0).then_some(Form::OpenMetrics));
    offered.extend(registry.settings.native.is_some().then_some(Form::Protobuf));
    let look = Look { form: form_of(headers, &offered), coding };
    let pieces = move || -> Pieces { Box::new(render::pieces(registry, node, look)) };
    let reader = env.node.part(SharedPages::default).read(env.node, look, pieces);
    Step::wait(reader, move |reader, _, _| {
        let body = StreamBody { length: BodyLength::Streamed, source: Box::new(reader) };
        Step::Stream(Box::new(head(look, offered.len() > 1)), body)
    })
}

/// The form that a scraper wants most of those that are offered. One that names none of them gets text.
fn form_of(request: &Headers, offered: &[Form]) -> Form {
    let ranges = request.get_all(HeaderId::Accept).flat_map(list_items);
    let wanted = ranges.filter_map(wanted).filter(|(weight, form)| *weight > 0 && offered.contains(form));
    wanted.max().map_or(Form::Text, |(_, form)| form)
}

/// A form that is accepted, and how much it is wanted.
fn wanted(range: &[u8]) -> Option<(u16, Form)> {
    let mut parts = range.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let form = match parts.next()? {
        kind if kind.eq_ignore_ascii_case(b"text/plain") => Form::Text,
        kind if kind.eq_ignore_ascii_case(b"application/openmetrics-text") => Form::OpenMetrics,
        kind if kind.eq_ignore_ascii_case(b"application/vnd.google.protobuf") => Form::Protobuf,
        _ => return None,
    };
    let (mut weight, mut proto, mut encoding) = (1000, None, None);
    for part in parts {
        let mut pair = part.splitn(2, |byte| *byte == b'=').map(<[u8]>::trim_ascii);
        let (name, value) = (pair.next()?.to_ascii_lowercase(), pair.next().unwrap_or_default());
        let bare = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
        match (&name[..], form) {
            (b"q", _) => weight = coding::thousandths(value),
            (b"version", Form::OpenMetrics) if !matches!(bare, b"1.0.0" | b"0.0.1") => return None,
            (b"proto", Form::Protobuf) => proto = Some(bare),
            (b"encoding", Form::Protobuf) => encoding = Some(bare),
            _ => {}
        }
    }
    // There are messages of other kinds, and other ways to write this one.
    let is_family = proto == Some(b"io.prometheus.client.MetricFamily") && encoding == Some(b"delimited");
    (form != Form::Protobuf || is_family).then_some((weight, form))
}

/// `may_differ`: whether the form depends on `Accept`.
fn head(look: Look, may_differ: bool) -> Reply {
    let kind = match look.form {
        Form::Text => "text/plain; charset=utf-8",
        Form::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        Form::Protobuf => {
            "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
        }
    };
    let vary = if may_differ { "accept, accept-encoding" } else { "accept-encoding" };
    let head = Reply::new(200).header("content-type", kind).header("vary", vary);
    match look.coding {
        Coding::Gzip => head.header("content-encoding", "gzip"),
        Coding::Identity => head,
    }
}

fn registry(node: &Node) -> Arc<Registry> {
    node.part(|| Registry::new(Settings::of(node.attribute(NAME))))
}

struct Prometheus {
    prefer_name: bool,
    disabled: Disabled,
    registry: Arc<Registry>,
}

impl Prometheus {
    fn new(build: &Build<'_>) -> Result<Prometheus, String> {
        let Config { prefer_name } = build.config()?;
        let disabled = Disabled::of(&build.metadata_as()?);
        let registry = registry(build.node);
        push::begin(build.node, &registry);
        Ok(Prometheus { prefer_name, disabled, registry })
    }
}

impl Plugin for Prometheus {
    fn log(&self, ctx: &mut Context, env: &Env<'_>) {
        let record = &ctx.record;
        let mut labels = Labels {
            status: record.status,
            source: record.source,
            node: record.attempts.last().map(|attempt| &attempt.addr),
            consumer: ctx.consumer().map_or("", |consumer| &consumer.name),
            ..Labels::default()
        };
        let host;
        if let Some(route) = ctx.route.as_deref() {
            let (name, service_name) = match self.prefer_name {
                true => (route.name.as_deref(), route.service_name.as_deref()),
                false => (None, None),
            };
            labels.route = name.unwrap_or(&route.id);
            labels.service = service_name.or(route.service_id.as_deref()).unwrap_or_default();
            labels.matched_uri = matched_uri(route, &ctx.uri);
            if !route.hosts.is_empty() {
                host = ctx.host_name();
                labels.matched_host = matched_host(route, &host);
            }
        }
        let answered = record.attempts.iter().any(|attempt| attempt.status != 0);
        let request_ms = record.elapsed_ms().unwrap_or_default();
        let keeps = self.registry.settings.exemplar_series > 0;
        let span = if keeps { ctx.kept_by_any::<SpanContext>() } else { None };
        let sample = Sample {
            request_ms,
            exemplar: span.map(|span| Exemplar { span: *span, value: request_ms, at: env.unix_time() }),
            upstream_ms: answered
                .then(|| record.attempts.iter().filter_map(|attempt| attempt.response_ms).sum()),
            ingress: record.bytes_received,
            egress: record.bytes_sent,
        };
        let table = env.local.part(|| Table::new(&self.registry));
        table.count(&labels, self.disabled, ctx, &sample);
    }
}

impl FlowPlugin for Prometheus {
    fn log(&self, session: &Session, env: &Env<'_>) {
        let (route, status) = labels::of_session(session, self.prefer_name);
        env.local.part(|| Table::new(&self.registry)).count_session(route, status);
    }
}
