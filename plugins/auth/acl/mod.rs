//! `acl`: access control by labels.

use std::collections::BTreeMap;

use regex::Regex;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Step};
use sigma_schema::expr::{VarName, VarValue, Variables};
use sigma_schema::json_path::JsonPath;

use sigma_plugin_kit::label_values;
use sigma_plugin_kit::log_throttle::LogThrottle;

/// Allows or denies by labels of the consumer, or by claims.
pub(crate) static ACL: Descriptor = Descriptor {
    name: "acl",
    priority: 2410,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    build: |build| Ok(std::sync::Arc::new(Acl::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Allows or denies requests by labels of the consumer, or by claims of a verified token.
///
/// A label may have several values: `infra,platform`, or `["infra","platform"]`. Without a consumer the plugin uses
/// the claims of `jwt-auth` with `store_in_ctx`, `saml-auth`, `dingtalk-auth` or `feishu-auth`, at
/// `external_user_label_field`. A request without both gets 401.
#[derive(Deserialize, JsonSchema)]
#[schemars(extend("anyOf" = [{"required": ["allow_labels"]}, {"required": ["deny_labels"]}]))]
struct Config {
    /// Permitted values by label. One matching value of one label permits the request; others are refused.
    #[schemars(extend("minProperties" = 1))]
    allow_labels: Option<BTreeMap<String, Values>>,
    /// Refused values by label; `deny_labels` has precedence over `allow_labels`.
    #[schemars(extend("minProperties" = 1))]
    deny_labels: Option<BTreeMap<String, Values>>,
    /// Place of the values in the claims: a name, or a JSONPath of names, `[n]`, `[*]` and `..`.
    #[schemars(length(min = 1), extend("default" = "groups"))]
    external_user_label_field: String,
    /// Label name of these values. Default: the value of `external_user_label_field`.
    #[schemars(length(min = 1))]
    external_user_label_field_key: Option<String>,
    /// Format of the values. Unset: detected from the value.
    external_user_label_field_parser: Option<Parser>,
    /// Separator of the values with `segmented_text`: a regular expression.
    #[schemars(length(min = 1))]
    external_user_label_field_separator: Option<String>,
    /// The status of a refusal.
    #[schemars(range(min = 200, max = 999), extend("default" = 403))]
    rejected_code: u16,
    /// The message of a refusal.
    rejected_msg: Option<String>,
}

/// Values of a label.
#[derive(Deserialize, JsonSchema)]
#[serde(transparent)]
struct Values(#[schemars(length(min = 1))] Vec<String>);

#[derive(Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Parser {
    /// A text with a separator between the values.
    SegmentedText,
    /// A text with a list in JSON.
    Json,
    /// A list.
    Table,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        self.reading().map(drop)
    }
}

/// How the labels of a user without a consumer are read.
struct Reading {
    path: JsonPath,
    key: String,
    parser: Option<Parser>,
    separator: Option<Regex>,
}

impl Config {
    fn reading(&self) -> Result<Reading, String> {
        let field = &self.external_user_label_field;
        let path =
            JsonPath::parse(field).map_err(|error| format!("invalid external_user_label_field: {error}"))?;
        let parser = self.external_user_label_field_parser;
        let separator = match (&self.external_user_label_field_separator, parser) {
            (None, Some(Parser::SegmentedText)) => {
                return Err("property \"external_user_label_field_separator\" is required".to_owned());
            }
            (None, _) => None,
            (Some(separator), _) => {
                let wrong = |_| {
                    format!(
                        "external_user_label_field_separator: `{separator}` is not a valid regular expression"
                    )
                };
                // A separator such as `a|b` would take the spaces on one side only.
                Some(Regex::new(&format!(r"\s*(?:{separator})\s*")).map_err(wrong)?)
            }
        };
        let key = self.external_user_label_field_key.clone().unwrap_or_else(|| field.clone());
        Ok(Reading { path, key, parser, separator })
    }
}

impl Reading {
    /// The values of the label.
    fn values(&self, claims: &Value) -> Vec<String> {
        let found = self.path.find(claims);
        found.into_iter().flat_map(|value| self.list(value)).collect()
    }

    /// Returns the items of one value; nothing if the parser does not accept it.
    fn list(&self, value: &Value) -> Vec<String> {
        let texts =
            |items: &[Value]| items.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect();
        match (self.parser, value) {
            (Some(Parser::SegmentedText), Value::String(text)) => {
                let separator = self.separator.as_ref();
                separator.map(|at| at.split(text.trim()).map(str::to_owned).collect()).unwrap_or_default()
            }
            (Some(Parser::Json), Value::String(text)) if text.starts_with('[') => {
                serde_json::from_str::<Vec<Value>>(text).map(|items| texts(&items)).unwrap_or_default()
            }
            (Some(Parser::Table) | None, Value::Array(items)) => texts(items),
            (None, Value::String(text)) => label_values::of(text),
            _ => {
                static COMPLAINT: LogThrottle = LogThrottle::new();
                if let Some(left_out) = COMPLAINT.due() {
                    tracing::warn!(left_out, label = self.key, "acl: failed to split labels");
                }
                Vec::new()
            }
        }
    }
}

struct Acl {
    config: Config,
    reading: Reading,
}

/// The variables in which plugins store the data of a user that is not a consumer, as JSON.
const USERS: [&str; 2] = [crate::shared::code_login::USER_VARIABLE, "jwt_auth_payload"];

impl Acl {
    fn new(build: &Build<'_>) -> Result<Acl, String> {
        let config: Config = build.config()?;
        let reading = config.reading()?;
        Ok(Acl { config, reading })
    }

    /// The labels that count; None if it is not known who asks.
    fn labels(&self, ctx: &Context) -> Option<Vec<(String, Vec<String>)>> {
        if let Some(consumer) = ctx.consumer() {
            let labels = consumer.labels.iter();
            return Some(labels.map(|(name, text)| (name.to_string(), label_values::of(text))).collect());
        }
        let left = USERS.iter().find_map(|variable| ctx.get(&VarName::parse(variable)));
        let Some(VarValue::Text(text)) = left else { return None };
        let claims: Value = serde_json::from_slice(&text).ok()?;
        Some(vec![(self.reading.key.clone(), self.reading.values(&claims))])
    }
}

/// Whether one of the labels has one of the wanted values.
fn meet(labels: &[(String, Vec<String>)], wanted: &BTreeMap<String, Values>) -> bool {
    labels.iter().any(|(name, values)| {
        wanted.get(name).is_some_and(|Values(wanted)| values.iter().any(|value| wanted.contains(value)))
    })
}

impl Plugin for Acl {
    fn access(&self, ctx: &mut Context, _: &Env<'_>) -> Step {
        let Some(labels) = self.labels(ctx) else {
            return Step::json(401, &json!({"message": "Missing authentication."}));
        };
        let is_denied = self.config.deny_labels.as_ref().is_some_and(|denied| meet(&labels, denied));
        let is_allowed = self.config.allow_labels.as_ref().is_none_or(|allowed| meet(&labels, allowed));
        if !is_denied && is_allowed {
            return Step::Next;
        }
        let message = self.config.rejected_msg.as_deref().unwrap_or("The consumer is forbidden.");
        Reply::new(self.config.rejected_code)
            .json(&json!({ "message": message }))
            .because("its labels")
            .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Case, entry, refusal, summary};

    const FORBIDDEN: &str = r#"403 {"message":"The consumer is forbidden."}"#;

    fn run(conf: &Value, case: &mut Case) -> String {
        let entry = entry("acl", conf.clone()).unwrap();
        summary(case.run(&entry, Phase::Access).as_ref())
    }

    #[test]
    fn labels_of_consumers() {
        let check = |conf: Value, labels: &[(&str, &str)], expected: &str| {
            let mut case = Case::new("GET / HTTP/1.1\nHost: h");
            case.known("jack", labels);
            assert_eq!(run(&conf, &mut case), expected, "{conf} {labels:?}");
        };
        let allow = || json!({"allow_labels": {"team": ["infra", "web"], "rank": ["1"]}});
        check(allow(), &[("team", "web")], "passed");
        check(allow(), &[("team", "sales"), ("rank", "1")], "passed");
        check(allow(), &[("team", "sales,infra")], "passed");
        check(allow(), &[("team", r#"["sales","infra"]"#)], "passed");
        check(allow(), &[("team", "sales, infra")], "passed");
        check(allow(), &[("team", "Web")], FORBIDDEN);
        check(allow(), &[("other", "web")], FORBIDDEN);
        check(allow(), &[], FORBIDDEN);
        let deny = || json!({"deny_labels": {"team": ["sales"]}});
        check(deny(), &[("team", "infra, sales")], FORBIDDEN);
        check(deny(), &[("team", "infra")], "passed");
        check(deny(), &[], "passed");
        let both = || json!({"deny_labels": {"team": ["sales"]}, "allow_labels": {"team": ["infra"]}, "rejected_code": 404, "rejected_msg": "no"});
        check(both(), &[("team", "infra,sales")], r#"404 {"message":"no"}"#);
        check(both(), &[("team", "infra")], "passed");
    }

    #[test]
    fn claims_of_others() {
        let check = |conf: Value, claims: Value, expected: &str| {
            let mut whole =
                json!({"allow_labels": {"groups": ["infra"], "a.b": ["infra"], "label": ["infra"]}});
            whole.as_object_mut().unwrap().extend(conf.as_object().unwrap().clone());
            let mut case = Case::new("GET / HTTP/1.1\nHost: h");
            case.ctx.set_variable("jwt_auth_payload", claims.to_string());
            assert_eq!(run(&whole, &mut case), expected, "{conf} {claims}");
        };
        check(json!({}), json!({"groups": ["web", "infra"]}), "passed");
        check(json!({}), json!({"groups": "web,infra"}), "passed");
        check(json!({}), json!({"groups": "infra"}), "passed");
        check(json!({}), json!({"groups": ["web"]}), FORBIDDEN);
        check(json!({}), json!({"groups": 5}), FORBIDDEN);
        check(json!({}), json!({}), FORBIDDEN);
        let field =
            |path: &str| json!({"external_user_label_field": path, "external_user_label_field_key": "label"});
        check(json!({"external_user_label_field": "a.b"}), json!({"a": {"b": "infra"}}), "passed");
        check(field("$.a[*].name"), json!({"a": [{"name": "web"}, {"name": "infra"}]}), "passed");
        check(field("$..name"), json!({"a": [{"x": {"name": "infra"}}]}), "passed");
        let parsed = |parser: &str| json!({"external_user_label_field_parser": parser, "external_user_label_field_separator": ";"});
        check(parsed("segmented_text"), json!({"groups": "web ; infra"}), "passed");
        check(parsed("segmented_text"), json!({"groups": ["infra"]}), FORBIDDEN);
        check(parsed("json"), json!({"groups": r#"["infra"]"#}), "passed");
        check(parsed("json"), json!({"groups": "infra"}), FORBIDDEN);
        check(parsed("table"), json!({"groups": ["infra"]}), "passed");
        check(parsed("table"), json!({"groups": "infra"}), FORBIDDEN);
    }

    #[test]
    fn requests_without_a_consumer_get_no_challenge() {
        let conf = json!({"deny_labels": {"team": ["sales"]}});
        let told = run(&conf, &mut Case::new("GET / HTTP/1.1\nHost: h"));
        assert_eq!(told, r#"401 {"message":"Missing authentication."}"#);
    }

    #[test]
    fn bad_configurations_are_refused() {
        let check = |conf: Value, expected: &str| assert_eq!(refusal("acl", &conf), expected, "{conf}");
        check(json!({}), "object matches none of the required: [\"allow_labels\"] or [\"deny_labels\"]");
        let with = |conf: Value| {
            let mut whole = json!({"allow_labels": {"a": ["b"]}});
            whole.as_object_mut().unwrap().extend(conf.as_object().unwrap().clone());
            whole
        };
        check(
            with(json!({"external_user_label_field": "$["})),
            "invalid external_user_label_field: `$[` is not a supported JSONPath",
        );
        check(
            with(json!({"external_user_label_field_parser": "segmented_text"})),
            "property \"external_user_label_field_separator\" is required",
        );
        check(
            with(json!({"external_user_label_field_separator": "("})),
            "external_user_label_field_separator: `(` is not a valid regular expression",
        );
        for refused in [
            json!({"allow_labels": {}}),
            json!({"allow_labels": {"a": []}}),
            with(json!({"rejected_code": 100})),
        ] {
            assert_ne!(refusal("acl", &refused), "", "{refused}");
        }
    }
}
