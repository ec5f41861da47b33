//! `data-mask`: what logs must not show of a request.

use std::borrow::Cow;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_http::HeaderId;
use sigma_plugin::variables::pairs;
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Step};
use sigma_schema::json_path::{Fate, JsonPath};

use sigma_plugin_kit::json_body;
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::substitute::Substitution;

/// The plugin.
pub(crate) static DATA_MASK: Descriptor = Descriptor {
    name: "data-mask",
    priority: 1500,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access, Phase::Log]),
    build: |build| Ok(Arc::new(DataMask::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// JSON values of a masked body: about the most that a body of the default `max_body_size` has.
const MOST_VALUES: usize = 250_000;

/// Masks parts of a request in the access log and in loggers. The node and the client get the original data.
///
/// Rules apply one after the other, to existing data: `remove` deletes it, `replace` replaces it with `value`, and
/// `regex` replaces the first match in each value with `value`, in which `$1` is a group. Query and fields are masked
/// in all variables made of them: `request_uri`, `args`, `request`, `http_…`, `cookie_…`.
///
/// A body to which the rules cannot be applied is not logged. It has no rule for its format, is larger than
/// `max_body_size`, invalid or incomplete, or is a form without a length. `Content-Type` identifies forms. Of a
/// repeated name in an object only the last value is logged.
///
/// Loggers of global rules run before the plugins of a route: for them, mask in a global rule. Trace spans are
/// created before as well and are not masked.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// Rules for the data of a request.
    request: Option<Vec<RuleConfig>>,
    /// Maximum bytes of a masked body; it is copied while it is forwarded. A larger body is not logged.
    #[schemars(extend("exclusiveMinimum" = 0, "default" = 1_048_576))]
    max_body_size: usize,
    /// Maximum logged fields of a form; 0 for all.
    #[schemars(extend("default" = 100))]
    max_req_post_args: usize,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(extend("allOf" = [
    {"if": {"properties": {"type": {"const": "body"}}}, "then": {"required": ["body_format"]}},
    {"if": {"properties": {"action": {"const": "regex"}}}, "then": {"required": ["regex", "value"]}},
    {"if": {"properties": {"action": {"const": "replace"}}}, "then": {"required": ["value"]}},
]))]
struct RuleConfig {
    /// Where the data is.
    #[serde(rename = "type")]
    place: MaskReplacement,
    /// The name of an argument, a header field or a field of a form; in a JSON body a path, such as
    /// `$.users[*].password` or `$..token`.
    name: String,
    /// The action.
    action: ActionName,
    /// The format of the body to which the rule applies.
    body_format: Option<BodyFormat>,
    /// A regular expression; its first match in a value is replaced.
    regex: Option<String>,
    /// The replacement.
    value: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum MaskReplacement {
    Query,
    Header,
    Body,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum ActionName {
    Regex,
    Replace,
    Remove,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum BodyFormat {
    Json,
    Urlencoded,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        self.request.iter().flatten().enumerate().try_for_each(|(at, rule)| {
            Rule::new(rule).map(drop).map_err(|error| format!("request[{at}]: {error}"))
        })
    }
}

#[derive(Debug)]
struct Rule {
    place: Target,
    action: Action,
}

#[derive(Debug)]
enum Target {
    Query(String),
    Header(String),
    Json(JsonPath),
    Form(String),
}

#[derive(Debug)]
enum Action {
    Remove,
    Replace(String),
    Substitute(Substitution),
}

impl Rule {
    fn new(config: &RuleConfig) -> Result<Rule, String> {
        let name = config.name.clone();
        let place = match (config.place, config.body_format) {
            (MaskReplacement::Query, _) => Target::Query(name),
            (MaskReplacement::Header, _) => Target::Header(name),
            (MaskReplacement::Body, Some(BodyFormat::Urlencoded)) => Target::Form(name),
            (MaskReplacement::Body, Some(BodyFormat::Json)) => Target::Json(JsonPath::parse(&name)?),
            (MaskReplacement::Body, None) => return Err("property \"body_format\" is required".to_owned()),
        };
        let value = || config.value.clone().ok_or("property \"value\" is required");
        let action = match config.action {
            ActionName::Remove => Action::Remove,
            ActionName::Replace => Action::Replace(value()?),
            ActionName::Regex => {
                let regex = config.regex.as_deref().ok_or("property \"regex\" is required")?;
                Action::Substitute(Substitution::new(regex, &value()?, "")?)
            }
        };
        Ok(Rule { place, action })
    }
}

impl Action {
    /// The value as logs show it; None for not at all.
    fn masked<'v>(&'v self, value: &'v [u8]) -> Option<Cow<'v, [u8]>> {
        match self {
            Action::Remove => None,
            Action::Replace(value) => Some(Cow::Borrowed(value.as_bytes())),
            Action::Substitute(substitution) => Some(match substitution.first(value) {
                Some((text, _)) => Cow::Owned(text),
                None => Cow::Borrowed(value),
            }),
        }
    }

    fn mask_json(&self, value: &mut Value) -> Fate {
        match self {
            Action::Remove => return Fate::Removed,
            Action::Replace(text) => *value = json!(text),
            Action::Substitute(substitution) => substitute_in(substitution, value),
        }
        Fate::Kept
    }
}

/// Applies a substitution to each text in a value. Numbers are texts as well: a client may send a number
/// where others send a text.
fn substitute_in(substitution: &Substitution, value: &mut Value) {
    let text = match &mut *value {
        Value::Array(items) => return items.iter_mut().for_each(|item| substitute_in(substitution, item)),
        Value::Object(members) => {
            return members.values_mut().for_each(|member| substitute_in(substitution, member));
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if let Some((text, _)) = substitution.first(text.as_bytes()) {
        *value = String::from_utf8_lossy(&text).into();
    }
}

struct DataMask {
    rules: Vec<Rule>,
    max_body_size: usize,
    max_form_fields: usize,
}

impl DataMask {
    fn new(build: &Build<'_>) -> Result<DataMask, String> {
        let config: Config = build.config()?;
        let max_form_fields =
            if config.max_req_post_args == 0 { usize::MAX } else { config.max_req_post_args };
        let rules = config.request.iter().flatten().map(Rule::new).collect::<Result<_, _>>()?;
        Ok(DataMask { rules, max_body_size: config.max_body_size, max_form_fields })
    }

    fn masks_bodies(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule.place, Target::Json(_) | Target::Form(_)))
    }

    /// The query with its arguments masked; None if no rule is for any of them.
    fn query(&self, query: &[u8]) -> Option<Vec<u8>> {
        let of = |rule: &Rule, wanted: &[u8]| match &rule.place {
            Target::Query(name) => name.as_bytes() == wanted,
            _ => false,
        };
        self.form(query, usize::MAX, of)
    }

    /// Masks a form or a query by the rules whose fields match `of`; None if no rule applies.
    fn form(&self, form: &[u8], most: usize, of: impl Fn(&Rule, &[u8]) -> bool) -> Option<Vec<u8>> {
        let is_meant = |name: &[u8]| self.rules.iter().any(|rule| of(rule, name));
        if pairs(form).count() <= most && !pairs(form).any(|(name, _)| is_meant(&name)) {
            return None;
        }
        let mut out = Vec::new();
        for (name, value) in pairs(form).take(most) {
            let rules = self.rules.iter().filter(|rule| of(rule, &name));
            // Without `=` it says something too.
            let Some(value) = masked_by(rules, value.as_deref().unwrap_or_default()) else { continue };
            if !out.is_empty() {
                out.push(b'&');
            }
            encode(&name, &mut out);
            out.push(b'=');
            encode(&value, &mut out);
        }
        Some(out)
    }

    fn mask_target(&self, ctx: &mut Context) {
        if let Some(masked) = ctx.request.query().and_then(|query| self.query(query)) {
            let target = with_query(ctx.request.raw_path(), &masked);
            ctx.request.set_path_and_query(&target);
        }
        if !ctx.target.is_empty()
            && let Some(masked) = ctx.outgoing_query().and_then(|query| self.query(query))
        {
            let path = ctx.target.split(|b| *b == b'?').next().unwrap_or_default();
            ctx.target = with_query(path, &masked);
        }
    }

    fn mask_fields(&self, ctx: &mut Context) {
        for rule in &self.rules {
            let Target::Header(name) = &rule.place else { continue };
            let headers = &mut ctx.request.headers;
            let values = headers.iter().filter(|(known, _)| is_called(known, name));
            let masked: Vec<Vec<u8>> =
                values.filter_map(|(_, value)| rule.action.masked(value).map(Cow::into_owned)).collect();
            headers.remove_where(|_, known| is_called(known, name));
            for value in masked {
                ctx.request.headers.append(name, &value);
            }
        }
    }

    /// Leaves what may be logged of the body where loggers look for it.
    fn mask_body(&self, ctx: &mut Context) {
        if !self.masks_bodies() {
            return;
        }
        let Some(body) = ctx.seen_request_body(self.max_body_size.saturating_add(1)) else { return };
        let masked = if body.len() > self.max_body_size { None } else { self.body(ctx, &body) };
        if masked.is_none() && !body.is_empty() {
            static COMPLAINT: LogThrottle = LogThrottle::new();
            if let Some(left_out) = COMPLAINT.due() {
                tracing::warn!(left_out, "data-mask: cannot mask a request body; it is not logged");
            }
        }
        ctx.request_copy = None;
        ctx.body = masked;
    }

    fn body(&self, ctx: &Context, body: &[u8]) -> Option<Vec<u8>> {
        const FORM: &[u8] = b"application/x-www-form-urlencoded";
        let media_type = ctx.request.headers.get(HeaderId::ContentType).unwrap_or_default();
        let media_type = media_type.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
        if media_type.eq_ignore_ascii_case(FORM) {
            self.rules.iter().find(|rule| matches!(rule.place, Target::Form(_)))?;
            // The first part of a secret may be none that an expression matches.
            is_whole(ctx, body).then_some(())?;
            let of = |rule: &Rule, wanted: &[u8]| match &rule.place {
                Target::Form(name) => name.as_bytes() == wanted,
                _ => false,
            };
            return Some(self.form(body, self.max_form_fields, of).unwrap_or_else(|| body.to_vec()));
        }
        self.rules.iter().find(|rule| matches!(rule.place, Target::Json(_)))?;
        let mut value = json_body::read(body, MOST_VALUES).ok()?;
        for rule in &self.rules {
            if let Target::Json(path) = &rule.place {
                path.edit(&mut value, &mut |found| rule.action.mask_json(found));
            }
        }
        Some(value.to_string().into_bytes())
    }
}

/// Whether a field is called so, for those too who take `_` for `-`.
fn is_called(field: &[u8], name: &str) -> bool {
    let plain = |byte: &u8| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    field.iter().map(plain).eq(name.as_bytes().iter().map(plain))
}

/// A value as it is after all rules; None if one of them removes it.
fn masked_by<'r>(rules: impl Iterator<Item = &'r Rule>, value: &[u8]) -> Option<Vec<u8>> {
    let mut value = value.to_vec();
    for rule in rules {
        value = rule.action.masked(&value)?.into_owned();
    }
    Some(value)
}

/// Whether a form is known to its end.
fn is_whole(ctx: &Context, body: &[u8]) -> bool {
    let said = ctx.request.headers.get(HeaderId::ContentLength);
    let said = said.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
    ctx.body.is_some() || said == Some(body.len())
}

fn with_query(path: &[u8], query: &[u8]) -> Vec<u8> {
    if query.is_empty() { path.to_vec() } else { [path, b"?", query].concat() }
}

/// A part of a form, in which only unreserved characters (RFC 3986 §2.3) stand for themselves.
fn encode(text: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text {
        if byte.is_ascii_alphanumeric() || b"-._~*".contains(byte) {
            out.push(*byte);
        } else {
            out.extend([b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
}

impl Plugin for DataMask {
    /// The body is needed whole, however little of it a logger shows.
    fn access(&self, ctx: &mut Context, _env: &Env<'_>) -> Step {
        if self.masks_bodies() {
            ctx.copy_request_body(self.max_body_size.saturating_add(1));
        }
        Step::Next
    }

    fn log(&self, ctx: &mut Context, _env: &Env<'_>) {
        // The body first: what its type is must be known.
        self.mask_body(ctx);
        self.mask_target(ctx);
        self.mask_fields(ctx);
    }
}

#[cfg(test)]
mod tests;
