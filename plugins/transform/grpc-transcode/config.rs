//! The configuration.

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_plugin::Configuration;
use sigma_schema::id::Id;

use super::output::{Defaults, Form, LargeIntegers};

/// Transcodes JSON requests to gRPC calls of an upstream.
///
/// The upstream has `scheme: grpc` or `grpcs`. The fields of the message come from the body, if it is a JSON object,
/// or else from the arguments of a form (POST) or of the query. Unknown members are ignored. With `http_rules`, the
/// annotations `google.api.http` of the service map requests to methods and their parts to fields. `method` is then
/// for requests without a match, which otherwise get 404.
///
/// For a client stream the body is an array of messages in `application/json`, or messages one after the other, such
/// as lines of `application/x-ndjson`. Each message is sent when it is complete; the response may arrive meanwhile.
/// Fields from the query and the path belong to the first message. `max_req_body_size` and `max_body_values` limit
/// each message of a stream. An invalid message ends the call: with 400 or 413 if the response has not begun.
///
/// The response is JSON with the field names of the definition. Well-known types, such as `Any`, `Timestamp` and
/// `StringValue`, have their JSON form of Protocol Buffers; `bytes` are base64. A server stream is one line of JSON
/// for each message; if the call fails after some messages, the last line is `{"error":{"code":…,"message":"…"}}`. A
/// status in the head of a response becomes an HTTP status; a status after the messages is a trailer. Messages of a
/// response are held in memory; `plugin_attr` limits their sum in one worker.
///
/// A missing `proto_id`, one that cannot be compiled (the error log has the reason), and an unknown method get 503.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Config {
    /// The id of the definition, a resource `protos`.
    pub(super) proto_id: Id,
    /// The service, with its package: `package.Service`.
    pub(super) service: String,
    /// The method. Optional only with `http_rules`.
    pub(super) method: Option<String>,
    /// Milliseconds for `grpc-timeout` to the node, if more than 0.
    #[schemars(extend("default" = 0))]
    deadline: f64,
    /// Representation of messages. Of several options for one thing the last one applies. Integers of 64 bits that do
    /// not fit into 32 are `"#123"` as strings. `use_default_metatable` has the effect of `no_default_values`; there
    /// are no hooks.
    #[schemars(length(min = 1), extend("default" = ["enum_as_name", "int64_as_number", "auto_default_values", "disable_hooks"]))]
    pb_option: Vec<PbOption>,
    /// Whether the details of a failed call (`grpc-status-details-bin`) are the body.
    #[schemars(extend("default" = false))]
    pub(super) show_status_in_body: bool,
    /// The message type of each detail, with its package. Default: details in the definition are decoded, others are
    /// base64.
    pub(super) status_detail_type: Option<String>,
    /// Largest message of a response in bytes, with its frame; a larger one ends the call.
    #[schemars(range(min = 1), extend("default" = 67_108_864))]
    pub(super) max_resp_body_size: usize,
    /// Largest request body in bytes, in a stream the largest message; it is held in memory.
    #[schemars(range(min = 1), extend("default" = 67_108_864, "own_default" = true))]
    pub(super) max_req_body_size: usize,
    /// Maximum values in a body or message. A value takes up to a few hundred bytes of memory.
    #[schemars(range(min = 1), extend("default" = 250_000, "own_default" = true))]
    pub(super) max_body_values: usize,
    /// Whether the annotations `google.api.http` of the service map requests to methods. The first matching one
    /// applies, in the order of the methods.
    #[schemars(extend("default" = false, "own_default" = true))]
    pub(super) http_rules: bool,
}

/// Representation of messages, in the words of APISIX' library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum PbOption {
    EnumAsName,
    EnumAsValue,
    Int64AsNumber,
    Int64AsString,
    Int64AsHexstring,
    AutoDefaultValues,
    NoDefaultValues,
    UseDefaultValues,
    UseDefaultMetatable,
    EnableHooks,
    DisableHooks,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        match self.method {
            None if !self.http_rules => Err("property \"method\" is required".to_owned()),
            _ => Ok(()),
        }
    }
}

/// Most that eight digits can say, which is what `grpc-timeout` has.
const MOST_TIMEOUT: f64 = 99_999_999.0;

impl Config {
    pub(super) fn form(&self) -> Form {
        let mut form =
            Form { enums_by_name: true, large_integers: LargeIntegers::Number, defaults: Defaults::Proto3 };
        for option in &self.pb_option {
            match option {
                PbOption::EnumAsName => form.enums_by_name = true,
                PbOption::EnumAsValue => form.enums_by_name = false,
                PbOption::Int64AsNumber => form.large_integers = LargeIntegers::Number,
                PbOption::Int64AsString => form.large_integers = LargeIntegers::Decimal,
                PbOption::Int64AsHexstring => form.large_integers = LargeIntegers::Hexadecimal,
                PbOption::AutoDefaultValues => form.defaults = Defaults::Proto3,
                PbOption::UseDefaultValues => form.defaults = Defaults::All,
                PbOption::NoDefaultValues | PbOption::UseDefaultMetatable => form.defaults = Defaults::None,
                PbOption::EnableHooks | PbOption::DisableHooks => {}
            }
        }
        form
    }

    /// The value of `grpc-timeout`: whole milliseconds, or seconds where those would be too many.
    pub(super) fn timeout(&self) -> Option<String> {
        match self.deadline.ceil() {
            0.0 => None,
            ms if ms < 0.0 => None,
            ms if ms <= MOST_TIMEOUT => Some(format!("{ms}m")),
            ms => Some(format!("{}S", (ms / 1000.0).ceil().min(MOST_TIMEOUT))),
        }
    }
}
