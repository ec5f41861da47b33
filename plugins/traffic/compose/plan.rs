//! The calls of a composition: what each requests, and in which order they can be made.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_http::{Headers, Method, is_token};
use sigma_plugin::Context;
use sigma_plugin::outbound::{Call, GATEWAY};
use sigma_schema::expr::{VarName, VarValue, Variables};
use sigma_schema::template::Template;

use crate::shared::subrequest::may_be_set;
use sigma_plugin_kit::body_template as text;
use sigma_plugin_kit::sigv4::encoded;

/// Before the name of a call, in the name of a variable that is part of its response.
const RESULTS: &str = "calls.";

/// Steps of a template, and bytes that it makes.
const MOST_STEPS: usize = 100_000;

/// A configured call.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct CallConf {
    /// Name of the call in other calls and in the template: `${calls.NAME.…}`.
    #[schemars(regex(pattern = r"^[A-Za-z_][A-Za-z0-9_]*$"), length(max = 64))]
    pub(super) name: String,
    /// The method.
    #[serde(default)]
    method: CallMethod,
    /// The path of the internal request, without a query. It may contain variables (`${arg_id}`), and parts of the JSON
    /// responses of other calls (`${calls.user.address.id}`). Each must have a value, which stays within one segment of
    /// the path.
    #[schemars(length(min = 1))]
    path: String,
    /// The query arguments. Values may contain variables and parts of responses, as in `path`.
    #[serde(default)]
    query: BTreeMap<String, String>,
    /// Additional header fields; the fields of the client's request are sent too. Values may contain variables and
    /// parts of responses, as in `path`.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// The host of the internal request. Default: the client's.
    #[schemars(length(min = 1))]
    host: Option<String>,
    /// A body, as a template of `body-transformer`: responses are in `calls`, variables in `_ctx.var`.
    body: Option<String>,
    /// Calls that must succeed first. Calls whose responses `path`, `query` or `headers` use need not be listed.
    #[serde(default)]
    after: Vec<String>,
    /// The member of the response for the result of this call. Default: members of an object become members of the
    /// response; any other result is in a member with the name of the call.
    #[schemars(length(min = 1))]
    pub(super) group: Option<String>,
    /// Whether the whole response fails without this result.
    #[serde(default)]
    pub(super) required: bool,
}

#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
enum CallMethod {
    #[default]
    Get,
    Post,
    Put,
    Delete,
    Patch,
}

impl From<CallMethod> for Method {
    fn from(method: CallMethod) -> Method {
        match method {
            CallMethod::Get => Method::Get,
            CallMethod::Post => Method::Post,
            CallMethod::Put => Method::Put,
            CallMethod::Delete => Method::Delete,
            CallMethod::Patch => Method::Patch,
        }
    }
}

/// A call, ready to be made.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) name: String,
    method: Method,
    path: Template,
    query: Vec<(String, Template)>,
    headers: Vec<(String, Template)>,
    host: Option<String>,
    body: Option<text::Template>,
    /// The places of the calls that must have succeeded before.
    pub(super) after: Vec<usize>,
    pub(super) group: Option<String>,
    pub(super) required: bool,
}

/// Settings that calls share.
pub(super) struct Common {
    pub(super) fields: Headers,
    pub(super) timeout_ms: u64,
    pub(super) limit: usize,
}

/// The results so far.
pub(super) struct CallResults<'k> {
    pub(super) ctx: &'k Context,
    /// The responses of calls, by name.
    pub(super) results: &'k Map<String, Value>,
}

impl Variables for CallResults<'_> {
    fn get(&self, name: &VarName) -> Option<VarValue<'_>> {
        let VarName::Other(place) = name else { return self.ctx.get(name) };
        let Some(place) = place.strip_prefix(RESULTS) else { return self.ctx.get(name) };
        let mut names = place.split('.');
        let mut value = self.results.get(names.next()?)?;
        for name in names {
            value = match value {
                Value::Array(items) => items.get(name.parse::<usize>().ok()?)?,
                value => value.get(name)?,
            };
        }
        match value {
            Value::String(text) => Some(VarValue::Text(text.as_bytes().into())),
            Value::Number(number) => Some(VarValue::Text(number.to_string().into_bytes().into())),
            Value::Bool(truth) => Some(VarValue::Bool(*truth)),
            _ => None,
        }
    }
}

/// Values as segments of a path. An invalid one is noted.
struct Segments<'k> {
    known: &'k CallResults<'k>,
    wrong: std::cell::Cell<bool>,
}

impl Variables for Segments<'_> {
    fn get(&self, name: &VarName) -> Option<VarValue<'_>> {
        let value = match self.known.get(name) {
            Some(VarValue::Text(text)) => text.into_owned(),
            Some(VarValue::Bool(truth)) => truth.to_string().into_bytes(),
            Some(VarValue::List(_)) => return self.refuse(),
            None => return None,
        };
        // A router may read `%2F` as a slash: a value chosen by a client must not change the path.
        let leaves = value.iter().any(|byte| matches!(byte, b'/' | b'\\' | b'%') || *byte < b' ');
        if value.is_empty() || leaves || &*value == b"." || &*value == b".." {
            return self.refuse();
        }
        Some(VarValue::Text(encoded(&value, false).into_bytes().into()))
    }
}

impl<'k> Segments<'k> {
    fn refuse(&self) -> Option<VarValue<'k>> {
        self.wrong.set(true);
        None
    }
}

impl CallResults<'_> {
    fn path(&self, template: &Template) -> Result<Vec<u8>, String> {
        let segments = Segments { known: self, wrong: false.into() };
        let mut path = Vec::new();
        let (with_value, all) = (template.render(&segments, &mut path), template.variables().count());
        match segments.wrong.get() || with_value < all {
            true => Err("a variable of its path has no value, or one that is not a path segment".to_owned()),
            false => Ok(path),
        }
    }

    /// The text of a template of `body-transformer`.
    pub(super) fn text(&self, template: &text::Template, most_text: usize) -> Result<String, String> {
        let variable = |name: &VarName| match self.ctx.get(name)? {
            VarValue::Text(text) => Some(String::from_utf8_lossy(&text).into_owned()),
            VarValue::Bool(truth) => Some(truth.to_string()),
            VarValue::List(_) => None,
        };
        let root = Value::Object(Map::from_iter([("calls".to_owned(), Value::Object(self.results.clone()))]));
        template.rendered(&text::Data {
            root: &root,
            body: &Value::Null,
            variable: &variable,
            most_steps: MOST_STEPS,
            most_text,
        })
    }
}

impl Planned {
    /// Returns the request of a call, filled with the results so far.
    pub(super) fn call(&self, known: &CallResults<'_>, common: &Common) -> Result<Call, String> {
        let mut target = known.path(&self.path)?;
        for (n, (name, value)) in self.query.iter().enumerate() {
            target.push(if n == 0 { b'?' } else { b'&' });
            let value = encoded(&value.rendered(known), false);
            target.extend_from_slice(format!("{}={value}", encoded(name.as_bytes(), false)).as_bytes());
        }
        let mut headers = common.fields.clone();
        for (name, value) in &self.headers {
            headers.remove_name(name.as_bytes());
            headers.append(name, &value.rendered(known));
        }
        let body = self.body.as_ref().map(|body| known.text(body, common.limit)).transpose()?;
        let takes_body = matches!(self.method, Method::Post | Method::Put | Method::Patch);
        let body = body.map(String::into_bytes).or(takes_body.then(Vec::new));
        let host = match &self.host {
            Some(host) => host.clone(),
            None => String::from_utf8_lossy(known.ctx.request.authority()).into_owned(),
        };
        Ok(Call {
            upstream: GATEWAY.into(),
            method: self.method,
            target,
            host: host.into(),
            headers,
            passes: known.ctx.passes(),
            body,
            timeout_ms: common.timeout_ms,
            limit: common.limit,
        })
    }
}

/// The calls in an order in which each comes after those that it needs.
///
/// # Errors
/// Returns an error, which is a sentence, if that is not possible, or a call cannot be made at all.
pub(super) fn planned(calls: &[CallConf]) -> Result<Vec<Planned>, String> {
    let mut names = BTreeSet::new();
    if let Some(twice) = calls.iter().find(|call| !names.insert(&call.name)) {
        return Err(format!("two calls have the name `{}`", twice.name));
    }
    let mut left: Vec<&CallConf> = calls.iter().collect();
    let mut plan: Vec<Planned> = Vec::with_capacity(calls.len());
    while !left.is_empty() {
        let before = left.len();
        let mut waiting = Vec::new();
        for call in left {
            let place = |name: &String| plan.iter().position(|planned| planned.name == *name);
            let needs = call.needs()?;
            if let Some(name) = needs.iter().find(|name| !names.contains(name)) {
                return Err(format!("call `{}` needs `{name}`, which is not a call", call.name));
            }
            match needs.iter().map(place).collect::<Option<Vec<usize>>>() {
                Some(after) => plan.push(call.planned(after)?),
                None => waiting.push(call),
            }
        }
        if waiting.len() == before {
            let names: Vec<&str> = waiting.iter().map(|call| &*call.name).collect();
            return Err(format!("the calls {} wait for each other", names.join(", ")));
        }
        left = waiting;
    }
    Ok(plan)
}

impl CallConf {
    fn templates(&self) -> impl Iterator<Item = Template> {
        let values = self.query.values().chain(self.headers.values());
        std::iter::once(&self.path).chain(values).map(|text| Template::parse(text))
    }

    /// The names of variables that no exchange has, as sentences.
    pub(super) fn unknown(&self) -> Vec<String> {
        let mut unknown = Vec::new();
        for template in self.templates() {
            let foreign =
                |name: &&VarName| !matches!(name, VarName::Other(name) if name.starts_with(RESULTS));
            unknown.extend(template.variables().filter(foreign).filter_map(VarName::unknown));
        }
        unknown
    }

    /// The names of the calls that it needs.
    fn needs(&self) -> Result<BTreeSet<String>, String> {
        let mut needs: BTreeSet<String> = self.after.iter().cloned().collect();
        for template in self.templates() {
            for name in template.variables() {
                let VarName::Other(name) = name else { continue };
                let Some(place) = name.strip_prefix(RESULTS) else { continue };
                needs.insert(place.split('.').next().unwrap_or_default().to_owned());
            }
        }
        Ok(needs)
    }

    fn planned(&self, after: Vec<usize>) -> Result<Planned, String> {
        let CallConf { name, path, .. } = self;
        if !path.starts_with('/') || path.contains(['?', '#']) {
            return Err(format!(
                "the path of call `{name}` must begin with a slash and not have a query: use `query`"
            ));
        }
        let wrong = |field: &&String| !is_token(field.as_bytes()) || !may_be_set(field) || *field == "host";
        if let Some(field) = self.headers.keys().find(wrong) {
            return Err(format!("call `{name}` cannot set the field `{field}`"));
        }
        let body = self.body.as_deref().map(text::Template::parse).transpose();
        let parsed = |(name, value): (&String, &String)| (name.clone(), Template::parse(value));
        Ok(Planned {
            name: name.clone(),
            method: self.method.into(),
            path: Template::parse(path),
            query: self.query.iter().map(parsed).collect(),
            headers: self.headers.iter().map(parsed).collect(),
            host: self.host.clone(),
            body: body.map_err(|reason| format!("the body of call `{name}`: {reason}"))?,
            after,
            group: self.group.clone(),
            required: self.required,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_come_behind_those_that_they_need() {
        let check = |calls: Value, expected: Result<&[&str], &str>| {
            let calls: Vec<CallConf> = serde_json::from_value(calls).unwrap();
            let plan = planned(&calls);
            let names = plan.as_ref().map(|plan| plan.iter().map(|call| &*call.name).collect::<Vec<_>>());
            let names = names.as_ref().map(|names| &names[..]).map_err(|reason| reason.as_str());
            assert_eq!(names, expected);
            // The calls that a call needs come before it.
            for (at, call) in plan.iter().flatten().enumerate() {
                assert!(call.after.iter().all(|needed| *needed < at));
            }
        };
        let call = |name: &str, path: &str| json!({"name": name, "path": path});
        check(json!([call("a", "/${calls.b.x}"), call("b", "/")]), Ok(&["b", "a"]));
        check(
            json!([
                {"name": "c", "path": "/", "headers": {"X": "${calls.b.0}"}},
                {"name": "b", "path": "/", "after": ["a"]},
                call("a", "/")
            ]),
            Ok(&["a", "b", "c"]),
        );
        check(
            json!([call("x", "/"), call("a", "/${calls.b.x}"), call("b", "/${calls.a.x}")]),
            Err("the calls a, b wait for each other"),
        );
        check(json!([call("a", "/${calls.a.x}")]), Err("the calls a wait for each other"));
        check(json!([call("a", "/${calls.b.x}")]), Err("call `a` needs `b`, which is not a call"));
        check(json!([call("a", "/"), call("a", "/")]), Err("two calls have the name `a`"));
        for path in ["a", "/a?b=1", "/a#b"] {
            let wrong = "the path of call `a` must begin with a slash and not have a query: use `query`";
            check(json!([call("a", path)]), Err(wrong));
        }
        for field in ["X-Forwarded-For", "Content-Length", "host", "a b"] {
            let reason = format!("call `a` cannot set the field `{field}`");
            check(json!([{"name": "a", "path": "/", "headers": {field: ""}}]), Err(&reason));
        }
        let body = "the body of call `a`: line 1: ";
        let calls = serde_json::from_value(json!([{"name": "a", "path": "/", "body": "{% if %}"}]));
        assert!(planned(&calls.unwrap_or(Vec::<CallConf>::new())).unwrap_err().starts_with(body));
    }
}
