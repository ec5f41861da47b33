//! `attach-consumer-label`: sends the labels of a consumer to nodes.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_plugin::owned::members;
use sigma_plugin::{Configuration, Context, Descriptor, Env, OwnedField, Phase, PhaseSet, Plugin, Step};

use sigma_plugin_kit::fields::{frames, is_name};

/// Passes labels of the consumer on.
pub(crate) static ATTACH_CONSUMER_LABEL: Descriptor = Descriptor {
    name: "attach-consumer-label",
    priority: 2399,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::BeforeProxy]),
    owned_fields: Some(|conf| members(conf, "headers").map(OwnedField::sole).collect()),
    ..Descriptor::itself::<AttachConsumerLabel>()
};

/// Sends labels of the consumer to nodes, as header fields.
///
/// Nodes never get these fields from a client: without a consumer, or without the label, the field is removed.
#[derive(Deserialize, JsonSchema)]
struct AttachConsumerLabel {
    /// Header fields, each with a label after a `$`: `{X-Department: $department}`.
    #[schemars(schema_with = "headers_schema")]
    headers: Labels,
}

fn headers_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "minProperties": 1, "additionalProperties": {"type": "string", "pattern": r"^\$.*"}
    })
}

impl Configuration for AttachConsumerLabel {}

/// Names of fields, and of labels.
#[derive(Deserialize)]
#[serde(try_from = "Map<String, Value>")]
struct Labels(Vec<(String, String)>);

impl TryFrom<Map<String, Value>> for Labels {
    type Error = String;

    fn try_from(fields: Map<String, Value>) -> Result<Labels, String> {
        let label = |(name, value): (String, Value)| {
            if !is_name(&name) {
                return Err(format!("`{name}` is not the name of a header field"));
            }
            if frames(&name) {
                return Err(format!("the gateway itself sets `{name}`: choose another name"));
            }
            let label = value.as_str().and_then(|value| value.strip_prefix('$')).unwrap_or_default();
            Ok((name, label.to_owned()))
        };
        fields.into_iter().map(label).collect::<Result<_, _>>().map(Labels)
    }
}

impl Plugin for AttachConsumerLabel {
    fn before_proxy(&self, ctx: &mut Context, _: &Env<'_>) -> Step {
        for (name, label) in &self.headers.0 {
            let labels = ctx.consumer().map_or(&[][..], |consumer| &consumer.labels);
            let value = labels.iter().find(|(key, _)| **key == **label).map(|(_, value)| value.clone());
            ctx.request.headers.remove_name(name.as_bytes());
            // A label is any text, and not all texts can stand in a field.
            if let Some(value) = value.filter(|value| !value.bytes().any(|byte| byte.is_ascii_control())) {
                ctx.request.headers.append(name, value.as_bytes());
            }
        }
        Step::Next
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Case, entry, refusal};

    #[test]
    fn labels_are_attached_and_claims_taken_away() {
        let conf = json!({"headers": {"X-Team": "$team", "X-None": "$none"}});
        let plugin = entry("attach-consumer-label", conf).unwrap();
        let check = |labels: Option<&[(&str, &str)]>, expected: Option<&str>| {
            let mut case =
                Case::new("GET / HTTP/1.1\nHost: h\nX-Team: board\nX-Team: root\nX_Team: root\nx-none: 1");
            if let Some(labels) = labels {
                case.known("jack", labels);
            }
            assert!(case.run(&plugin, Phase::BeforeProxy).is_none());
            assert_eq!(case.sent("X-Team").as_deref(), expected, "{labels:?}");
            assert_eq!((case.sent("X-None"), case.sent("X_Team")), (None, None));
        };
        check(Some(&[("team", "sales"), ("other", "x")]), Some("sales"));
        check(Some(&[("Team", "sales")]), None);
        check(Some(&[("team", "a\r\nX-Root: 1")]), None);
        check(Some(&[]), None);
        check(None, None);
    }

    #[test]
    fn bad_configurations_are_refused() {
        let check = |conf: Value, expected: &str| {
            let refused = refusal("attach-consumer-label", &conf);
            assert!(refused.contains(expected), "{conf}: {refused}");
        };
        check(json!({}), "property \"headers\" is required");
        check(json!({"headers": {}}), "expect object to have at least 1 properties");
        check(json!({"headers": {"X": "team"}}), "failed to match pattern");
        check(json!({"headers": {"a b": "$team"}}), "`a b` is not the name of a header field");
        check(json!({"headers": {"Content-Length": "$team"}}), "the gateway itself sets");
    }
}
