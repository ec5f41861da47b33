//! `oas-validator`: requests that an OpenAPI document does not describe go no further, nor do answers if that is wanted.
//!
//! | file | question |
//! |---|---|
//! | [`specification`] | the document's requirements on requests and answers |
//! | [`tree`] | which operation a request is of |
//! | [`media_type`] | which media types are meant |
//! | [`parameter`] | forms and schemas of parameters |
//! | [`body`] | which bodies an operation takes |
//! | [`answers`] | which answers an operation gives |
//! | [`inspection`] | the handling of answers |
//! | [`shape`] | which values the texts of a request are |
//! | [`remote`] | documents that are fetched |

mod answers;
mod body;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzing;
mod inspection;
mod media_type;
mod parameter;
mod remote;
mod shape;
mod specification;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_plugin::step::BodyRead;
use sigma_plugin::{
    BodyFilter, Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, ResponseStep,
    Slot, Step,
};
use sigma_schema::Problem;
use sigma_schema::described::schema_of;
use sigma_schema::validation::is_secret_reference;

use self::answers::Unfit;
#[cfg(any(test, feature = "fuzzing"))]
pub use self::fuzzing::oas_validator;
use self::inspection::Verdict;
use self::parameter::Limits;
use self::remote::{FetchStep, Remote, Settings};
use self::specification::{Scope, Skipped, Specification};
use sigma_plugin_kit::budget::Budget;
use sigma_plugin_kit::decisions::{Key, key};
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::registry::Registry;
use sigma_plugin_kit::tallies::{Counted, counted};
use sigma_plugin_kit::web::Address;

/// The plugin.
pub(crate) static OAS_VALIDATOR: Descriptor = Descriptor {
    name: "oas-validator",
    priority: 512,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access, Phase::HeaderFilter, Phase::BodyFilter]),
    metadata_schema: Some(schema_of::<Metadata>),
    attributes: Some(schema_of::<Budget>),
    warnings: Some(|_, conf| warnings(conf)),
    build: |build| Ok(Arc::new(OasValidator(Arc::new(Validator::new(build)?)))),
    ..Descriptor::of::<Config>()
};

/// Validates requests by an OpenAPI document (3.0 or 3.1, in JSON or YAML).
///
/// Method and normalised path, after the path of a server of the document, select the operation. A slash at the end
/// is ignored. Of several matching paths the one with literal segments further to the left wins. Parameters in path,
/// query, fields and cookies are checked in their styles. Bodies of JSON (also `+json`), forms and multipart are
/// checked by their schema, others only by their media type. An operation without a `requestBody` accepts any body.
/// `readOnly` properties are refused, and so are values of a discriminator without a schema; defaults are not filled
/// in.
///
/// Ambiguous requests are refused. They repeat a name in a JSON object or a parameter that is not a list, or have
/// several `Content-Type`, a charset other than UTF-8, or a body with `Content-Encoding`.
///
/// All references must be within the document. Patterns are matched in linear time. A document from `spec_url` has at
/// most 16 MiB. It is fetched when a request needs it, and again when it is older than `spec_url_ttl` of the plugin
/// metadata; the old one is used meanwhile. Before the first one arrives, requests get a 500.
///
/// With `validate_responses`, responses of nodes to described requests are validated too, also cached ones. The plugin
/// checks the status (itself, then its class such as `4XX`, then `default`), the fields, `Content-Type`, and JSON
/// bodies. A `writeOnly` property in a response is an error. An operation without `responses` accepts any response,
/// one without `content` any body. Bodies of other types are not checked. A refused response is replaced by a 502
/// without its values; the log has them. Head and body wait until the body is checked; if violations are only
/// reported, the response passes without delay. If bodies are checked, nodes get requests for whole bodies, with gzip
/// and brotli as the only codings. A body that cannot be checked, because it exceeds a limit or has another coding,
/// counts as invalid. The check sees the response after plugins of higher priority; responses of the gateway and of
/// plugins are not checked.
#[derive(Deserialize, JsonSchema)]
#[schemars(extend("oneOf" = [{"required": ["spec"]}, {"required": ["spec_url"]}]))]
struct Config {
    /// The document: JSON or YAML.
    #[schemars(length(min = 1))]
    spec: Option<String>,
    /// The URL of the document.
    #[schemars(regex(pattern = "^https?://"))]
    spec_url: Option<Address>,
    /// Header fields of the request for the document.
    spec_url_request_headers: Option<BTreeMap<String, String>>,
    /// Whether the certificate of the document's server is verified.
    #[schemars(extend("default" = false))]
    ssl_verify: bool,
    /// Timeout of the request for the document in milliseconds.
    #[schemars(range(min = 1000, max = 60_000), extend("default" = 10_000))]
    timeout: u64,
    /// Whether a refusal has the reasons.
    #[schemars(extend("default" = false))]
    verbose_errors: bool,
    /// Whether bodies are not validated.
    #[schemars(extend("default" = false))]
    skip_request_body_validation: bool,
    /// Whether header fields are not validated.
    #[schemars(extend("default" = false))]
    skip_request_header_validation: bool,
    /// Whether the query is not validated.
    #[schemars(extend("default" = false))]
    skip_query_param_validation: bool,
    /// Whether parameters in the path are not validated.
    #[schemars(extend("default" = false))]
    skip_path_params_validation: bool,
    /// Whether cookies are not validated.
    #[schemars(extend("default" = false, "own_default" = true))]
    skip_cookie_params_validation: bool,
    /// Whether an invalid request is refused. Otherwise it is logged as an error and forwarded.
    #[schemars(extend("default" = true))]
    reject_if_not_match: bool,
    /// The status of a refusal.
    #[schemars(range(min = 400, max = 599), extend("default" = 400))]
    rejection_status_code: u16,
    /// Largest body, in bytes; it is held in memory. A larger one gets 500, as in APISIX.
    #[schemars(range(min = 1), extend("default" = 67_108_864))]
    max_req_body_size: u64,
    /// Validates responses too. An invalid one is logged as an error (`report`), or replaced by a 502 (`refuse`);
    /// both are in the metric `oas_validator_answer_problems_total`. Sigma's own.
    validate_responses: Option<Verdict>,
    /// Largest checked response body in bytes, also after decoding; it is held in memory.
    #[schemars(range(min = 1), extend("default" = 67_108_864, "own_default" = true))]
    max_resp_body_size: usize,
    /// Maximum values in a body, without names. A value takes up to a few hundred bytes of memory.
    #[schemars(range(min = 1), extend("default" = 250_000, "own_default" = true))]
    max_body_values: usize,
    /// Maximum steps of one validation: one for each schema applied to a value, and for each 64 bytes of text. Ten
    /// million take a worker about a second.
    #[schemars(range(min = 1), extend("default" = 4_000_000, "own_default" = true))]
    max_steps: u64,
}

/// Returns warnings about a valid configuration with surprising effects.
fn warnings(conf: &Value) -> Vec<Problem> {
    let url = conf.get("spec_url").and_then(Value::as_str);
    let idle = |fields: &[&str], reason: &str| -> Vec<Problem> {
        let written = fields.iter().filter(|field| conf.get(**field).is_some());
        let problem =
            |field: &&str| Problem::new(*field, "no_effect", format!("`{field}` has no effect {reason}"));
        written.map(problem).map(|problem| problem.hint("remove it")).collect()
    };
    let mut found = Vec::new();
    if url.is_none() {
        found.extend(idle(&["spec_url_request_headers", "ssl_verify", "timeout"], "without `spec_url`"));
    }
    let answers = conf.get("validate_responses").and_then(Value::as_str);
    if answers.is_none() {
        found.extend(idle(&["max_resp_body_size"], "without `validate_responses`"));
    }
    if conf.get("reject_if_not_match") == Some(&Value::Bool(false)) {
        found.extend(idle(&["rejection_status_code"], "unless requests are refused"));
        if answers != Some("refuse") {
            found.extend(idle(&["verbose_errors"], "unless something is refused"));
        }
    }
    let is_tls = url.is_some_and(|url| url.starts_with("https://"));
    if is_tls && conf.get("ssl_verify") != Some(&Value::Bool(true)) {
        let message = "an attacker on the network path can replace the document";
        found.push(Problem::new("ssl_verify", "unverified", message).hint("write `ssl_verify: true`"));
    }
    found.extend(sigma_plugin_kit::service::cleartext(
        conf,
        "spec_url",
        "the document is fetched in cleartext",
    ));
    found
}

/// The settings of all instances.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Metadata {
    /// Seconds after which a document from `spec_url` is fetched again.
    #[schemars(range(min = 1), extend("default" = 3600))]
    spec_url_ttl: Option<u64>,
}

const TTL_S: u64 = 3_600;

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        match self.spec.as_deref() {
            Some(text) if !is_secret_reference(text) => Specification::read(text, self.scope()).map(drop),
            _ => Ok(()),
        }
    }
}

impl Config {
    fn scope(&self) -> Scope {
        match self.validate_responses {
            Some(_) => Scope::RequestsAndAnswers,
            None => Scope::Requests,
        }
    }
}

/// State that the instances of one configuration share.
struct Validator {
    config: Config,
    source: Source,
    /// The handling of responses; None if they are not checked.
    answers: Option<Verdict>,
    /// Of the memory for their bodies.
    budget: Budget,
    problems: Counted<Unfit>,
}

enum Source {
    Written(Arc<Specification>),
    Fetched(Arc<Remote>),
}

/// Documents that stand in configurations, each once.
#[derive(Default)]
struct Documents(Registry<Key, Result<Arc<Specification>, String>>);

impl Validator {
    fn new(build: &Build<'_>) -> Result<Validator, String> {
        let config: Config = build.config()?;
        let source = match (&config.spec, &config.spec_url) {
            (Some(text), _) => {
                let scope = config.scope();
                let read = |_| Specification::read(text, scope).map(Arc::new);
                let name = key([text.as_bytes(), &[scope as u8]]);
                let written = build.node.part(Documents::default).0.get(name, read);
                Source::Written(Result::clone(&written)?)
            }
            (None, Some(address)) => {
                let metadata: Metadata = build.metadata_as()?;
                let settings = Settings {
                    address: address.clone(),
                    fields: config.spec_url_request_headers.clone().unwrap_or_default(),
                    verify: config.ssl_verify,
                    timeout_ms: config.timeout,
                    ttl_s: metadata.spec_url_ttl.unwrap_or(TTL_S),
                    scope: config.scope(),
                };
                Source::Fetched(Remote::of(settings, build.node))
            }
            (None, None) => return Err("set spec or spec_url".to_owned()),
        };
        let problems = counted(build.node, build.resource);
        Ok(Validator {
            answers: config.validate_responses,
            budget: Budget::of(build)?,
            config,
            source,
            problems,
        })
    }

    fn skipped(&self) -> Skipped {
        Skipped {
            path: self.config.skip_path_params_validation,
            query: self.config.skip_query_param_validation,
            header: self.config.skip_request_header_validation,
            cookie: self.config.skip_cookie_params_validation,
        }
    }

    fn limits(&self) -> Limits {
        Limits { values: self.config.max_body_values, steps: self.config.max_steps }
    }

    /// Validates by the document, once that is there.
    fn begin(self: Arc<Self>, slot: Slot, ctx: &mut Context, env: &Env<'_>, is_last: bool) -> Step {
        let specification = match &self.source {
            Source::Written(specification) => Arc::clone(specification),
            Source::Fetched(remote) => match remote.ask(is_last, env) {
                FetchStep::Known(specification) => specification,
                FetchStep::Waits(fetched) => {
                    return Step::wait(fetched, move |(), ctx, env| self.begin(slot, ctx, env, true));
                }
                FetchStep::Nothing => return broken("failed to parse openapi spec"),
            },
        };
        let Some(found) = specification.find(ctx.request.method_token(), &ctx.uri) else {
            let method = String::from_utf8_lossy(ctx.request.method_token()).into_owned();
            let path = String::from_utf8_lossy(&ctx.uri);
            return self.verdict(vec![format!("no matching operation found for {method} {path}")]);
        };
        let problems = found.parameters(ctx, self.skipped(), self.limits());
        let (has_body, number) = (found.operation.body.is_some(), found.number);
        drop(found);
        self.expect(slot, ctx, &specification, number);
        if !has_body || self.config.skip_request_body_validation {
            return self.verdict(problems);
        }
        let limit = usize::try_from(self.config.max_req_body_size).unwrap_or(usize::MAX);
        let then = move |ctx: &mut Context, _: &Env<'_>, read: BodyRead| match read {
            BodyRead::Whole => self.end(&specification, ctx, problems),
            // The status that APISIX has for a body over the limit too; other plugins have 413.
            _ => broken("error reading the request body. err: the body exceeds max_req_body_size"),
        };
        Step::ReadBody { limit, then: Box::new(then) }
    }

    /// Goes on once the body was read.
    fn end(&self, specification: &Specification, ctx: &Context, mut problems: Vec<String>) -> Step {
        // Nothing that decides on it has changed since.
        let found = specification.find(ctx.request.method_token(), &ctx.uri);
        if let Some(found) = found
            && let Some(described) = &found.operation.body
        {
            let outcome = match ctx.body.as_deref().unwrap_or_default() {
                [] if described.is_required => Err("request body is required".to_owned()),
                [] => Ok(()),
                body => specification::check_coding(&ctx.request.headers)
                    .and_then(|()| media_type::content_type(&ctx.request.headers))
                    .and_then(|content_type| found.body(described, content_type, body, self.limits())),
            };
            problems.extend(outcome.err().map(|reason| format!("body: {reason}")));
        }
        self.verdict(problems)
    }

    fn verdict(&self, problems: Vec<String>) -> Step {
        static COMPLAINT: LogThrottle = LogThrottle::new();
        if problems.is_empty() {
            return Step::Next;
        }
        let details = problems.join("\n");
        if let Some(left_out) = COMPLAINT.due() {
            // The client's text is written in one line.
            tracing::error!(left_out, ?details, "oas-validator: failed to validate request");
        }
        if !self.config.reject_if_not_match {
            return Step::Next;
        }
        let details = if self.config.verbose_errors { &*details } else { "" };
        let message = format!("failed to validate request. {details}");
        Step::json(self.config.rejection_status_code, &json!({ "message": message }))
    }
}

/// The response where nothing can be said of a request.
fn broken(message: &'static str) -> Step {
    Reply::new(500).json(&json!({ "message": message })).because(message).into()
}

struct OasValidator(Arc<Validator>);

impl Plugin for OasValidator {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        Arc::clone(&self.0).begin(Slot::from(self), ctx, env, false)
    }

    fn header_filter(&self, ctx: &mut Context, env: &Env<'_>) -> ResponseStep {
        self.0.look(Slot::from(self), ctx, env)
    }

    fn body_filter(&self, ctx: &mut Context, env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        self.0.inspection(Slot::from(self), ctx, env)
    }
}
