//! `prometheus`: requests and sessions counted by route, and the page that a Prometheus server scrapes.

mod exemplars;
mod gzip;
mod labels;
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
use sigma_config::described::schema_of;
use sigma_http::header::list_items;
use sigma_http::{BodyLength, HeaderId, Headers, Method};
use sigma_plugin::context::RouteFacts;
use sigma_plugin::descriptor::Endpoint;
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, Flow, FlowPlugin, Node, Phase, PhaseSet, Plugin, Reply,
    RunPolicy, Session, Step, StreamBody,
};

use exemplars::Exemplar;
use labels::Labels;
use series::{Registry, Sample, Table};
use settings::{Attributes, Disabled, Metadata, Settings};
use shared_page::{Pieces, SharedPages};
use text::{Coding, Form, Look};

use crate::rewrite::coding;
use crate::trace::w3c::SpanContext;

const NAME: &str = "prometheus";

/// `prometheus`.
pub(crate) static PROMETHEUS: Descriptor = Descriptor {
    name: NAME,
    version: "0.2",
    priority: 500,
    doc: include_str!("doc.md"),
    example: EXAMPLE,
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

const EXAMPLE: &str = r#"```yaml
listeners: ["127.0.0.1:9080"]
plugin_attr:
  prometheus: { export_addr: { ip: 127.0.0.1, port: 9091 } }
global_rules:
  - { id: metrics, plugins: { prometheus: {} } }
routes:
  - { id: orders, uri: /orders, upstream: http://127.0.0.1:9000 }
```

```console
$ curl -s -o /dev/null -w '%{http_code}\n' http://127.0.0.1:9080/orders
200
$ curl -s http://127.0.0.1:9091/apisix/prometheus/metrics | grep 'apisix_http_status{'
apisix_http_status{code="200",route="orders",matched_uri="/orders",…} 1
```
"#;

#[derive(Deserialize, JsonSchema)]
struct Config {
    /// Shows the names of route and service in place of their ids, where they have one.
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
    let has_exemplars = registry.settings.exemplar_series > 0;
    let form = if has_exemplars { form_of(headers) } else { Form::Text };
    let look = Look { form, coding };
    let pieces = move || -> Pieces { Box::new(render::pieces(registry, node, look)) };
    let reader = env.node.part(SharedPages::default).read(env.node, look, pieces);
    Step::wait(reader, move |reader, _, _| {
        let body = StreamBody { length: BodyLength::Streamed, source: Box::new(reader) };
        Step::Stream(Box::new(head(look, has_exemplars)), body)
    })
}

/// The form that a scraper wants most. One that does not name OpenMetrics gets text.
fn form_of(request: &Headers) -> Form {
    let (mut open, mut text) = (0, 0);
    for range in request.get_all(HeaderId::Accept).flat_map(list_items) {
        let mut parts = range.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let kind = parts.next().unwrap_or_default();
        let (mut weight, mut is_known) = (1000, true);
        for part in parts {
            match part.split_at_checked(2) {
                Some((name, value)) if name.eq_ignore_ascii_case(b"q=") => {
                    weight = coding::thousandths(value)
                }
                _ if part.starts_with(b"version=") => is_known = matches!(&part[8..], b"1.0.0" | b"0.0.1"),
                _ => {}
            }
        }
        if kind.eq_ignore_ascii_case(b"application/openmetrics-text") && is_known {
            open = open.max(weight);
        } else if kind.eq_ignore_ascii_case(b"text/plain") {
            text = text.max(weight);
        }
    }
    if open > 0 && open >= text { Form::OpenMetrics } else { Form::Text }
}

/// `may_differ`: by what is accepted.
fn head(look: Look, may_differ: bool) -> Reply {
    let kind = match look.form {
        Form::Text => "text/plain; charset=utf-8",
        Form::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
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

/// Which of a route's patterns a path meets. The router does not tell, and most routes have one.
pub(crate) fn matched_uri<'r>(route: &'r RouteFacts, path: &[u8]) -> &'r str {
    longest(&route.uris, |pattern| {
        let end = pattern.find([':', '*', '{']).unwrap_or(pattern.len());
        path.starts_with(&pattern.as_bytes()[..end]) && (end < pattern.len() || end == path.len())
    })
}

/// Which of a route's host patterns a host meets.
fn matched_host<'r>(route: &'r RouteFacts, host: &[u8]) -> &'r str {
    longest(&route.hosts, |pattern| match pattern.strip_prefix('*') {
        Some(suffix) => {
            let at = host.len().checked_sub(suffix.len());
            at.is_some_and(|at| host[at..].eq_ignore_ascii_case(suffix.as_bytes()))
        }
        None => host.eq_ignore_ascii_case(pattern.as_bytes()),
    })
}

/// The only pattern, or the longest that is met; empty if there is none.
fn longest(patterns: &[Box<str>], meets: impl Fn(&str) -> bool) -> &str {
    if let [only] = patterns {
        return only;
    }
    let met = patterns.iter().map(|pattern| &**pattern).filter(|pattern| meets(pattern));
    met.max_by_key(|pattern| pattern.len()).unwrap_or_default()
}
