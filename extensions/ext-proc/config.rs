//! The configuration of `ext-proc`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_plugin::Configuration;
use sigma_plugin::descriptor::InlineUpstream;
use sigma_plugin::outbound::Service;
use sigma_plugin_kit::field_names::Names;
use sigma_plugin_kit::fields::{frames, is_name, is_plain};

use crate::attributes::Attribute;
use crate::mode::{BodyMode, ProcessingMode, SendMode};
use crate::rules::MutationRules;

/// The name of the service among the plugin's upstreams.
pub(crate) const SERVICE: &str = "service";

/// Lets an external processor read and change requests and responses, with Envoy's protocol
/// (`envoy.service.ext_proc.v3.ExternalProcessor/Process`).
///
/// One gRPC stream is open for each exchange. `processing_mode` selects the parts that the processor gets. It may change
/// fields, bodies and trailers, or respond to the client itself. The processor is an upstream of the plugin: its name is
/// resolved in advance, and connections are shared. A processor that cannot be reached, answers wrongly or breaks off
/// causes `status_on_error`, one that is late causes 504. After the response has begun, it is cut off. With
/// `failure_mode_allow` the exchange continues without the processor. If the processor ends the stream with the status
/// 0, the exchange continues without it as well.
///
/// A processor never changes the fields that frame a message, or request fields that another plugin of the route sets.
/// The gateway computes the length of every changed body. Changes that are not permitted are counted as
/// `ext_proc_events_total{event="mutation_rejected"}`.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct Config {
    /// The processor with gRPC. Exactly one of `grpc_service` and `http_service` is set.
    pub(crate) grpc_service: Option<GrpcService>,
    /// The processor with HTTP, for headers only: each message is a POST in JSON.
    pub(crate) http_service: Option<HttpService>,
    /// Whether exchanges continue without a processor that fails.
    #[schemars(extend("default" = false))]
    pub(crate) failure_mode_allow: bool,
    /// The parts that the processor gets.
    #[schemars(extend("default" = {}))]
    pub(crate) processing_mode: ProcessingMode,
    /// Milliseconds for each response, from the time when the message was written. Envoy's default of 200 is too short
    /// for a first connection, a large body or a slow lookup.
    #[schemars(range(min = 1, max = 3_600_000), extend("default" = 1000))]
    pub(crate) message_timeout: u64,
    /// Largest timeout in milliseconds that the processor may set for one response; 0: it may set none.
    #[schemars(range(max = 3_600_000), extend("default" = 0))]
    pub(crate) max_message_timeout: u64,
    /// Milliseconds that the processor may be silent in full duplex after it got the whole body. Messages there have no
    /// other timeout.
    #[schemars(range(min = 1, max = 3_600_000), extend("default" = 60_000))]
    pub(crate) duplex_idle_timeout: u64,
    /// Largest body in bytes that is buffered. A larger request gets 413, a larger response becomes a failure;
    /// `BUFFERED_PARTIAL` sends this many bytes.
    #[schemars(range(min = 1, max = 67_108_864), extend("default" = 1_048_576))]
    pub(crate) max_body_bytes: usize,
    /// The fields that the processor may change.
    #[schemars(extend("default" = {}))]
    pub(crate) mutation_rules: MutationRules,
    /// The fields that the processor gets; unset: all.
    pub(crate) forward_rules: Option<ForwardRules>,
    /// Attributes that the processor gets with the head of the request.
    #[schemars(extend("default" = []))]
    pub(crate) request_attributes: Vec<Attribute>,
    /// Attributes that the processor gets with the head of the response.
    #[schemars(extend("default" = []))]
    pub(crate) response_attributes: Vec<Attribute>,
    /// Whether the processor may change the processing mode in its responses to headers.
    #[schemars(extend("default" = false))]
    pub(crate) allow_mode_override: bool,
    /// The modes that it may choose; empty: any.
    #[schemars(extend("default" = []))]
    pub(crate) allowed_override_modes: Vec<ProcessingMode>,
    /// Whether a response by the processor itself is a failure.
    #[schemars(extend("default" = false))]
    pub(crate) disable_immediate_response: bool,
    /// Whether the processor only watches: nothing waits for it, and its responses are ignored.
    #[schemars(extend("default" = false))]
    pub(crate) observability_mode: bool,
    /// Milliseconds that a watching processor has after the exchange, to read its messages.
    #[schemars(range(max = 3_600_000), extend("default" = 5000))]
    pub(crate) deferred_close_timeout: u64,
    /// Status after a failure.
    #[schemars(range(min = 400, max = 599), extend("default" = 500))]
    pub(crate) status_on_error: u16,
    /// Whether a field that the processor sets without an `append_action` is added to existing ones, as the protocol
    /// defines the number 0. By default it replaces them, as in Envoy.
    #[schemars(extend("default" = false))]
    pub(crate) append_by_default: bool,
    /// Whether `append_action` and `keep_empty_value` are ignored, as Envoy does.
    #[schemars(extend("default" = false))]
    pub(crate) ignore_header_actions: bool,
}

/// A processor with gRPC.
#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct GrpcService {
    /// The processor: `http://host:port` for plain text, `https://…` over TLS.
    pub(crate) uri: Service,
    /// Whether the processor's certificate is verified.
    #[schemars(extend("default" = true))]
    #[serde(default = "yes")]
    pub(crate) ssl_verify: bool,
    /// Metadata of each stream.
    #[serde(default)]
    #[schemars(extend("default" = {}))]
    pub(crate) initial_metadata: BTreeMap<String, String>,
}

/// A processor with HTTP.
#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct HttpService {
    /// The URL of the processor.
    pub(crate) uri: Service,
    /// Whether the processor's certificate is verified.
    #[schemars(extend("default" = true))]
    #[serde(default = "yes")]
    pub(crate) ssl_verify: bool,
}

/// The fields that are sent to the processor, `:path` and its like among them.
#[derive(Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct ForwardRules {
    /// Fields that are sent; unset: all.
    pub(crate) allowed_headers: Option<Names>,
    /// Fields that are not sent, even if they are allowed.
    pub(crate) disallowed_headers: Option<Names>,
}

impl ForwardRules {
    /// Returns true if the processor gets a field with this name, in lower case.
    pub(crate) fn forward(&self, name: &str) -> bool {
        self.allowed_headers.as_ref().is_none_or(|names| names.contain(name))
            && !self.disallowed_headers.as_ref().is_some_and(|names| names.contain(name))
    }
}

fn yes() -> bool {
    true
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        match (&self.grpc_service, &self.http_service) {
            (Some(grpc), None) if &*grpc.uri.target != "/" => {
                let path = &grpc.uri.target;
                return Err(format!("grpc_service.uri: the gRPC method sets the path: remove `{path}`"));
            }
            (Some(grpc), None) => check_metadata(&grpc.initial_metadata)?,
            (None, Some(_)) => self.check_http()?,
            (Some(_), Some(_)) => return Err("set grpc_service or http_service, not both".to_owned()),
            (None, None) => return Err("set grpc_service or http_service".to_owned()),
        }
        let problem = self.processing_mode.problem();
        if !problem.is_empty() {
            return Err(format!("processing_mode.{problem}"));
        }
        for (number, mode) in self.allowed_override_modes.iter().enumerate() {
            if mode.has_duplex() {
                let place = format!("allowed_override_modes[{number}]");
                return Err(format!("{place}: FULL_DUPLEX_STREAMED cannot be selected during an exchange"));
            }
        }
        if !self.allowed_override_modes.is_empty() && !self.allow_mode_override {
            return Err("allowed_override_modes: set allow_mode_override too".to_owned());
        }
        if self.observability_mode {
            self.check_observability()?;
        }
        self.mutation_rules.check()
    }
}

impl Config {
    /// Returns the largest message of the processor: a body, and as much again for fields.
    pub(crate) fn answer_bytes(&self) -> usize {
        /// Room for fields, and for bodies that the processor makes longer.
        const FIELDS_BYTES: usize = 1 << 20;
        self.max_body_bytes + FIELDS_BYTES
    }

    fn check_http(&self) -> Result<(), String> {
        let mode = &self.processing_mode;
        let sends = |mode: SendMode| mode == SendMode::Send;
        let has_body = mode.request_body_mode != BodyMode::None || mode.response_body_mode != BodyMode::None;
        if has_body || sends(mode.request_trailer_mode) || sends(mode.response_trailer_mode) {
            return Err("processing_mode: http_service processes headers only; use grpc_service".to_owned());
        }
        if self.allow_mode_override || self.observability_mode {
            return Err("http_service allows neither allow_mode_override nor observability_mode".to_owned());
        }
        Ok(())
    }

    fn check_observability(&self) -> Result<(), String> {
        let mode = &self.processing_mode;
        let can_be_watched = |mode| matches!(mode, BodyMode::None | BodyMode::Streamed);
        if !can_be_watched(mode.request_body_mode) || !can_be_watched(mode.response_body_mode) {
            return Err(
                "processing_mode: with observability_mode, bodies must be NONE or STREAMED".to_owned()
            );
        }
        if self.allow_mode_override {
            return Err(
                "allow_mode_override: observability_mode ignores responses of the processor".to_owned()
            );
        }
        Ok(())
    }

    /// Returns the processor as an upstream.
    pub(crate) fn upstream(&self) -> Option<InlineUpstream> {
        let mut upstream: Value;
        match (&self.grpc_service, &self.http_service) {
            (Some(grpc), _) => {
                upstream = grpc.uri.upstream(grpc.ssl_verify, self.message_timeout);
                upstream["scheme"] = json!(if &*grpc.uri.scheme == "https" { "grpcs" } else { "grpc" });
            }
            (None, Some(http)) => upstream = http.uri.upstream(http.ssl_verify, self.message_timeout),
            (None, None) => return None,
        }
        Some(InlineUpstream { name: SERVICE.to_owned(), upstream })
    }
}

/// Refuses metadata that could not be sent.
fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<(), String> {
    let own = ["content-type", "te", "host"];
    for (name, value) in metadata {
        let is_own = own.iter().any(|own| name.eq_ignore_ascii_case(own)) || name.starts_with("grpc-");
        if !is_name(name) || frames(name) || is_own {
            return Err(format!(
                "grpc_service.initial_metadata: `{name}` cannot be set; choose another name"
            ));
        }
        if !is_plain(value) {
            let place = format!("grpc_service.initial_metadata.{name}");
            return Err(format!("{place}: the value has control characters or is not ASCII"));
        }
    }
    Ok(())
}
