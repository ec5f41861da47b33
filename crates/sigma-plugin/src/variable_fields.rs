//! Fields in plugin configurations that name variables.
//!
//! An unknown variable never has a value. In a log or a field that only deserves a warning. But if it decides whom a
//! limit counts or whether a plugin runs, the configuration would protect the wrong thing, so it is rejected.

use serde_json::Value;
use sigma_schema::expr::VarName;
use sigma_schema::expr::known::Subject;
use sigma_schema::plugins::PluginScope;
use sigma_schema::problem::{element, member};
use sigma_schema::template::Template;
use sigma_schema::validation::is_secret_reference;

/// The format of a field that names variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VariableForm {
    /// It is the name.
    Name,
    /// It is a text with variables.
    Template,
    /// The field `key_type` next to it decides: a name, a text with variables, or neither.
    Key,
    /// Every `$name` in it, at any depth.
    LogFormat,
    /// Conditions, or lists of conditions.
    Condition,
}

/// The handling of a configuration with an unknown variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// It is accepted with a warning.
    Warned,
    /// It is rejected: the variable affects protection.
    Refused,
}

/// A path to one or several fields: member names from the top, `*` for all members or items.
#[derive(Debug, Clone, Copy)]
pub struct VariableField {
    path: &'static str,
    form: VariableForm,
    unknown: Unknown,
}

impl VariableField {
    /// Returns a field in which a variable is only shown.
    pub const fn shown(path: &'static str, form: VariableForm) -> VariableField {
        VariableField { path, form, unknown: Unknown::Warned }
    }

    /// Returns a field in which a variable affects protection.
    pub const fn guard(path: &'static str, form: VariableForm) -> VariableField {
        VariableField { path, form, unknown: Unknown::Refused }
    }
}

/// The condition that decides whether a plugin runs.
const FILTER: VariableField = VariableField::guard("_meta.filter", VariableForm::Condition);

/// An unknown variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Its position in the configuration: `rules[0].key`.
    pub pointer: String,
    /// A message, with the name that may have been meant.
    pub reason: String,
}

/// Returns the unknown variables at `places` of `conf`, a configuration of this scope, with the handling `unknown`;
/// every plugin has the place `_meta.filter`.
pub fn missing(places: &[VariableField], scope: PluginScope, conf: &Value, unknown: Unknown) -> Vec<Missing> {
    let subject = if scope == PluginScope::Stream { Subject::Session } else { Subject::Exchange };
    let mut found = Vec::new();
    for place in places.iter().chain([&FILTER]).filter(|place| place.unknown == unknown) {
        let wanted = WantedVariables { form: place.form, subject };
        walk(place.path, wanted, conf, conf, String::new(), &mut found);
    }
    found
}

/// The variables that a field may have.
#[derive(Clone, Copy)]
struct WantedVariables {
    form: VariableForm,
    subject: Subject,
}

fn walk(
    path: &str,
    wanted: WantedVariables,
    around: &Value,
    value: &Value,
    pointer: String,
    found: &mut Vec<Missing>,
) {
    if path.is_empty() {
        look(wanted, around, value, pointer, found);
        return;
    }
    let (step, rest) = path.split_once('.').unwrap_or((path, ""));
    match (step, value) {
        ("*", Value::Array(items)) => {
            for (at, item) in items.iter().enumerate() {
                walk(rest, wanted, value, item, element(&pointer, at), found);
            }
        }
        ("*", Value::Object(members)) => {
            for (name, inner) in members {
                walk(rest, wanted, value, inner, member(&pointer, name), found);
            }
        }
        (name, _) => {
            if let Some(inner) = value.get(name) {
                walk(rest, wanted, value, inner, member(&pointer, name), found);
            }
        }
    }
}

fn look(wanted: WantedVariables, around: &Value, value: &Value, pointer: String, found: &mut Vec<Missing>) {
    let WantedVariables { form, subject } = wanted;
    let name = |name: &str| VarName::parse(name).unknown_of(subject);
    let template = |text: &str| Template::parse(text).unknown_of(subject);
    if value.as_str().is_some_and(is_secret_reference) {
        // The secret behind the reference is checked when it is known.
        return;
    }
    let reason = match (form, value) {
        (VariableForm::Name, Value::String(text)) => name(text.strip_prefix('$').unwrap_or(text)),
        (VariableForm::Template, Value::String(text)) => template(text),
        (VariableForm::Key, Value::String(text)) => match around.get("key_type").and_then(Value::as_str) {
            None | Some("var") => name(text),
            Some("var_combination") => template(text),
            Some(_) => None,
        },
        (VariableForm::LogFormat, Value::String(text)) => text.strip_prefix('$').and_then(name),
        (VariableForm::LogFormat, Value::Object(members)) => {
            for (name, inner) in members {
                look(wanted, value, inner, member(&pointer, name), found);
            }
            None
        }
        (VariableForm::Condition, Value::Array(items)) => match items.first() {
            Some(Value::String(word)) if !is_logic(word) => name(word),
            _ => {
                for (at, item) in items.iter().enumerate() {
                    look(wanted, value, item, element(&pointer, at), found);
                }
                None
            }
        },
        _ => None,
    };
    found.extend(reason.map(|reason| Missing { pointer, reason }));
}

fn is_logic(word: &str) -> bool {
    ["AND", "OR", "!AND", "!OR"].iter().any(|logic| logic.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PLACES: &[VariableField] = &[
        VariableField::guard("key", VariableForm::Key),
        VariableField::guard("rules.*.key", VariableForm::Template),
        VariableField::guard("source", VariableForm::Name),
        VariableField::shown("headers.*", VariableForm::Template),
        VariableField::shown("headers.set.*", VariableForm::Template),
        VariableField::shown("log_format", VariableForm::LogFormat),
        VariableField::shown("rules.*.vars", VariableForm::Condition),
    ];

    fn check(conf: Value, refused: &[&str], warned: &[&str]) {
        for (unknown, expected) in [(Unknown::Refused, refused), (Unknown::Warned, warned)] {
            let found = missing(PLACES, PluginScope::Http, &conf, unknown);
            let pointers: Vec<&str> = found.iter().map(|missing| &*missing.pointer).collect();
            assert_eq!(pointers, expected, "{unknown:?} in {conf}");
        }
    }

    /// A guard of a stream route that reads a variable of requests would never run.
    #[test]
    fn sessions_have_variables_of_their_own() {
        let pointers = |conf: Value| {
            let found = missing(PLACES, PluginScope::Stream, &conf, Unknown::Refused);
            found.into_iter().map(|missing| missing.pointer).collect::<Vec<_>>()
        };
        for key in ["remote_addr", "server_port", "mqtt_client_id", "ssl_server_name", "geoip_asn"] {
            assert_eq!(pointers(json!({ "key": key })), [""; 0], "{key}");
        }
        for key in ["uri", "http_x", "request_id", "upstream_status", "session"] {
            assert_eq!(pointers(json!({ "key": key })), ["key"], "{key}");
        }
        assert_eq!(pointers(json!({"_meta": {"filter": [["uri", "==", "/"]]}})), ["_meta.filter[0]"]);
    }

    #[test]
    fn every_form_at_its_place() {
        check(json!({}), &[], &[]);
        check(json!({"key": "remote_addr"}), &[], &[]);
        check(json!({"key": "remote_adr"}), &["key"], &[]);
        check(json!({"key": "$remote_adr", "key_type": "var_combination"}), &["key"], &[]);
        check(json!({"key": "remote_adr", "key_type": "constant"}), &[], &[]);
        check(
            json!({"rules": [{"key": "$uri"}, {"key": "${ur}"}, {"key": "${ur ?? x}"}]}),
            &["rules[1].key"],
            &[],
        );
        check(json!({"key": "$ENV://KEY", "key_type": "var_combination"}), &[], &[]);
        check(json!({"source": "htp_x"}), &["source"], &[]);
        check(
            json!({"headers": {"X": "$ur", "Y": "$1 and $2x cost 5$", "set": {"a/b": "$hots"}}}),
            &[],
            &["headers.X", r#"headers.set["a/b"]"#],
        );
        check(
            json!({"log_format": {"a": "$stats", "b": "stats", "c": {"d": "$pod"}}}),
            &[],
            &["log_format.a", "log_format.c.d"],
        );
        let vars = json!([["OR", ["arg_a", "==", "b"], ["ag_a", "==", "x"]], ["hots", "y"]]);
        check(json!({"rules": [{"vars": vars}]}), &[], &["rules[0].vars[0][2]", "rules[0].vars[1]"]);
        check(json!({"_meta": {"filter": [["htp_x", "==", "y"]]}}), &["_meta.filter[0]"], &[]);
    }

    #[test]
    fn the_reason_suggests_a_name() {
        let [missing] =
            &missing(PLACES, PluginScope::Http, &json!({"key": "remote_adr"}), Unknown::Refused)[..]
        else {
            panic!("one variable is missing")
        };
        assert_eq!(missing.reason, "unknown variable `remote_adr`; did you mean `remote_addr`?");
    }
}
