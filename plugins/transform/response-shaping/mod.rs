//! `response-shaping`: fields of JSON responses are kept, dropped, renamed and grouped.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_http::{Fault, FaultKind, HeaderId};
use sigma_plugin::{
    BodyFilter, Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, ResponseStep,
    Step, Transform,
};
use sigma_schema::described::schema_of;

use crate::shared::whole_body::{Remake, WholeBody};
use sigma_plugin_kit::budget::{Budget, WorkerBytes};
use sigma_plugin_kit::changed_body::{change_head, is_part};
use sigma_plugin_kit::json_body;
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::response_body::{Encoding, ask_for_readable};

/// The plugin.
pub(crate) static RESPONSE_SHAPING: Descriptor = Descriptor {
    name: "response-shaping",
    priority: 1085,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite, Phase::HeaderFilter, Phase::BodyFilter]),
    attributes: Some(schema_of::<Budget>),
    build: |build| Ok(Arc::new(ResponseShaping(Arc::new(Shaper::new(build)?)))),
    ..Descriptor::of::<Config>()
};

/// Selects and renames the fields of a JSON response.
///
/// The steps and their order are the same as in KrakenD: `target`, `allow` or `deny`, `mapping`, `group`. The name of
/// a field includes the fields around it: `address.city`. A step applies to every value in a list, also if the whole
/// response is a list.
///
/// It changes responses of a node or another plugin with a status below 300 and a JSON `Content-Type`; others pass
/// unchanged. The whole response is buffered, and the node's request has no content coding. A response that is not
/// valid JSON or over a limit is cut off, so that fields in `deny` never leave. A part (206) that a node sends without a
/// request for it becomes a 502.
#[derive(Deserialize, JsonSchema)]
#[schemars(extend("minProperties" = 1))]
struct Config {
    /// The field whose object replaces the response; an empty object if it is missing.
    #[schemars(length(min = 1))]
    target: Option<FieldPath>,
    /// The fields to keep, with their content.
    #[schemars(length(min = 1))]
    allow: Option<Vec<FieldPath>>,
    /// The fields to drop; not together with `allow`.
    #[schemars(length(min = 1))]
    deny: Option<Vec<FieldPath>>,
    /// New names of fields, by the old ones. A field stays in its object, at the end; a field that has the new name
    /// already is replaced.
    #[schemars(extend("default" = {}))]
    mapping: BTreeMap<FieldPath, String>,
    /// The field that contains the response.
    #[schemars(length(min = 1))]
    group: Option<String>,
    /// Largest response in bytes; it is held in memory.
    #[schemars(range(min = 1), extend("default" = 67_108_864))]
    max_resp_body_size: usize,
    /// Maximum values in a response. A value takes up to a few hundred bytes of memory.
    #[schemars(range(min = 1), extend("default" = 250_000))]
    max_body_values: usize,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        match (&self.allow, &self.deny) {
            (Some(_), Some(_)) => {
                Err("deny: it has no effect together with `allow`; remove one of them".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// The names on the path to a field.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
struct FieldPath(#[schemars(with = "String")] Vec<Box<str>>);

impl TryFrom<String> for FieldPath {
    type Error = String;

    fn try_from(text: String) -> Result<FieldPath, String> {
        match text.split('.').any(str::is_empty) {
            true => Err(format!("`{text}` has an empty name; write fields as `a.b`")),
            false => Ok(FieldPath(text.split('.').map(Box::from).collect())),
        }
    }
}

/// Fields nested in each other: those that are named themselves have nothing in them.
#[derive(Debug, Default)]
struct Fields(BTreeMap<Box<str>, Fields>);

impl Fields {
    fn of(paths: &[FieldPath]) -> Fields {
        let mut fields = Fields::default();
        for FieldPath(names) in paths {
            fields.add(names);
        }
        fields
    }

    /// Adds a field; one of which all is named already stays.
    fn add(&mut self, names: &[Box<str>]) {
        let Some((first, rest)) = names.split_first() else {
            self.0.clear();
            return;
        };
        match self.0.get_mut(first) {
            Some(known) if known.0.is_empty() => {}
            Some(known) => known.add(rest),
            None => self.0.entry(first.clone()).or_default().add(rest),
        }
    }

    /// Whether a field is named itself, and not one within it.
    fn is_whole(&self) -> bool {
        self.0.is_empty()
    }

    /// Drops all other fields. False for a value that is not an object.
    fn keep_in(&self, value: &mut Value) -> bool {
        match value {
            Value::Object(members) => {
                members.retain(|name, value| {
                    self.0.get(&**name).is_some_and(|inner| inner.is_whole() || inner.keep_in(value))
                });
                true
            }
            Value::Array(items) => {
                items.retain_mut(|item| self.keep_in(item));
                true
            }
            _ => false,
        }
    }

    fn drop_from(&self, value: &mut Value) {
        match value {
            Value::Object(members) => members.retain(|name, value| match self.0.get(&**name) {
                Some(inner) if inner.is_whole() => false,
                Some(inner) => {
                    inner.drop_from(value);
                    true
                }
                None => true,
            }),
            Value::Array(items) => items.iter_mut().for_each(|item| self.drop_from(item)),
            _ => {}
        }
    }
}

/// Gives a field another name, wherever its way leads.
fn rename(value: &mut Value, names: &[Box<str>], new: &str) {
    match (value, names) {
        (Value::Array(items), names) => items.iter_mut().for_each(|item| rename(item, names, new)),
        (Value::Object(members), [last]) => {
            if let Some(value) = members.shift_remove(&**last) {
                members.insert(new.to_owned(), value);
            }
        }
        (Value::Object(members), [first, rest @ ..]) => {
            if let Some(inner) = members.get_mut(&**first) {
                rename(inner, rest, new);
            }
        }
        _ => {}
    }
}

/// The steps for a response.
struct Shaper {
    config: Config,
    allow: Option<Fields>,
    deny: Option<Fields>,
    budget: Budget,
}

impl Shaper {
    fn new(build: &Build<'_>) -> Result<Shaper, String> {
        let config: Config = build.config()?;
        let allow = config.allow.as_deref().map(Fields::of);
        let deny = config.deny.as_deref().map(Fields::of);
        Ok(Shaper { allow, deny, budget: Budget::of(build)?, config })
    }

    fn shaped(&self, mut answer: Value) -> Value {
        if let Some(FieldPath(names)) = &self.config.target {
            let found = names.iter().try_fold(answer, |value, name| match value {
                Value::Object(mut members) => members.shift_remove(&**name),
                _ => None,
            });
            answer = found.unwrap_or_else(|| Value::Object(Map::new()));
        }
        if let Some(allow) = &self.allow
            && !allow.keep_in(&mut answer)
        {
            answer = Value::Null;
        }
        if let Some(deny) = &self.deny {
            deny.drop_from(&mut answer);
        }
        for (FieldPath(names), new) in &self.config.mapping {
            rename(&mut answer, names, new);
        }
        match &self.config.group {
            Some(name) => Value::Object(Map::from_iter([(name.clone(), answer)])),
            None => answer,
        }
    }
}

struct ResponseShaping(Arc<Shaper>);

/// How the response that is shaped was encoded, before the field that says it was removed.
struct Coded(Encoding);

impl Plugin for ResponseShaping {
    fn rewrite(&self, ctx: &mut Context, _: &Env<'_>) -> Step {
        ask_for_readable(&mut ctx.request.headers);
        ctx.request.headers.remove(HeaderId::AcceptEncoding);
        Step::Next
    }

    fn header_filter(&self, ctx: &mut Context, _: &Env<'_>) -> ResponseStep {
        // The state of an earlier response, which this one replaces.
        let _ = ctx.take_kept::<_, Coded>(self);
        let is_shaped = ctx.response.status < 300
            && is_json(ctx.response.headers.get(HeaderId::ContentType).unwrap_or_default());
        if is_shaped && is_part(ctx) {
            let reply = Reply::new(502).because("the node sent a part of a response, which cannot be shaped");
            return ResponseStep::Replace(Box::new(reply));
        }
        if is_shaped {
            let coded = Coded(Encoding::of(&ctx.response.headers));
            ctx.keep(self, coded);
            change_head(&mut ctx.response.headers);
        }
        ResponseStep::Next
    }

    fn body_filter(&self, ctx: &mut Context, env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        let Coded(encoding) = ctx.take_kept(self)?;
        let share = self.0.budget.share(Rc::clone(&env.local.part(Bodies::default).0));
        let limit = self.0.config.max_resp_body_size;
        Some(WholeBody::new(Arc::clone(&self.0), encoding, limit, share).filter())
    }
}

/// Whether a media type is JSON, or made of it: `application/problem+json`.
fn is_json(content_type: &[u8]) -> bool {
    let media_type = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let media_type = media_type.to_ascii_lowercase();
    media_type == b"application/json" || media_type == b"text/json" || media_type.ends_with(b"+json")
}

/// The bodies that one worker holds back.
#[derive(Default)]
struct Bodies(Rc<WorkerBytes>);

impl Remake for Arc<Shaper> {
    const FULL: Fault =
        Fault::new(FaultKind::MemoryLimit, "the bodies that response-shaping buffers exceed their limit");

    fn remade(&self, _: &Context, body: &[u8]) -> Option<Vec<u8>> {
        if body.is_empty() {
            return Some(Vec::new());
        }
        match json_body::read(body, self.config.max_body_values) {
            Ok(answer) => Some(self.shaped(answer).to_string().into_bytes()),
            Err(_) => {
                static COMPLAINT: LogThrottle = LogThrottle::new();
                if let Some(left_out) = COMPLAINT.due() {
                    tracing::error!(
                        left_out,
                        "response-shaping: a response is not JSON, or has too many values"
                    );
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::testing::{Case, assert_refusal, entry};

    /// Returns the client's body of a response.
    fn shaped(conf: &Value, answer: &Value) -> Value {
        let entry = entry("response-shaping", conf.clone()).unwrap();
        let mut case = Case::new("GET / HTTP/1.1\nHost: h\nAccept-Encoding: gzip");
        assert!(case.run(&entry, Phase::Rewrite).is_none());
        assert_eq!(case.sent("Accept-Encoding"), None);
        case.respond(
            200,
            "Content-Type: application/problem+json; charset=utf-8\nETag: x\nContent-Length: 1",
        );
        let text = answer.to_string();
        let (first, second) = text.as_bytes().split_at(text.len() / 2);
        let body = case.filter(&entry, &[first, second]);
        assert_eq!(case.answered("etag") + &case.answered("content-length"), "");
        serde_json::from_slice(&body).unwrap()
    }

    #[test]
    fn fields_are_shaped() {
        let answer = json!({"a": 1, "b": {"c": 2, "d": {"e": 3}}, "f": [{"c": 4, "d": 5}, 6]});
        let check = |conf: Value, expected: Value| assert_eq!(shaped(&conf, &answer), expected, "{conf}");
        check(json!({"allow": ["a"]}), json!({"a": 1}));
        check(json!({"allow": ["b.c", "f.d", "x"]}), json!({"b": {"c": 2}, "f": [{"d": 5}]}));
        check(json!({"allow": ["b.c", "b"]}), json!({"b": {"c": 2, "d": {"e": 3}}}));
        check(json!({"allow": ["b", "b.c"]}), json!({"b": {"c": 2, "d": {"e": 3}}}));
        check(json!({"allow": ["a.x"]}), json!({}));
        check(json!({"deny": ["a", "b.d.e", "f.c"]}), json!({"b": {"c": 2, "d": {}}, "f": [{"d": 5}, 6]}));
        check(json!({"target": "b.d"}), json!({"e": 3}));
        check(json!({"target": "b.x"}), json!({}));
        check(json!({"target": "f", "deny": ["c"]}), json!([{"d": 5}, 6]));
        check(json!({"allow": ["a"], "mapping": {"a": "z"}}), json!({"z": 1}));
        check(
            json!({"allow": ["b", "f"], "mapping": {"b.c": "d", "f.c": "g"}}),
            json!({"b": {"d": 2}, "f": [{"d": 5, "g": 4}, 6]}),
        );
        check(json!({"target": "b.d", "mapping": {"e": "n"}, "group": "g"}), json!({"g": {"n": 3}}));
        assert_eq!(shaped(&json!({"allow": ["a"]}), &json!(7)), Value::Null);
        assert_eq!(
            shaped(&json!({"allow": ["a"]}), &json!([{"a": 1, "b": 2}, {"b": 3}])),
            json!([{"a": 1}, {}])
        );
    }

    #[test]
    fn other_answers_pass_as_they_are() {
        let entry = entry("response-shaping", json!({"deny": ["a"]})).unwrap();
        let check = |status, media_type: &str, expected: &str| {
            let mut case = Case::new("GET / HTTP/1.1\nHost: h");
            case.respond(status, &format!("Content-Type: {media_type}"));
            assert_eq!(case.filter(&entry, &[b"{\"a\":1}"]), expected.as_bytes(), "{status} {media_type}");
        };
        check(200, "application/json", "{}");
        check(404, "application/json", "{\"a\":1}");
        check(200, "text/html", "{\"a\":1}");
        check(200, "application/jsonlines", "{\"a\":1}");
    }

    #[test]
    fn configurations_that_are_refused() {
        let check = |conf: Value, expected: &str| assert_refusal("response-shaping", &conf, expected);
        check(json!({"group": "a"}), "");
        check(json!({}), "expect object to have at least 1 properties");
        check(
            json!({"allow": ["a"], "deny": ["b"]}),
            "deny: it has no effect together with `allow`; remove one of them",
        );
        check(
            json!({"allow": []}),
            "property \"allow\" validation failed: expect array to have at least 1 items",
        );
        check(json!({"deny": ["a..b"]}), "`a..b` has an empty name; write fields as `a.b`");
        check(json!({"target": ""}), "property \"target\" validation failed: string too short");
        check(json!({"max_resp_body_size": 0}), "expected 0 to be at least 1");
    }

    fn has_field(value: &Value, name: &str) -> bool {
        match value {
            Value::Object(members) => {
                members.contains_key(name) || members.values().any(|value| has_field(value, name))
            }
            Value::Array(items) => items.iter().any(|item| has_field(item, name)),
            _ => false,
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i32>().prop_map(Value::from),
            "[a-c]{0,3}".prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-c]", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn denied_fields_never_leave(mut value in any_json()) {
            let deny = Fields::of(&[FieldPath(vec!["a".into()])]);
            let paths = ["a", "b.a", "c.a", "b.b.a"].map(|path| FieldPath::try_from(path.to_owned()).unwrap());
            let mut kept = value.clone();
            deny.drop_from(&mut value);
            match &value {
                Value::Object(members) => prop_assert!(!members.contains_key("a")),
                Value::Array(items) => prop_assert!(items.iter().all(|item| item.get("a").is_none())),
                _ => {}
            }
            // Allowed and denied fields have nothing in common.
            Fields::of(&paths).keep_in(&mut kept);
            Fields::of(&paths).drop_from(&mut kept);
            prop_assert!(!has_field(&kept, "a"), "{kept}");
        }
    }
}
