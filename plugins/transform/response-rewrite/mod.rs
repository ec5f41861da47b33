//! `response-rewrite`: status, fields and body of a response become others.

mod locations;

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::{BodyLength, Chunk, Headers, Method};
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::{
    BodyFilter, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Pieces, Plugin, ResponseStep, Step,
    Transform,
};
use sigma_schema::described::schema_of;
use sigma_schema::expr::Expr;

use locations::{CookieConfig, Locations, Replacement};
use sigma_plugin_kit::budget::{Budget, WorkerBytes};
use sigma_plugin_kit::changed_body::{change_head, is_part, remove_digests, replace_content};
use sigma_plugin_kit::condition;
use sigma_plugin_kit::fields::{FieldRules, Lines, Notation};
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::response_body::{
    Encoding, Filtering, Filters, Scope, Unfiltered, ask_for_readable, ask_for_whole,
};
use sigma_plugin_kit::substitute::Substitution;

/// The plugin.
pub(crate) static RESPONSE_REWRITE: Descriptor = Descriptor {
    name: "response-rewrite",
    priority: 899,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite, Phase::HeaderFilter, Phase::BodyFilter]),
    build: |build| Ok(Arc::new(ResponseRewrite { budget: Budget::of(build)?, ..build.config()? })),
    attributes: Some(schema_of::<Budget>),
    variables: &[
        VariableField::shown("vars", VariableForm::Condition),
        VariableField::shown("headers.*", VariableForm::Template),
        VariableField::shown("headers.*.*", VariableForm::Template),
        VariableField::shown("headers.*.*.*", VariableForm::Template),
        VariableField::shown("location.*.to", VariableForm::Template),
        VariableField::shown("cookies.domain.*.to", VariableForm::Template),
        VariableField::shown("cookies.path.*.to", VariableForm::Template),
    ],
    ..Descriptor::of::<ResponseRewrite>()
};

/// Changes status, fields and body of responses, including responses of other plugins.
///
/// Filters see bodies decoded if they are encoded with gzip or brotli. Requests to nodes are for whole bodies
/// (`Range` is removed) and for these encodings. A part (206) that a node sends nevertheless is not filtered, and is
/// reported in the error log. A body over `max_resp_body_size` bytes, encoded or decoded, is cut
/// off. So is a body with another encoding, unless `unfiltered` permits it, and one with a broken encoding. A
/// configured `body` is whole as well: `Range` is removed, and with `vars` a part (206) becomes 200. A changed body
/// loses `Content-Length`, `Content-Encoding`, `Accept-Ranges`, `Last-Modified`, `ETag` and digests. All waiting
/// bodies in one worker take at most 256 MiB, or `plugin_attr.response-rewrite.worker_bytes`; bodies beyond that are
/// cut off too.
#[derive(Deserialize, JsonSchema)]
#[schemars(extend(
    "minProperties" = 1,
    "dependencies" = {"body": {"not": {"required": ["filters"]}}, "filters": {"not": {"required": ["body"]}}}
))]
struct Config {
    /// Rules for fields: `add`, `set` and `remove`, or just fields to set. Values may contain variables.
    #[serde(default, deserialize_with = "Notation::<Lines, false>::rules")]
    #[schemars(with = "Notation<Lines, false>")]
    headers: FieldRules,
    /// Replaces the body.
    body: Option<String>,
    /// Whether `body` is base64.
    #[schemars(extend("default" = false))]
    body_base64: bool,
    /// Replaces the status.
    #[schemars(range(min = 200, max = 598))]
    status_code: Option<u16>,
    /// Conditions; only matching responses are changed.
    #[serde(default, deserialize_with = "condition::vars")]
    vars: Option<Expr>,
    /// Replacements in the body, in this order.
    #[schemars(length(min = 1))]
    filters: Option<Vec<FilterConfig>>,
    /// Media types of the bodies that filters see. Default: all. Sigma's own.
    #[serde(default)]
    #[schemars(extend("default" = [], "own_default" = true))]
    filter_types: MediaTypes,
    /// Bytes of a body that filters see, encoded and decoded.
    // APISIX's number.
    #[schemars(range(min = 1), extend("default" = 64 << 20))]
    max_resp_body_size: usize,
    /// Treatment of a body over the limit or with another coding: cut off (`cut`), or forwarded and filtered up to the
    /// limit (`pass`). An encoded body over the limit is always cut off. Sigma's own.
    #[schemars(extend("default" = "cut", "own_default" = true))]
    unfiltered: Unfiltered,
    /// Replacements in `Location` and `Refresh`; the first matching one applies. Sigma's own.
    #[schemars(length(min = 1))]
    location: Option<Vec<Replacement>>,
    /// Changes of cookie attributes in `Set-Cookie`. Sigma's own.
    cookies: Option<CookieConfig>,
}

#[derive(Deserialize, JsonSchema)]
struct FilterConfig {
    /// The text to find.
    #[schemars(length(min = 1))]
    regex: String,
    /// Replaced matches: the first (`once`), or all (`global`).
    #[schemars(extend("default" = "once"))]
    scope: Scope,
    /// The replacement; `$1` for groups.
    replace: String,
    /// Flags, e.g. `i` for any case.
    #[schemars(extend("default" = "jo"))]
    options: String,
}

/// Media types without their parameters; none: all.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
struct MediaTypes(#[schemars(inner(length(min = 1)))] Vec<String>);

impl MediaTypes {
    fn has(&self, headers: &Headers) -> bool {
        let media_type = headers.find(b"Content-Type").unwrap_or_default();
        let media_type = media_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        self.0.is_empty() || self.0.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(media_type))
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(try_from = "Config")]
#[schemars(with = "Config")]
struct ResponseRewrite {
    status: Option<u16>,
    headers: FieldRules,
    vars: Option<Expr>,
    locations: Option<Locations>,
    body: NewBody,
    budget: Budget,
}

impl Configuration for ResponseRewrite {}

enum NewBody {
    Same,
    Replaced(Arc<[u8]>),
    Filtered(Arc<Filters>, MediaTypes),
}

/// State of the header filter for the body filter.
struct Verdict {
    encoding: Encoding,
    is_filtered: bool,
}

impl TryFrom<Config> for ResponseRewrite {
    type Error = String;

    fn try_from(config: Config) -> Result<ResponseRewrite, String> {
        let body = match (config.body, config.filters) {
            (Some(body), _) if config.body_base64 => {
                let decoded = STANDARD.decode(body).ok().filter(|bytes| !bytes.is_empty());
                NewBody::Replaced(decoded.ok_or("invalid base64 content")?.into())
            }
            (Some(body), _) => NewBody::Replaced(body.into_bytes().into()),
            (None, _) if config.body_base64 => return Err("invalid base64 content".into()),
            (None, Some(filters)) => {
                let compile = |FilterConfig { regex, scope, replace, options }| {
                    let made = Substitution::new(&regex, &replace, &options);
                    made.map(|made| (made, scope))
                        .map_err(|reason| format!("regex \"{regex}\" validation failed: {reason}"))
                };
                let all = filters.into_iter().map(compile).collect::<Result<_, String>>()?;
                let (limit, unfiltered) = (config.max_resp_body_size, config.unfiltered);
                NewBody::Filtered(Arc::new(Filters { all, limit, unfiltered }), config.filter_types)
            }
            (None, None) => NewBody::Same,
        };
        Ok(ResponseRewrite {
            status: config.status_code,
            headers: config.headers,
            vars: config.vars,
            locations: Locations::of(config.location, config.cookies)?,
            body,
            budget: Budget::default(),
        })
    }
}

impl Plugin for ResponseRewrite {
    fn rewrite(&self, ctx: &mut Context, _env: &Env<'_>) -> Step {
        match (&self.body, &self.vars) {
            (NewBody::Filtered(..), _) => ask_for_readable(&mut ctx.request.headers),
            (NewBody::Replaced(_), None) => ask_for_whole(&mut ctx.request.headers),
            // Most responses may stay as they are, parts among them.
            (NewBody::Replaced(_), Some(_)) | (NewBody::Same, _) => {}
        }
        Step::Next
    }

    fn header_filter(&self, ctx: &mut Context, _env: &Env<'_>) -> ResponseStep {
        if self.vars.as_ref().is_some_and(|vars| !vars.eval(ctx)) {
            return ResponseStep::Next;
        }
        let is_filtered = match &self.body {
            NewBody::Replaced(_) => {
                replace_content(ctx);
                false
            }
            NewBody::Filtered(_, types) => types.has(&ctx.response.headers) && !complain_of_part(ctx),
            NewBody::Same => false,
        };
        if let Some(status) = self.status {
            ctx.response.status = status;
        }
        let encoding = Encoding::of(&ctx.response.headers);
        if let NewBody::Filtered(filters, _) = &self.body
            && is_filtered
        {
            match filters.reads(encoding) {
                true => change_head(&mut ctx.response.headers),
                false => complain_of_encoding(),
            }
        }
        if let Some(locations) = &self.locations {
            locations.apply(ctx);
        }
        self.headers.apply(ctx, &[], |ctx| &mut ctx.response.headers);
        ctx.keep(self, Verdict { encoding, is_filtered });
        ResponseStep::Next
    }

    fn body_filter(&self, ctx: &mut Context, env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        let Verdict { encoding, is_filtered } = ctx.take_kept(self)?;
        if ctx.request.client_method() == Method::Head {
            return None;
        }
        if matches!(ctx.response.status, 204 | 205 | 304) {
            return Some(Silence.filter());
        }
        match &self.body {
            NewBody::Same => None,
            NewBody::Replaced(body) => Some(NewPieces { body: Arc::clone(body) }.filter()),
            NewBody::Filtered(filters, _) if !is_filtered || !filters.reads(encoding) => None,
            NewBody::Filtered(filters, _) => {
                let share = self.budget.share(env.local.part(WorkerBytes::default));
                Some(Filtering::new(Arc::clone(filters), encoding, share).filter())
            }
        }
    }
}

/// Returns true for a part, which stays as it is. Filters often hide something, so the operator learns of it.
fn complain_of_part(ctx: &mut Context) -> bool {
    static COMPLAINT: LogThrottle = LogThrottle::new();
    let is_part = is_part(ctx);
    if is_part && let Some(left_out) = COMPLAINT.due() {
        tracing::warn!(
            left_out,
            "response-rewrite: a node sent a part (206) without a request for it; it is not filtered"
        );
    }
    is_part
}

fn complain_of_encoding() {
    static COMPLAINT: LogThrottle = LogThrottle::new();
    if let Some(left_out) = COMPLAINT.due() {
        tracing::error!(left_out, "response-rewrite: filters cannot decode the Content-Encoding of a body");
    }
}

/// The status allows no body, even if the node sends one.
struct Silence;

impl Transform for Silence {
    fn length(&self, _length: BodyLength) -> BodyLength {
        BodyLength::None
    }

    fn data(&mut self, _cx: &mut Context, _data: Chunk, _out: &mut Pieces) {}
}

struct NewPieces {
    body: Arc<[u8]>,
}

impl Transform for NewPieces {
    fn length(&self, _length: BodyLength) -> BodyLength {
        BodyLength::Known(self.body.len() as u64)
    }

    fn data(&mut self, _cx: &mut Context, _data: Chunk, _out: &mut Pieces) {}

    fn end(&mut self, _cx: &mut Context, trailers: Option<&mut Headers>, out: &mut Pieces) {
        trailers.into_iter().for_each(remove_digests);
        out.bytes(&self.body);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use serde_json::{Value, json};

    use crate::testing::{Case, entry, refusal};

    fn gzipped(text: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn run(conf: Value, fields: &str, body: &[&[u8]]) -> (Case, String) {
        let plugin = entry("response-rewrite", conf).unwrap();
        let mut case = Case::new("GET /p?q=7 HTTP/1.1\nHost: h");
        case.respond(200, fields);
        let body = case.filter(&plugin, body);
        (case, String::from_utf8_lossy(&body).into_owned())
    }

    #[test]
    fn bodies_are_replaced_and_filtered() {
        let check = |conf: Value, fields: &str, body: &[&[u8]], expected: &str| {
            assert_eq!(run(conf.clone(), fields, body).1, expected, "{conf}");
        };
        let filter = |scope: &str| json!({"filters": [{"regex": "l(.)", "replace": "<$1>", "scope": scope}]});
        check(json!({"body": "new"}), "", &[b"old", b"er"], "new");
        check(json!({"body": ""}), "", &[b"old"], "");
        check(json!({"body": "bmV3", "body_base64": true}), "", &[], "new");
        check(filter("once"), "", &[b"hel", b"lo hello"], "he<l>o hello");
        check(filter("global"), "", &[b"hel", b"lo hello"], "he<l>o he<l>o");
        let encoded = gzipped(b"hello");
        check(filter("once"), "Content-Encoding: gzip", &[&encoded[..5], &encoded[5..]], "he<l>o");
        let mut passing = filter("once");
        passing["unfiltered"] = "pass".into();
        check(passing, "Content-Encoding: zstd", &[b"hello"], "hello");
        let mut encoder = brotli::CompressorWriter::new(Vec::new(), 4096, 5, 20);
        encoder.write_all(b"hello").unwrap();
        let encoded = encoder.into_inner();
        check(filter("once"), "Content-Encoding: br", &[&encoded], "he<l>o");
        let two = json!({"filters": [{"regex": "A", "replace": "b", "options": "i"}, {"regex": "b", "replace": "c"}]});
        check(two, "", &[b"xa"], "xc");
        let mut small = filter("global");
        small["max_resp_body_size"] = 4.into();
        small["unfiltered"] = "pass".into();
        check(small, "", &[b"la", b"lalala", b"la"], "<a><a>lalala");
        let mut typed = filter("once");
        typed["filter_types"] = json!(["text/html"]);
        check(typed.clone(), "Content-Type: Text/HTML; charset=utf-8", &[b"hello"], "he<l>o");
        check(typed.clone(), "Content-Type: application/json", &[b"hello"], "hello");
        check(typed, "", &[b"hello"], "hello");
        check(json!({"body": "new", "vars": [["status", "==", 404]]}), "", &[b"old"], "old");
        check(json!({"body": "new", "vars": [["status", "==", 200]]}), "", &[b"old"], "new");
    }

    #[test]
    fn status_and_fields() {
        let conf = json!({
            "status_code": 201,
            "body": "x",
            "headers": {"add": ["X-Add: $arg_q", "X-Add: b://c/"], "set": {"X-Set": "$uri", "X-N": 3}, "remove": ["X-Gone"]}
        });
        let fields =
            "Content-Length: 3\nETag: e\nLast-Modified: l\nContent-Encoding: gzip\nX-Gone: 1\nX-Set: o";
        let (case, _) = run(conf, fields, &[b"old"]);
        let mut left = Vec::new();
        case.ctx.response.headers.write_to(&mut left);
        assert_eq!(case.ctx.response.status, 201);
        assert_eq!(String::from_utf8(left).unwrap(), "X-Add: 7\r\nX-Add: b://c/\r\nX-Set: /p\r\nX-N: 3\r\n");
        let (case, _) = run(json!({"headers": {"X-A": "v"}}), "ETag: e\nContent-Length: 3", &[b"old"]);
        assert_eq!((case.answered("X-A"), case.answered("ETag")), ("v".into(), "e".into()));
        // RFC 9110 §15.3.6: a 205 has no content either.
        for status in [204, 205] {
            let (_, body) = run(json!({"status_code": status, "body": "new"}), "", &[b"old"]);
            assert_eq!(body, "", "{status}");
        }
    }

    #[test]
    fn wrong_configurations_are_refused() {
        let check = |conf: Value, expected: &str| {
            let refusal = refusal("response-rewrite", &conf);
            assert!(refusal.starts_with(expected) && !refusal.is_empty(), "{conf}: {refusal}");
        };
        check(
            json!({"status_code": 599}),
            "property \"status_code\" validation failed: expected 599 to be at most 598",
        );
        check(json!({}), "expect object to have at least 1 properties");
        check(json!({"body": "%", "body_base64": true}), "invalid base64 content");
        check(json!({"body": "", "body_base64": true}), "invalid base64 content");
        check(json!({"status_code": 200, "body_base64": true}), "invalid base64 content");
        check(
            json!({"vars": ["a", "==", 1]}),
            "failed to validate the 'vars' expression: rule should be wrapped inside brackets",
        );
        check(json!({"vars": [[]]}), "failed to validate the 'vars' expression: rule too short");
        check(json!({"headers": {"": "a"}}), "invalid field length in header");
        check(json!({"headers": {"set": {"": "a"}}}), "invalid field length in header");
        check(json!({"headers": {"a b": "a"}}), "invalid field character in header");
        check(json!({"filters": [{"regex": "(", "replace": ""}]}), "regex \"(\" validation failed: ");
        check(
            json!({"filters": [{"regex": "a", "replace": "", "options": "q"}]}),
            "regex \"a\" validation failed: unknown flag \"q\"",
        );
        check(json!({"filters": [{"regex": "a"}]}), "property \"filters\" validation failed: ");
        check(json!({"headers": {"add": ["a"]}}), "property \"headers\" validation failed: ");
        assert_ne!(
            refusal("response-rewrite", &json!({"body": "a", "filters": [{"regex": "a", "replace": ""}]})),
            ""
        );
    }
}
