//! `traffic-label`: marks requests with header fields, by conditions and weights.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, OwnedField, Phase, PhaseSet, Plugin, Step,
};
use sigma_schema::Problem;
use sigma_schema::expr::Expr;
use sigma_schema::problem::{element, member};

use sigma_plugin_kit::fields::{Added, FieldRules, Fields, Notation, changed_fields};
use sigma_plugin_kit::turns::Entries;

/// The plugin.
pub(crate) static TRAFFIC_LABEL: Descriptor = Descriptor {
    name: "traffic-label",
    priority: 967,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    owned_fields: Some(owned_fields),
    warnings: Some(|_, conf| idle_rules(conf)),
    variables: &[
        VariableField::shown("rules.*.match", VariableForm::Condition),
        VariableField::shown("rules.*.actions.*.set_headers.*", VariableForm::Template),
    ],
    build: |build| Ok(Arc::new(TrafficLabel::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Sets header fields of requests, for nodes and for the plugins that run after it.
///
/// The first rule applies whose condition matches and whose action, chosen by weight, sets fields. An action without
/// fields leaves the request to the following rules: a share of requests without a label.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// Rules, in the order in which they are checked.
    #[schemars(length(min = 1))]
    rules: Vec<Rule>,
}

#[derive(Deserialize, JsonSchema)]
struct Rule {
    /// The condition; without one the rule applies to all requests.
    #[serde(rename = "match", default, deserialize_with = "condition")]
    #[schemars(length(min = 1), extend("items" = {"anyOf": [{"type": "array"}, {"type": "string"}]}))]
    condition: Option<Expr>,
    /// Actions, chosen in turns by weight.
    #[schemars(length(min = 1))]
    actions: Vec<Action>,
}

#[derive(Deserialize, JsonSchema)]
struct Action {
    /// Fields of the request; they replace fields with the same name. Values may contain variables.
    #[serde(default, deserialize_with = "fields")]
    #[schemars(with = "Option<Fields<false>>")]
    set_headers: Option<FieldRules>,
    /// Weight among the actions.
    #[schemars(range(min = 1), extend("default" = 1))]
    weight: u64,
    #[serde(flatten)]
    others: Map<String, Value>,
}

fn condition<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Expr>, D::Error> {
    let rule = Value::deserialize(deserializer)?;
    let wrong = |error| format!("failed to validate the 'match' expression: {rule} err: {error}");
    Expr::parse(&rule).map(Some).map_err(|error| serde::de::Error::custom(wrong(error)))
}

fn fields<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<FieldRules>, D::Error> {
    let rules = Notation::<Added, false>::rules(deserializer);
    let wrong = |error| format!("failed to validate the 'set_headers' action: {error}");
    rules.map(Some).map_err(|error| serde::de::Error::custom(wrong(error)))
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        let mut others =
            self.rules.iter().flat_map(|rule| &rule.actions).flat_map(|action| action.others.keys());
        others.next().map_or(Ok(()), |name| Err(format!("not supported action: {name}")))
    }
}

/// Rules that change no request.
fn idle_rules(conf: &Value) -> Vec<Problem> {
    let list =
        |value: &Value, name: &str| value.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    let mut problems = Vec::new();
    for (index, rule) in list(conf, "rules").iter().enumerate() {
        if list(rule, "actions").iter().all(|action| action.get("set_headers").is_none()) {
            let at = member(&element(&member("", "rules"), index), "actions");
            let message = "the rule has no effect: its actions set nothing";
            problems.push(Problem::new(at, "no_effect", message).hint("write `set_headers`"));
        }
    }
    problems
}

fn owned_fields(conf: &Value) -> Vec<OwnedField> {
    let list = |value: &Value, name: &str| value.get(name).and_then(Value::as_array).cloned();
    let rules = list(conf, "rules").unwrap_or_default().into_iter();
    let actions = rules.flat_map(|rule| list(&rule, "actions").unwrap_or_default());
    actions.flat_map(|action| changed_fields(action.get("set_headers"))).collect()
}

struct TrafficLabel(Vec<(Expr, Arc<Entries<Option<FieldRules>>>)>);

impl TrafficLabel {
    fn new(build: &Build<'_>) -> Result<TrafficLabel, String> {
        let config: Config = build.config()?;
        let rules = config.rules.into_iter().map(|rule| {
            let actions = rule.actions.into_iter().map(|action| (action.set_headers, action.weight));
            (rule.condition.unwrap_or(Expr::ALWAYS), Arc::new(Entries::new(actions.collect())))
        });
        Ok(TrafficLabel(rules.collect()))
    }
}

impl Plugin for TrafficLabel {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        for (condition, actions) in &self.0 {
            if condition.eval(ctx)
                && let Some(Some(fields)) = actions.next(env.local)
            {
                fields.apply(ctx, &[], |ctx| &mut ctx.request.headers);
                break;
            }
        }
        Step::Next
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sigma_schema::plugins::PluginScope;

    use super::*;
    use crate::testing::{Case, assert_refusal, entry, warned};

    #[test]
    fn fields_by_conditions() {
        let rules = json!({"rules": [
            {"match": [["OR", ["arg_a", "==", "1"], ["arg_a", "==", "2"]]], "actions": [{"set_headers": {"X-L": "or $arg_a", "X-N": 7}}]},
            {"match": ["AND", ["arg_b", "==", "1"], ["arg_c", "==", "1"]], "actions": [{"set_headers": {"X-L": "and"}}]},
            {"match": [["arg_d", "==", "1"]], "actions": [{"weight": 1}]},
            {"match": [["arg_d", "==", "1"]], "actions": [{"set_headers": {"X-L": "behind"}}]},
        ]});
        let entry = entry("traffic-label", rules).unwrap();
        let check = |query: &str, expected: Option<&str>| {
            let mut case = Case::new(&format!("GET /?{query} HTTP/1.1\nHost: h\nx-l: of-the-client"));
            assert!(case.run(&entry, Phase::Access).is_none());
            assert_eq!(case.sent("X-L").as_deref(), expected.or(Some("of-the-client")), "{query}");
        };
        check("a=2", Some("or 2"));
        check("b=1&c=1", Some("and"));
        check("b=1", None);
        check("d=1", Some("behind"));
    }

    #[test]
    fn actions_take_turns() {
        let actions =
            json!([{"set_headers": {"X-L": "a"}, "weight": 3}, {"set_headers": {"X-L": "b"}}, {"weight": 2}]);
        let entry = entry("traffic-label", json!({"rules": [{"actions": actions}]})).unwrap();
        let mut case = Case::new("GET / HTTP/1.1\nHost: h");
        let mut counts = std::collections::BTreeMap::<Option<String>, usize>::new();
        for _ in 0..60 {
            case.request("GET / HTTP/1.1\nHost: h");
            assert!(case.run(&entry, Phase::Access).is_none());
            *counts.entry(case.sent("X-L")).or_default() += 1;
        }
        let expected = [(None, 20), (Some("a".to_owned()), 30), (Some("b".to_owned()), 10)];
        assert_eq!(counts, expected.into());
    }

    #[test]
    fn configurations() {
        let check = |rule: Value, expected: &str| {
            assert_refusal("traffic-label", &json!({"rules": [rule]}), expected);
        };
        let sets = || json!([{"set_headers": {"a": "b"}}]);
        check(json!({"actions": sets()}), "");
        check(json!({}), "property \"actions\" is required");
        check(json!({"actions": [{"drop": {}}]}), "not supported action: drop");
        check(json!({"actions": [{"set_headers": {}}]}), "expect object to have at least 1 properties");
        check(
            json!({"actions": [{"set_headers": {"a b": "1"}}]}),
            "failed to validate the 'set_headers' action: invalid field character",
        );
        check(json!({"actions": [{"set_headers": {"a": "1\r\nb: 2"}}]}), "invalid value character in header");
        check(
            json!({"match": [["a", "nonsense", "b"]], "actions": sets()}),
            "failed to validate the 'match' expression: [[\"a\",\"nonsense\",\"b\"]] err: ",
        );
        check(json!({"match": ["AND", ["arg_a", "==", "1"]], "actions": sets()}), "rule too short");
        let idle = json!({"rules": [{"actions": [{"weight": 1}]}, {"actions": sets()}]});
        assert_eq!(warned("traffic-label", PluginScope::Http, &idle), ["rules[0].actions"]);
    }
}
