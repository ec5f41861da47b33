//! Changes of fields by the processor: the rules for them, and their effect.

use std::cell::RefCell;
use std::rc::Rc;

use regex::Regex;
use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::{HeaderId, Headers, is_authority};
use sigma_plugin::{Context, OwnedField};
use sigma_plugin_kit::envoy::HeaderOption;
use sigma_plugin_kit::fields::{frames, is_name};

use crate::messages::HeaderMutation;

/// Largest number of changes in one message: more than any head has fields.
const CHANGES_MAX: usize = 1000;

/// Fields that frame a message or belong to one connection, in addition to [`frames`].
const CONNECTION_FIELDS: [&str; 6] =
    ["keep-alive", "proxy-connection", "upgrade", "te", "expect", "http2-settings"];

/// The fields that the processor may change.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub(crate) struct MutationRules {
    /// Whether `host`, `:authority` and `:method` may be changed.
    #[schemars(extend("default" = false))]
    allow_all_routing: bool,
    /// Whether `x-envoy-` fields may be changed.
    #[schemars(extend("default" = false))]
    allow_envoy: bool,
    /// Whether no field that begins with `:` may be changed.
    #[schemars(extend("default" = false))]
    disallow_system: bool,
    /// Whether no field may be changed.
    #[schemars(extend("default" = false))]
    disallow_all: bool,
    /// Fields that may be changed in any case, unless `disallow_expression` matches.
    allow_expression: Option<Expression>,
    /// Fields that may never be changed.
    disallow_expression: Option<Expression>,
    /// Whether a change that is not permitted is a failure. Otherwise it is ignored.
    #[schemars(extend("default" = false))]
    disallow_is_error: bool,
}

/// A pattern for whole names, in any case.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Expression {
    /// A regular expression.
    #[schemars(length(min = 1, max = 4096))]
    regex: String,
    /// Made of `regex`; None if it is invalid, which the check of the configuration refuses.
    #[serde(skip)]
    compiled: std::sync::OnceLock<Option<Regex>>,
}

impl Expression {
    fn compiled(&self) -> Option<&Regex> {
        let whole = || Regex::new(&format!("^(?i:{})$", self.regex)).ok();
        // A lone bracket must not end the group.
        self.compiled.get_or_init(|| Regex::new(&self.regex).ok().and_then(|_| whole())).as_ref()
    }

    fn matches(&self, name: &str) -> bool {
        self.compiled().is_some_and(|regex| regex.is_match(name))
    }
}

impl MutationRules {
    /// # Errors
    /// Returns an error if a pattern is invalid.
    pub(crate) fn check(&self) -> Result<(), String> {
        let patterns = [
            ("allow_expression", &self.allow_expression),
            ("disallow_expression", &self.disallow_expression),
        ];
        for (member, expression) in patterns {
            if let Some(expression) = expression
                && expression.compiled().is_none()
            {
                let regex = &expression.regex;
                return Err(format!("mutation_rules.{member}: `{regex}` is not a valid regular expression"));
            }
        }
        Ok(())
    }

    /// Returns true if a response by the processor may not have a field with this name.
    pub(crate) fn forbids_in_reply(&self, name: &str) -> bool {
        CONNECTION_FIELDS.contains(&name) || !self.permit(name)
    }

    /// Returns true if a field with this name, in lower case, may be changed.
    fn permit(&self, name: &str) -> bool {
        if self.disallow_expression.as_ref().is_some_and(|expression| expression.matches(name)) {
            return false;
        }
        if self.allow_expression.as_ref().is_some_and(|expression| expression.matches(name)) {
            return true;
        }
        let routes = matches!(name, "host" | ":authority" | ":scheme" | ":method");
        !(self.disallow_all
            || self.disallow_system && name.starts_with(':')
            || !self.allow_envoy && name.starts_with("x-envoy-")
            || !self.allow_all_routing && routes)
    }
}

/// Where changes apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChangeTarget {
    /// The head of the request
    Request,
    /// The head of the response
    Response,
    /// The trailers of the request
    RequestTrailers,
    /// The trailers of the response
    ResponseTrailers,
}

/// A message with an invalid change; the text says which.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Invalid(pub(crate) &'static str);

/// The changes of one exchange, with the fields that the processor has claimed so far.
#[derive(Debug, Default)]
pub(crate) struct Claims(RefCell<Vec<Box<str>>>);

/// How changes are read.
pub(crate) struct Changes<'c> {
    pub(crate) rules: &'c MutationRules,
    /// See `append_by_default` of the configuration.
    pub(crate) append_by_default: bool,
    /// See `ignore_header_actions` of the configuration.
    pub(crate) ignore_actions: bool,
    pub(crate) claims: &'c Rc<Claims>,
}

/// The treatment of existing fields of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Append,
    AddIfAbsent,
    Replace,
    ReplaceIfPresent,
}

impl Changes<'_> {
    /// Applies a mutation; returns the number of changes that are not permitted. `trailers` are the fields if the place
    /// is trailers.
    ///
    /// # Errors
    /// Returns an error, and changes nothing of later fields, if a change is invalid, or is not permitted and that is
    /// an error.
    pub(crate) fn apply(
        &self,
        mutation: &HeaderMutation,
        place: ChangeTarget,
        ctx: &mut Context,
        mut trailers: Option<&mut Headers>,
    ) -> Result<u64, Invalid> {
        if mutation.set_headers.len() + mutation.remove_headers.len() > CHANGES_MAX {
            return Err(Invalid("the processor changes too many fields at once"));
        }
        let mut rejected = 0;
        for name in &mutation.remove_headers {
            let name = name.to_ascii_lowercase();
            // No rule permits it.
            let is_essential = name.starts_with(':') || name == "host";
            if is_essential || !self.may_change(&name, place, ctx) {
                rejected += 1;
                continue;
            }
            match (&mut trailers, place) {
                (Some(fields), _) => fields.remove_name(name.as_bytes()),
                (None, ChangeTarget::Response) => ctx.response.headers.remove_name(name.as_bytes()),
                (None, _) => {
                    self.claim(OwnedField::sole(&*name), &name, ctx);
                    ctx.request.headers.remove_name(name.as_bytes());
                }
            }
        }
        for option in &mutation.set_headers {
            let (name, value) = named(option)?;
            let is_set = if name.starts_with(':') {
                self.rules.permit(&name) && set_pseudo(&name, value, place, ctx)?
            } else {
                self.may_change(&name, place, ctx)
                    && self.set(&name, value, option, place, ctx, &mut trailers)?
            };
            rejected += u64::from(!is_set);
        }
        match rejected > 0 && self.rules.disallow_is_error {
            true => Err(Invalid("the processor changes a field that it may not change")),
            false => Ok(rejected),
        }
    }

    /// Returns true if a field that is no pseudo-field may be changed.
    fn may_change(&self, name: &str, place: ChangeTarget, ctx: &Context) -> bool {
        is_name(name)
            && !frames(name)
            && !CONNECTION_FIELDS.contains(&name)
            && self.rules.permit(name)
            && !(matches!(place, ChangeTarget::Request | ChangeTarget::RequestTrailers)
                && self.is_owned(name, ctx))
    }

    /// Returns true if another plugin of the exchange owns the field.
    fn is_owned(&self, name: &str, ctx: &Context) -> bool {
        let own = self.claims.0.borrow();
        !own.iter().any(|own| **own == *name) && ctx.owned.iter().any(|fields| fields.covers(name.as_bytes()))
    }

    fn claim(&self, field: OwnedField, name: &str, ctx: &mut Context) {
        let is_new = !self.claims.0.borrow().iter().any(|own| **own == *name);
        if is_new {
            self.claims.0.borrow_mut().push(name.into());
            ctx.claim(field);
        }
    }

    fn set(
        &self,
        name: &str,
        value: &[u8],
        option: &HeaderOption,
        place: ChangeTarget,
        ctx: &mut Context,
        trailers: &mut Option<&mut Headers>,
    ) -> Result<bool, Invalid> {
        let action = self.action(option)?;
        if name == "host" && place == ChangeTarget::Request {
            return set_host(value, ctx);
        }
        if place == ChangeTarget::Request {
            let field = match action {
                Action::Replace => OwnedField::sole(name),
                _ => OwnedField::shared(name),
            };
            self.claim(field, name, ctx);
        }
        let headers = match (trailers, place) {
            (Some(fields), _) => &mut **fields,
            (None, ChangeTarget::Response) => &mut ctx.response.headers,
            (None, _) => &mut ctx.request.headers,
        };
        let is_present = headers.find(name.as_bytes()).is_some();
        let adds = self.ignore_actions || option.keep_empty_value || !value.is_empty();
        match action {
            Action::AddIfAbsent if is_present => return Ok(true),
            Action::ReplaceIfPresent if !is_present => return Ok(true),
            Action::Replace | Action::ReplaceIfPresent => headers.remove_name(name.as_bytes()),
            Action::Append | Action::AddIfAbsent => {}
        }
        if adds {
            headers.append(name, value);
        }
        Ok(true)
    }

    fn action(&self, option: &HeaderOption) -> Result<Action, Invalid> {
        match (option.append, option.append_action) {
            (Some(append), _) if append.value => Ok(Action::Append),
            (Some(_), _) => Ok(Action::Replace),
            (None, _) if self.ignore_actions => Ok(Action::Replace),
            (None, 0) if self.append_by_default => Ok(Action::Append),
            (None, 0 | 2) => Ok(Action::Replace),
            (None, 1) => Ok(Action::AddIfAbsent),
            (None, 3) => Ok(Action::ReplaceIfPresent),
            (None, _) => Err(Invalid("the processor names an unknown append_action")),
        }
    }
}

/// Returns the name of a field in lower case, and its value.
fn named(option: &HeaderOption) -> Result<(String, &[u8]), Invalid> {
    let header = option.header.as_ref().ok_or(Invalid("the processor sets a field without a name"))?;
    let value = if header.raw_value.is_empty() { header.value.as_bytes() } else { &header.raw_value };
    let name = header.key.to_ascii_lowercase();
    let is_torn = value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0));
    if !is_name(name.strip_prefix(':').unwrap_or(&name)) || is_torn {
        return Err(Invalid("the processor sets a field with an invalid name or value"));
    }
    Ok((name, value))
}

/// Sets a pseudo-field; returns false if there is no such field in this place.
fn set_pseudo(name: &str, value: &[u8], place: ChangeTarget, ctx: &mut Context) -> Result<bool, Invalid> {
    match (name, place) {
        (":path", ChangeTarget::Request) => set_path(value, ctx),
        (":method", ChangeTarget::Request) => {
            let method = std::str::from_utf8(value).ok().filter(|method| is_name(method));
            let method = method.ok_or(Invalid("the processor sets an invalid method"))?;
            // It would turn the connection into a tunnel.
            let is_allowed = method != "CONNECT";
            if is_allowed {
                ctx.request.set_method(method);
            }
            Ok(is_allowed)
        }
        (":authority", ChangeTarget::Request) => set_host(value, ctx),
        (":status", ChangeTarget::Response) => set_status(value, ctx),
        _ => Ok(false),
    }
}

fn set_path(value: &[u8], ctx: &mut Context) -> Result<bool, Invalid> {
    let is_target = value.starts_with(b"/") && value.iter().all(|b| b.is_ascii_graphic() && *b != b'#');
    let path = value.split(|b| *b == b'?').next().unwrap_or_default();
    let has_dots = path.split(|b| *b == b'/').any(|segment| matches!(segment, b"." | b".."));
    if !is_target || has_dots {
        return Err(Invalid("the processor sets an invalid path"));
    }
    ctx.target = value.to_vec();
    Ok(true)
}

fn set_host(value: &[u8], ctx: &mut Context) -> Result<bool, Invalid> {
    if !is_authority(value) {
        return Err(Invalid("the processor sets an invalid host"));
    }
    ctx.host = Some(value.to_vec());
    ctx.request.headers.set(HeaderId::Host, value);
    Ok(true)
}

/// Sets the status. One with a body cannot become one without, nor the reverse.
fn set_status(value: &[u8], ctx: &mut Context) -> Result<bool, Invalid> {
    let status = std::str::from_utf8(value).ok().and_then(|text| text.parse::<u16>().ok());
    let status = status.filter(|status| (200..=599).contains(status));
    let status = status.ok_or(Invalid("the processor sets an invalid status"))?;
    let is_empty = |status: u16| matches!(status, 204 | 205 | 304);
    if is_empty(status) != is_empty(ctx.response.status) && ctx.response.status != status {
        return Ok(false);
    }
    ctx.response.status = status;
    Ok(true)
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
