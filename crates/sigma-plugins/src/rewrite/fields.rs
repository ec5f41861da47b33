//! `headers` of proxy-rewrite and response-rewrite: fields to add, to set and to remove.

use std::borrow::Cow;

use serde_json::{Map, Value};
use sigma_config::expr::{VarName, VarValue, Variables};
use sigma_config::template::Template;
use sigma_http::{HeaderId, Headers};
use sigma_plugin::Context;

/// Fields that frame a message. What an operator said of them would tear it apart.
const FRAMING: [HeaderId; 4] =
    [HeaderId::ContentLength, HeaderId::TransferEncoding, HeaderId::Connection, HeaderId::Trailer];

/// The rules of one `headers`, in the order in which they apply.
#[derive(Debug, Default)]
pub(super) struct FieldRules {
    add: Vec<(Box<str>, Template)>,
    set: Vec<(Box<str>, Vec<Template>)>,
    remove: Vec<Box<str>>,
}

/// How a message's fields are reached.
pub(super) type Side = fn(&mut Context) -> &mut Headers;

impl FieldRules {
    /// Rules in either notation: `add`, `set` and `remove`, or fields to set.
    pub(super) fn of(headers: &Value) -> FieldRules {
        let none = Map::new();
        let fields = headers.as_object().unwrap_or(&none);
        let mut rules = FieldRules::default();
        if !is_rules(fields) {
            rules.set = fields.iter().map(|(name, value)| (name.as_str().into(), templates(value))).collect();
            return rules;
        }
        match fields.get("add") {
            Some(Value::Object(added)) => {
                for (name, value) in added {
                    rules.add.extend(templates(value).into_iter().map(|value| (name.as_str().into(), value)));
                }
            }
            // response-rewrite: lines as they stand in a message.
            Some(Value::Array(lines)) => {
                let lines = lines.iter().filter_map(Value::as_str).filter_map(|line| line.split_once(':'));
                rules.add.extend(lines.map(|(name, value)| (name.trim().into(), template(value.trim()))));
            }
            _ => {}
        }
        if let Some(Value::Object(set)) = fields.get("set") {
            rules.set = set.iter().map(|(name, value)| (name.as_str().into(), templates(value))).collect();
        }
        if let Some(Value::Array(names)) = fields.get("remove") {
            rules.remove = names.iter().filter_map(Value::as_str).map(Box::from).collect();
        }
        rules
    }

    /// Refuses names and values that would tear a message apart, in the words of APISIX.
    pub(super) fn check(headers: Option<&Value>) -> Result<(), String> {
        let Some(headers) = headers else { return Ok(()) };
        let rules = FieldRules::of(headers);
        let names = rules.add.iter().map(|(name, _)| name).chain(rules.set.iter().map(|(name, _)| name));
        if names.chain(&rules.remove).any(|name| !is_name(name)) {
            return Err("invalid field character in header".into());
        }
        let is_rules = headers.as_object().is_some_and(is_rules);
        let mut values = headers.as_object().into_iter().flat_map(|fields| fields.values());
        if !is_rules && values.any(|value| value.as_str().is_some_and(|text| !is_plain(text))) {
            return Err("invalid value character in header".into());
        }
        Ok(())
    }

    /// The names of fields that are set, in lower case.
    pub(super) fn sets(&self, name: &str) -> bool {
        self.set.iter().any(|(known, _)| known.eq_ignore_ascii_case(name))
    }

    /// Applies the rules to one side's fields. `captures` stand behind `$1` and so on. A field
    /// without a value is not there, as with nginx: to add it does nothing, to set it removes it.
    pub(super) fn apply(&self, ctx: &mut Context, captures: &[Vec<u8>], side: Side) {
        for (name, value) in self.add.iter().filter(|(name, _)| !frames(name)) {
            let value = render(value, ctx, captures);
            if !value.is_empty() {
                side(ctx).append(name, &value);
            }
        }
        for (name, values) in self.set.iter().filter(|(name, _)| !frames(name)) {
            let values: Vec<Vec<u8>> = values.iter().map(|value| render(value, ctx, captures)).collect();
            side(ctx).remove_name(name.as_bytes());
            for value in values.iter().filter(|value| !value.is_empty()) {
                side(ctx).append(name, value);
            }
        }
        for name in self.remove.iter().filter(|name| !frames(name)) {
            side(ctx).remove_name(name.as_bytes());
        }
    }
}

/// Whether a field frames its message.
pub(crate) fn frames(name: &str) -> bool {
    FRAMING.contains(&HeaderId::of(name.as_bytes()))
}

/// Whether this is the notation with `add`, `set` and `remove`; a field may have one of these names.
fn is_rules(fields: &Map<String, Value>) -> bool {
    let grouped = |value: Option<&Value>| value.is_some_and(|value| value.is_object() || value.is_array());
    grouped(fields.get("add"))
        || fields.get("set").is_some_and(Value::is_object)
        || fields.get("remove").is_some_and(Value::is_array)
}

/// Templates of a value or a list of values.
fn templates(value: &Value) -> Vec<Template> {
    match value {
        Value::Array(values) => values.iter().flat_map(templates).collect(),
        Value::String(text) => vec![template(text)],
        other => vec![template(&other.to_string())],
    }
}

/// A template in which `$1x` is group 1 and an `x`, not a variable `1x`.
fn template(text: &str) -> Template {
    let mut spelled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let after = &rest[at + 1..];
        let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        spelled.push_str(&rest[..at]);
        if end == 0 || rest[..at].ends_with('\\') {
            spelled.push('$');
            rest = after;
        } else {
            spelled.push_str(&format!("${{{}}}", &after[..end]));
            rest = &after[end..];
        }
    }
    spelled.push_str(rest);
    Template::parse(&spelled)
}

fn render(template: &Template, ctx: &Context, captures: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    template.render(&WithCaptures { ctx, captures }, &mut out);
    out
}

/// The variables of an exchange, and the groups of a match under their numbers.
struct WithCaptures<'a> {
    ctx: &'a Context,
    captures: &'a [Vec<u8>],
}

impl Variables for WithCaptures<'_> {
    fn get(&self, name: &VarName) -> Option<VarValue<'_>> {
        if let VarName::Other(name) = name
            && let Ok(number) = name.parse::<usize>()
        {
            return self.captures.get(number).map(|text| VarValue::Text(Cow::Borrowed(text)));
        }
        self.ctx.get(name)
    }
}

/// Whether this can be the name of a field (RFC 9110 §5.1).
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// Whether it holds neither control characters nor characters beyond ASCII.
fn is_plain(value: &str) -> bool {
    value.bytes().all(|b| (0x20..0x7f).contains(&b) || b == b'\t')
}
