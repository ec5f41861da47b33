//! `body-transformer`: bodies rendered by templates from the parsed body.

#[cfg(any(test, feature = "fuzzing"))]
mod fuzzing;
mod input;
#[cfg(test)]
mod tests;
mod xml;
mod yaml;

use std::rc::Rc;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_http::{Fault, FaultKind, HeaderId, Headers, Method};
use sigma_plugin::step::BodyRead;
use sigma_plugin::{
    BodyFilter, Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, ResponseStep, Step,
    Transform,
};
use sigma_schema::described::schema_of;
use sigma_schema::expr::{VarName, VarValue, Variables};

use crate::shared::arguments::text;
use crate::shared::whole_body::{Remake, WholeBody};
#[cfg(any(test, feature = "fuzzing"))]
pub use fuzzing::{body_formats, templates};
use input::Format;
use sigma_plugin_kit::body_template::{Data, Template};
use sigma_plugin_kit::budget::{Budget, WorkerBytes};
use sigma_plugin_kit::changed_body::{change_head, has_content, is_part, replace_request_body};
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::response_body::{Encoding, ask_for_readable};

/// The plugin.
pub(crate) static BODY_TRANSFORMER: Descriptor = Descriptor {
    name: "body-transformer",
    priority: 1080,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite, Phase::HeaderFilter, Phase::BodyFilter]),
    attributes: Some(schema_of::<Budget>),
    build: |build| Ok(Arc::new(BodyTransformer(Arc::new(Transformer::new(build)?)))),
    ..Descriptor::of::<Config>()
};

/// Replaces the body of a request or a response with a template, which uses the parsed old body.
///
/// `{{value}}` shows a value escaped for HTML, `{*value*}` unescaped. Statements are `{% if … then %}`, `elseif`,
/// `else`, `end`, `{% for key, value in pairs(…) do %}`, `ipairs`, `{% for i = 1, 3 do %}` and `{% local name = … %}`.
/// `{# … #}` is a comment, `{-raw-}…{-raw-}` is text. Members of the parsed body are variables; there are also
/// `_body`, `_ctx.var.NAME`, `_multipart`, `context` and the functions `_escape_json`, `_escape_xml`, `tostring`,
/// `tonumber`, `string.upper` and `string.lower`. Values have Lua's operators: `..`, `==`, `~=`, `<`, `and`, `or`,
/// `not`, `#`, `+`, `-`, `*`, `/`, `%`; lists begin with 1. Other constructs of Lua are refused, with their line.
///
/// The arguments of a GET are its body. Otherwise `input_format` or `Content-Type` selects the parser. Of a repeated
/// name in an object the last value counts. XML has no declarations of types, and its entities are the five of the
/// language. YAML is one document of version 1.2 with the types of JSON; what aliases repeat counts among
/// `max_body_values`, and 64 bytes of their text as a value. `Content-Type` stays as it is.
///
/// The whole response is buffered; the node's request has no content coding. A response that is too large, malformed,
/// or makes the template fail is cut off, so that clients see an error.
#[derive(Deserialize, JsonSchema)]
#[schemars(extend("anyOf" = [{"required": ["request"]}, {"required": ["response"]}]))]
struct Config {
    /// The transformation of request bodies.
    request: Option<Side>,
    /// The transformation of response bodies.
    response: Option<Side>,
    /// Largest request body in bytes, before and after the transformation; it is held in memory.
    #[schemars(range(min = 1), extend("default" = 67_108_864))]
    max_req_body_size: usize,
    /// Largest response body in bytes, before and after the transformation; it is held in memory.
    #[schemars(range(min = 1), extend("default" = 67_108_864))]
    max_resp_body_size: usize,
    /// Maximum values in a body. A value takes up to a few hundred bytes of memory.
    #[schemars(range(min = 1), extend("default" = 250_000, "own_default" = true))]
    max_body_values: usize,
    /// Maximum steps of one template: one for each value, each loop iteration, and 64 bytes of text. Ten million take
    /// a worker about a second.
    #[schemars(range(min = 1), extend("default" = 2_000_000, "own_default" = true))]
    max_steps: usize,
}

#[derive(Deserialize, JsonSchema)]
struct Side {
    /// The template, or its Base64.
    template: String,
    /// The format of the body. Default: by `Content-Type`.
    input_format: Option<Format>,
    /// Whether the template must be Base64; otherwise Base64 is detected.
    template_is_base64: Option<bool>,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        for (name, side) in [("request", &self.request), ("response", &self.response)] {
            if let Some(side) = side {
                side.template().map_err(|error| format!("{name}.template: {error}"))?;
            }
        }
        Ok(())
    }
}

impl Side {
    fn template(&self) -> Result<Template, String> {
        let is_text = matches!(self.input_format, Some(Format::Encoded | Format::Args));
        let decoded = || String::from_utf8(STANDARD.decode(self.template.trim()).ok()?).ok();
        let decoded = match self.template_is_base64 {
            Some(true) => Some(decoded().ok_or("it is not the Base64 of a text")?),
            _ if is_text => None,
            _ => decoded(),
        };
        Template::parse(decoded.as_deref().unwrap_or(&self.template))
    }
}

/// A template, and the form of the bodies that it is about.
struct Transformation {
    template: Template,
    format: Option<Format>,
    /// Bytes of a body, before and after.
    limit: usize,
}

struct Transformer {
    request: Option<Transformation>,
    response: Option<Transformation>,
    max_values: usize,
    max_steps: usize,
    budget: Budget,
}

/// Why there is no new body.
enum Failure {
    /// The old one is not of its form.
    Undecoded(String),
    Unrendered(String),
}

impl Transformer {
    fn new(build: &Build<'_>) -> Result<Transformer, String> {
        let config: Config = build.config()?;
        let side = |side: Option<Side>, limit| {
            let made = side.map(|side| {
                Ok::<_, String>(Transformation {
                    template: side.template()?,
                    format: side.input_format,
                    limit,
                })
            });
            made.transpose()
        };
        Ok(Transformer {
            request: side(config.request, config.max_req_body_size)?,
            response: side(config.response, config.max_resp_body_size)?,
            max_values: config.max_body_values,
            max_steps: config.max_steps,
            budget: Budget::of(build)?,
        })
    }

    /// Returns the body that replaces this one, of a message with these fields.
    fn made(
        &self,
        transformation: &Transformation,
        format: Option<Format>,
        fields: &Headers,
        body: &[u8],
        ctx: &Context,
    ) -> Result<String, Failure> {
        let content_type = fields.get(HeaderId::ContentType).unwrap_or_default();
        let content_type = String::from_utf8_lossy(content_type);
        let format = format.or_else(|| Format::of(&content_type));
        let text = text(body).map_err(Failure::Undecoded)?;
        let (root, body) = match format {
            Some(Format::Args) => {
                let query = ctx.request.query().unwrap_or_default();
                (Format::Args.read(query, "", self.max_values).map_err(Failure::Undecoded)?, json!(text))
            }
            Some(format) if !body.is_empty() => {
                let root = format.read(body, &content_type, self.max_values).map_err(Failure::Undecoded)?;
                (root, json!(text))
            }
            _ => (Value::Null, json!(text)),
        };
        let variable = |name: &VarName| match ctx.get(name)? {
            VarValue::Text(text) => Some(String::from_utf8_lossy(&text).into_owned()),
            VarValue::Bool(truth) => Some(truth.to_string()),
            VarValue::List(_) => None,
        };
        let data = Data {
            root: &root,
            body: &body,
            variable: &variable,
            most_steps: self.max_steps,
            most_text: transformation.limit,
        };
        transformation.template.rendered(&data).map_err(Failure::Unrendered)
    }

    fn request(&self, transformation: &Transformation, ctx: &mut Context) -> Step {
        let refused = |status: u16, what: &str, reason: String| {
            Step::json(status, &json!({ "message": format!("request {what}: {reason}") }))
        };
        if Encoding::of(&ctx.request.headers) != Encoding::Identity {
            return refused(
                400,
                "body decode",
                "it has a Content-Encoding; send the body unencoded".to_owned(),
            );
        }
        let is_get = ctx.request.method == Method::Get;
        let format = if is_get { Some(Format::Args) } else { transformation.format };
        let body = ctx.body.as_deref().unwrap_or_default();
        let made = self.made(transformation, format, &ctx.request.headers, body, ctx);
        match made {
            Ok(made) => {
                replace_request_body(ctx, made.into_bytes());
                Step::Next
            }
            Err(Failure::Undecoded(reason)) => refused(400, "body decode", reason),
            Err(Failure::Unrendered(reason)) => refused(503, "template rendering", reason),
        }
    }
}

struct BodyTransformer(Arc<Transformer>);

/// How the node has encoded the body, before the field that says it was removed.
struct Coded(Encoding);

impl Plugin for BodyTransformer {
    fn rewrite(&self, ctx: &mut Context, _env: &Env<'_>) -> Step {
        if self.0.response.is_some() {
            ask_for_readable(&mut ctx.request.headers);
            ctx.request.headers.remove(HeaderId::AcceptEncoding);
        }
        let Some(request) = &self.0.request else { return Step::Next };
        let transformer = Arc::clone(&self.0);
        let then = move |ctx: &mut Context, _: &Env<'_>, read: BodyRead| match (read, &transformer.request) {
            (BodyRead::Whole, Some(request)) => transformer.request(request, ctx),
            _ => Step::status(413),
        };
        Step::ReadBody { limit: request.limit, then: Box::new(then) }
    }

    fn header_filter(&self, ctx: &mut Context, _env: &Env<'_>) -> ResponseStep {
        // The state of an earlier response, which this one replaces.
        let _ = ctx.take_kept::<_, Coded>(self);
        if self.0.response.is_some() && !is_part(ctx) {
            let coded = Coded(Encoding::of(&ctx.response.headers));
            ctx.keep(self, coded);
            change_head(&mut ctx.response.headers);
        }
        ResponseStep::Next
    }

    fn body_filter(&self, ctx: &mut Context, env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        let limit = self.0.response.as_ref()?.limit;
        let Coded(encoding) = ctx.take_kept(self)?;
        if !has_content(ctx) {
            return None;
        }
        let share = self.0.budget.share(Rc::clone(&env.local.part(Bodies::default).0));
        Some(WholeBody::new(Arc::clone(&self.0), encoding, limit, share).filter())
    }
}

/// The bodies that one worker holds back.
#[derive(Default)]
struct Bodies(Rc<WorkerBytes>);

impl Remake for Arc<Transformer> {
    const FULL: Fault =
        Fault::new(FaultKind::MemoryLimit, "the bodies that body-transformer buffers exceed their limit");

    fn remade(&self, ctx: &Context, body: &[u8]) -> Option<Vec<u8>> {
        let response = self.response.as_ref()?;
        match self.made(response, response.format, &ctx.response.headers, body, ctx) {
            Ok(made) => Some(made.into_bytes()),
            Err(Failure::Undecoded(reason) | Failure::Unrendered(reason)) => {
                static COMPLAINT: LogThrottle = LogThrottle::new();
                if let Some(left_out) = COMPLAINT.due() {
                    tracing::error!(left_out, reason, "failed to transform response body");
                }
                None
            }
        }
    }
}
