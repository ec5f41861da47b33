//! `opentelemetry`: a span of each sampled request, and spans of its phases, sent by OTLP.
//!
//! | file | question |
//! |---|---|
//! | `config` | the configuration |
//! | `propagation` | which contexts come with a request, and which nodes get |
//! | `spans` | what spans say of an exchange |
//! | `export` | how batches reach a collector |

mod config;
mod export;
mod propagation;
mod spans;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::{Build, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Step};
use sigma_schema::Problem;
use sigma_schema::described::schema_of;
use sigma_schema::plugins::PluginScope;

use self::config::{Config, Metadata, Propagator, TraceIdSource};
use self::export::Exporter;
use self::spans::{Additional, Sampled};
use crate::shared::b3;
use crate::shared::ids::{SpanId, TraceId};
use crate::shared::sampling::Sampler;
use crate::shared::w3c::SpanContext;
use sigma_plugin_kit::batch::{Batches, Limits, Processor};
use sigma_plugin_kit::cleartext::is_exposed;
use sigma_plugin_kit::log_throttle::LogThrottle;

const NAME: &str = "opentelemetry";

/// `opentelemetry`.
pub(crate) static OPENTELEMETRY: Descriptor = Descriptor {
    name: NAME,
    priority: 12009,
    doc: include_str!("doc.md"),
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite, Phase::BeforeProxy, Phase::Log]),
    metadata_schema: Some(schema_of::<Metadata>),
    variables: &[VariableField::shown("additional_attributes.*", VariableForm::Name)],
    warnings: Some(warnings),
    // `traceparent` and its like are known to the gateway, and have no other spelling.
    owned_fields: Some(|_| b3::owned_fields()),
    build: |build| Ok(Arc::new(Tracing::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// The processor of metadata that are in force, in the words of one hash: instances share it.
fn processor(build: &Build<'_>, metadata: &Metadata) -> Result<(Arc<Processor>, bool), String> {
    let (way, queue) = (metadata.way()?, metadata.queue()?);
    if let Value::String(address) = &build.metadata["collector"]["address"]
        && is_exposed(address)
    {
        tracing::warn!("opentelemetry: spans are sent to {address} in cleartext");
    }
    let key = Build::new(NAME, build.metadata, "", &Value::Null, build.node).conf_hash();
    let resource = metadata.resource(build.node.hostname());
    let limits = Limits { entries: queue.spans, ..Limits::default() };
    let make = || Arc::new(Exporter::new(way, resource)) as Arc<_>;
    let processor = Batches::processor(build.node, NAME, key, queue.pace, limits, make);
    Ok((processor, queue.drops_alone))
}

fn warnings(scope: PluginScope, conf: &Value) -> Vec<Problem> {
    // Metadata have no sampler.
    if scope == PluginScope::Metadata {
        return Vec::new();
    }
    let sampler = &conf["sampler"];
    let never = match sampler["name"].as_str() {
        None | Some("always_off") => true,
        Some("trace_id_ratio") => sampler["options"]["fraction"].as_f64().unwrap_or(0.0) <= 0.0,
        _ => false,
    };
    if !never {
        return Vec::new();
    }
    let message = "no request is sampled";
    vec![
        Problem::new("sampler", "without_effect", message)
            .hint("write `always_on`, `parent_base`, or a share with `trace_id_ratio`"),
    ]
}

/// An instance.
struct Tracing {
    sampler: Sampler,
    /// The parent's decision goes before the sampler.
    follows_parent: bool,
    trusts: bool,
    additional: Additional,
    /// None without metadata.
    shared: Option<Shared>,
}

/// The settings of the metadata.
struct Shared {
    trace_id_source: TraceIdSource,
    sets_variables: bool,
    propagators: Vec<Propagator>,
    processor: Arc<Processor>,
    drops_alone: bool,
}

impl Tracing {
    fn new(build: &Build<'_>) -> Result<Tracing, String> {
        let config: Config = build.config()?;
        let metadata = Option::<Metadata>::deserialize(build.metadata);
        let metadata = metadata.map_err(|error| format!("plugin metadata of {NAME}: {error}"))?;
        let shared = metadata.map(|metadata| {
            let (processor, drops_alone) = processor(build, &metadata)?;
            let Metadata { trace_id_source, set_ngx_var: sets_variables, propagators, .. } = metadata;
            Ok::<_, String>(Shared { trace_id_source, sets_variables, propagators, processor, drops_alone })
        });
        let (sampler, follows_parent) = config.sampler.sampler();
        let fields = config.additional_header_prefix_attributes.unwrap_or_default();
        let additional = Additional::new(config.additional_attributes.unwrap_or_default(), fields);
        let shared = shared.transpose().map_err(|reason| format!("plugin metadata of {NAME}: {reason}"))?;
        Ok(Tracing { sampler, follows_parent, trusts: config.trust_incoming, additional, shared })
    }

    fn is_sampled(&self, trace: TraceId, parent: Option<&SpanContext>) -> bool {
        match parent.filter(|_| self.follows_parent) {
            Some(parent) => parent.is_sampled,
            None => self.sampler.keeps(trace),
        }
    }
}

impl Shared {
    /// The id of a trace that begins here.
    fn new_trace(&self, ctx: &Context, env: &Env<'_>) -> TraceId {
        let known = match self.trace_id_source {
            TraceIdSource::Random => None,
            TraceIdSource::RequestId => {
                let mut sent = ctx.request.headers.find_variable(b"x-request-id");
                match (sent.next(), sent.next()) {
                    (Some(only), None) => TraceId::parse(only),
                    (Some(_), Some(_)) => None,
                    (None, _) => TraceId::parse(ctx.request_id().as_bytes()),
                }
            }
        };
        known.unwrap_or_else(|| TraceId::draw(env))
    }
}

impl Plugin for Tracing {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        static COMPLAINT: LogThrottle = LogThrottle::new();
        let Some(shared) = &self.shared else {
            if let Some(left_out) = COMPLAINT.due() {
                tracing::warn!(
                    left_out,
                    "plugin_metadata is required for opentelemetry plugin to working properly"
                );
            }
            ctx.record.not_sampled();
            return Step::Next;
        };
        let found = || propagation::extract(&shared.propagators, &ctx.request.headers);
        let parent = self.trusts.then(found).flatten();
        let trace = parent.map_or_else(|| shared.new_trace(ctx, env), |parent| parent.trace);
        let is_sampled = self.is_sampled(trace, parent.as_ref());
        let own = SpanContext { trace, span: SpanId::draw(env), is_sampled };
        let headers = &mut ctx.request.headers;
        propagation::inject(&shared.propagators, headers, &own, parent.is_some(), self.trusts);
        if shared.sets_variables {
            ctx.set_variable_with("opentelemetry_context_traceparent", move || own.write().to_vec());
            ctx.set_variable_with("opentelemetry_trace_id", move || own.trace.hex().to_vec());
            ctx.set_variable_with("opentelemetry_span_id", move || own.span.hex().to_vec());
        }
        if is_sampled {
            ctx.record.sampled();
            // For other plugins that report the same request.
            ctx.keep(self, own);
            let parent = parent.map(|parent| parent.span);
            ctx.keep(self, Sampled { own, parent, attempts: Vec::new() });
        } else {
            ctx.record.not_sampled();
        }
        Step::Next
    }

    /// Each node gets the span of its own attempt: its work for a request that another node gets as well is
    /// then below the right attempt.
    fn before_proxy(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let Some(shared) = &self.shared else { return Step::Next };
        // Attempts are written down when they have begun: this one will be the next.
        let number = ctx.record.attempts.len();
        let Some(sampled) = ctx.kept::<_, Sampled>(self) else { return Step::Next };
        let span = sampled.draw_attempt(number, env);
        let told = SpanContext { span, ..sampled.own };
        propagation::tell(&shared.propagators, &mut ctx.request.headers, &told);
        Step::Next
    }

    fn samples(&self) -> bool {
        true
    }

    fn log(&self, ctx: &mut Context, env: &Env<'_>) {
        let Some(shared) = &self.shared else { return };
        let Some(sampled) = ctx.take_kept::<_, Sampled>(self) else { return };
        for span in spans::spans(ctx, env, &sampled, &self.additional) {
            if !shared.processor.offer(span, &*ctx, env) && !shared.drops_alone {
                shared.processor.hurry();
            }
        }
    }
}
