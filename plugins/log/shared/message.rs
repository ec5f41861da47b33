//! The message of a queue: entries in JSON, or heads of requests as they came.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_plugin::{Context, Env};
use sigma_schema::Problem;

use sigma_plugin_kit::batch::Processor;
use sigma_plugin_kit::log_entry::{self, EntryConfig, Formats, Logger, Sink};

/// The content of a message.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MetaFormat {
    Default,
    Origin,
}

impl MetaFormat {
    /// The logger whose entries are these. With `single` a batch is one entry.
    pub(crate) fn logger(
        self,
        entry: EntryConfig,
        formats: Formats,
        processor: Arc<Processor>,
        single: bool,
    ) -> Logger<Messages> {
        match self {
            MetaFormat::Default => Logger::new(entry, formats, Messages { processor, origin: None }),
            MetaFormat::Origin => {
                let origin = Some(Origin { single, most_body: entry.max_request_body() });
                Logger::new(entry.without_formats(), Formats::default(), Messages { processor, origin })
            }
        }
    }
}

/// A warning of a format that no message has.
pub(crate) fn unheeded_format(conf: &Value) -> Option<Problem> {
    let is_origin = conf.get("meta_format").is_some_and(|format| format == "origin");
    let message = "it has no effect with `meta_format: origin`: messages are the request head";
    (is_origin && conf.get("log_format").is_some())
        .then(|| Problem::new("log_format", "without_effect", message).hint("remove it, or `meta_format`"))
}

/// Makes entries of exchanges.
pub(crate) struct Messages {
    processor: Arc<Processor>,
    /// Entries are heads of requests.
    origin: Option<Origin>,
}

/// How heads of requests are entries.
struct Origin {
    /// Each is sent alone, as it is.
    single: bool,
    /// Bytes of a body that are shown.
    most_body: usize,
}

impl Sink for Messages {
    fn take(&self, entry: Map<String, Value>, ctx: &Context, env: &Env<'_>) {
        let Some(origin) = &self.origin else { return self.processor.take(entry, ctx, env) };
        let shows_body = entry.get("request").is_some_and(|request| request.get("body").is_some());
        let body = shows_body.then(|| ctx.seen_request_body(origin.most_body)).flatten();
        let head = head(ctx, &body.unwrap_or_default());
        let bytes = match origin.single {
            true => head,
            false => Value::from(String::from_utf8_lossy(&head)).to_string().into_bytes(),
        };
        self.processor.push(bytes, ctx, env);
    }
}

/// The head of a request as text, and the body behind it.
fn head(ctx: &Context, body: &[u8]) -> Vec<u8> {
    let request = &ctx.request;
    let line = [request.method_token(), request.path_and_query(), request.version.as_str().as_bytes()];
    let mut out = line.join(&b' ');
    out.extend_from_slice(b"\r\n");
    for (name, value) in request.headers.iter().take(log_entry::MAX_FIELDS) {
        out.extend_from_slice(&name.to_ascii_lowercase());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(body);
    out
}
