//! Variables that a configuration defines: `$var_NAME`.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use sigma_schema::defined::{self, Definition, Definitions, PREFIX};
use sigma_schema::expr::VarName;
use sigma_schema::problem::{Problem, element, member};
use sigma_schema::template::Template;

/// A variable, read as `$var_NAME` in texts and conditions. Its value is computed when it is read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Variable {
    /// The value, a text with variables; exactly one of `value` and `map`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// A text with variables that decides on the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub map: Option<String>,
    /// Values by text, compared without case.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub exact: BTreeMap<String, String>,
    /// Values by wildcard: `*.example.com`, `.example.com` (with the name itself), `www.example.*`. The longest one
    /// counts, endings before beginnings.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hosts: BTreeMap<String, String>,
    /// Values by network of an address, such as `10.0.0.0/8`; the longest prefix counts.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub networks: BTreeMap<String, String>,
    /// Values by regular expression; the first one that matches counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub regex: Vec<VariableCase>,
    /// Values by shares of all texts: the same text always has the same value.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<VariableShare>,
    /// The value without a match.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub default: String,
}

/// A value for texts that match an expression.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VariableCase {
    /// The expression, searched anywhere in the text.
    #[serde(rename = "match")]
    #[schemars(length(min = 1, max = 4096))]
    pub expression: String,
    /// Whether case is ignored.
    #[serde(default)]
    pub ignore_case: bool,
    /// The value; `$1` and `${name}` are groups of the expression.
    pub value: String,
}

/// A value for a share of all texts.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VariableShare {
    /// The share, with two digits after the point at most.
    #[schemars(range(min = 0, max = 100))]
    pub percent: f64,
    /// The value.
    pub value: String,
}

impl Eq for VariableShare {}

/// Variables by name.
pub type Variables = BTreeMap<String, Variable>;

impl Variable {
    /// Compiles the definition.
    ///
    /// # Errors
    /// Returns the invalid fields, with a message for each.
    fn compiled(&self) -> Result<Definition, Vec<(String, String)>> {
        let text = |text: &String| Template::parse(text);
        let mut wrong = Vec::new();
        let source = match (&self.value, &self.map) {
            (Some(value), None) => {
                if self.has_cases() {
                    wrong.push((
                        String::new(),
                        "cases need a `map`, but this variable has a `value`".to_owned(),
                    ));
                }
                return if wrong.is_empty() { Ok(Definition::Text(text(value))) } else { Err(wrong) };
            }
            (None, Some(source)) => text(source),
            _ => return Err(vec![(String::new(), "a variable needs either `value` or `map`".to_owned())]),
        };
        let mut map = defined::Map::of(source, text(&self.default));
        for (exact, value) in &self.exact {
            map.add_exact(exact, text(value));
        }
        for (host, value) in &self.hosts {
            if let Err(reason) = map.add_host(host, text(value)) {
                wrong.push((member("hosts", host), reason));
            }
        }
        for (network, value) in &self.networks {
            if let Err(reason) = map.add_network(network, text(value)) {
                wrong.push((member("networks", network), reason));
            }
        }
        for (at, case) in self.regex.iter().enumerate() {
            if let Err(reason) = map.add_expression(&case.expression, case.ignore_case, text(&case.value)) {
                wrong.push((member(&element("regex", at), "match"), reason));
            }
        }
        for share in &self.shares {
            map.add_share((share.percent * 100.0).round().clamp(0.0, 10_000.0) as u32, text(&share.value));
        }
        if self.shares.iter().map(|share| share.percent).sum::<f64>() > 100.0 {
            wrong.push(("shares".to_owned(), "the shares are more than 100 percent".to_owned()));
        }
        if wrong.is_empty() { Ok(Definition::Map(Box::new(map))) } else { Err(wrong) }
    }

    fn has_cases(&self) -> bool {
        let has_texts = !self.exact.is_empty() || !self.hosts.is_empty() || !self.networks.is_empty();
        has_texts || !self.regex.is_empty() || !self.shares.is_empty() || !self.default.is_empty()
    }
}

/// Compiles checked variables. An invalid one, which the check refuses, is omitted.
#[must_use]
pub fn definitions(variables: &Variables) -> Option<Arc<Definitions>> {
    if variables.is_empty() {
        return None;
    }
    let mut all = Definitions::default();
    for (name, variable) in variables {
        if let Ok(definition) = variable.compiled() {
            all.insert(name, definition);
        }
    }
    Some(Arc::new(all))
}

/// Returns the definitions of a route's `set`, with the ones around them.
#[must_use]
pub fn definitions_of_set(
    set: &BTreeMap<Box<str>, Box<str>>,
    around: Option<Arc<Definitions>>,
) -> Option<Arc<Definitions>> {
    if set.is_empty() {
        return None;
    }
    let mut all = Definitions::within(around);
    for (name, text) in set {
        all.insert(name, Definition::Text(Template::parse(text)));
    }
    Some(Arc::new(all))
}

/// Returns true for a name of letters, digits and `_`.
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Returns the problems of the variables of a file: of their definitions, and of texts and conditions that read others.
/// An unknown variable would be empty, so that a limit would count by the wrong key.
pub(crate) fn of_document(root: &Map<String, Value>) -> Vec<Problem> {
    let mut found = root.get("variables").map(problems).unwrap_or_default();
    let names = |value: &Value| -> Vec<String> {
        value.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect()
    };
    let mut known: HashSet<String> =
        root.get("variables").map(names).unwrap_or_default().into_iter().collect();
    let routes = root.get("routes").and_then(Value::as_array).into_iter().flatten();
    known.extend(routes.filter_map(|route| route.get("set")).flat_map(names));
    for (key, value) in root {
        unknown(value, &member("", key), &known, &mut found);
    }
    found
}

/// The second elements of conditions.
const OPERATORS: [&str; 12] = ["!", "==", "~=", ">", ">=", "<", "<=", "~~", "~*", "in", "has", "ipmatch"];

/// Adds the problems of texts and conditions that read a variable that is not defined.
fn unknown(value: &Value, here: &str, known: &HashSet<String>, found: &mut Vec<Problem>) {
    // Places are written for the few values that read such variables.
    if !reads_any(value) {
        return;
    }
    let mut check = |name: &str| {
        if !known.contains(name) {
            let message = format!("unknown variable `var_{name}`");
            let hint = format!("define `{name}` in `variables`, or in `set` of the route");
            found.push(Problem::new(here, "variable", message).hint(hint));
        }
    };
    match value {
        Value::String(text) => Template::parse(text).variables().filter_map(own_name).for_each(check),
        Value::Array(items) => {
            // The first element of a condition is its variable.
            if let [Value::String(name), Value::String(operator), _, ..] = items.as_slice()
                && OPERATORS.contains(&operator.to_ascii_lowercase().as_str())
                && let Some(name) = name.strip_prefix(PREFIX)
            {
                check(name);
            }
            for (at, item) in items.iter().enumerate() {
                unknown(item, &element(here, at), known, found);
            }
        }
        Value::Object(members) => {
            for (name, value) in members {
                unknown(value, &member(here, name), known, found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn reads_any(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains(PREFIX),
        Value::Array(items) => items.iter().any(reads_any),
        Value::Object(members) => members.values().any(reads_any),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Returns the name of a variable of the configuration, without the prefix.
fn own_name(name: &VarName) -> Option<&str> {
    match name {
        VarName::Other(name) => name.strip_prefix(PREFIX),
        _ => None,
    }
}

/// Returns the problems of the setting `variables`, which the schema accepts.
fn problems(setting: &Value) -> Vec<Problem> {
    let Ok(variables) = Variables::deserialize(setting) else { return Vec::new() };
    let mut found = Vec::new();
    for (name, variable) in &variables {
        let here = member("variables", name);
        if !is_name(name) {
            let message = format!("`{name}` is not a name of letters, digits and `_`");
            found.push(Problem::new(&here, "pattern", message).hint("it is read as $var_NAME"));
        }
        for (place, message) in variable.compiled().err().unwrap_or_default() {
            found.push(Problem::new(place, "variable", message).within(&here));
        }
    }
    let all = definitions(&variables);
    if let Some(mut circle) = all.as_ref().and_then(|all| all.circle()) {
        // The definitions have no order of their own.
        circle.sort_unstable();
        let names: Vec<String> = circle.iter().map(|name| format!("`{name}`")).collect();
        let message = format!("the variable refers to itself: {}", names.join(", "));
        let here = member("variables", circle.first().copied().unwrap_or_default());
        found.push(Problem::new(here, "variable", message).hint("remove one of the references"));
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_variables_are_refused() {
        let root = json!({
            "variables": {"a": {"value": "$var_b"}},
            "routes": [
                {"uri": "/", "vars": [["var_a", "==", "1"], ["var_c", "==", "1"]], "set": {"d": "$var_a"}},
                {"uri": "/", "plugins": {"x": {"text": "$var_d ${var_e ?? f} $vars"}}},
            ],
        });
        let found = of_document(root.as_object().unwrap());
        let found: Vec<String> =
            found.iter().map(|problem| format!("{}: {}", problem.pointer, problem.message)).collect();
        let expected = [
            "variables.a.value: unknown variable `var_b`",
            "routes[0].vars[1]: unknown variable `var_c`",
            "routes[1].plugins.x.text: unknown variable `var_e`",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn mistakes_have_places() {
        let check = |setting: Value, expected: &[(&str, &str)]| {
            let found = problems(&setting);
            assert_eq!(found.len(), expected.len(), "{setting}: {found:?}");
            for (problem, (place, message)) in found.iter().zip(expected) {
                assert_eq!(problem.pointer, *place, "{setting}");
                assert!(problem.message.contains(message), "{setting}: {}", problem.message);
            }
        };
        check(json!({"a": {"value": "x"}, "b": {"map": "$host", "hosts": {"*.c": "d"}}}), &[]);
        check(json!({"a b": {"value": "x"}}), &[("variables[\"a b\"]", "letters, digits")]);
        check(json!({"a": {}}), &[("variables.a", "either `value` or `map`")]);
        check(json!({"a": {"value": "", "map": ""}}), &[("variables.a", "either `value` or `map`")]);
        check(json!({"a": {"value": "", "default": "x"}}), &[("variables.a", "cases need a `map`")]);
        check(
            json!({"a": {"map": "$host", "hosts": {"x": "1"}, "regex": [{"match": "(", "value": ""}]}}),
            &[("variables.a.hosts.x", "not a wildcard"), ("variables.a.regex[0].match", "the expression")],
        );
        check(
            json!({"a": {"map": "$remote_addr", "networks": {"10.0.0.0/8": "1", "10.0.0/8": "2"}}}),
            &[("variables.a.networks[\"10.0.0/8\"]", "not a network")],
        );
        check(
            json!({"a": {"value": "$var_b"}, "b": {"map": "$host", "exact": {"x": "$var_a"}}}),
            &[("variables.a", "refers to itself: `a`, `b`")],
        );
    }
}
