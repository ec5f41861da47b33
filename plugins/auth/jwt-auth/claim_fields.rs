//! Claims as fields that the node gets.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_http::header::is_same_variable;
use sigma_http::{HeaderId, Headers};
use sigma_plugin::OwnedField;

use sigma_plugin_kit::fields::{frames, is_name};

/// Claims, each with the name of its field.
#[derive(Deserialize)]
#[serde(try_from = "BTreeMap<String, String>")]
pub(super) struct ClaimFields(Vec<(String, String)>);

impl TryFrom<BTreeMap<String, String>> for ClaimFields {
    type Error = String;

    fn try_from(fields: BTreeMap<String, String>) -> Result<ClaimFields, String> {
        let mut seen: Vec<String> = Vec::new();
        for field in fields.values() {
            if !is_name(field) {
                return Err(format!("`{field}` is not the name of a header field"));
            }
            if frames(field) || HeaderId::of(field.as_bytes()) == HeaderId::Host {
                return Err(format!("the gateway itself sets `{field}`: remove it"));
            }
            if seen.contains(&field.to_ascii_lowercase()) {
                return Err(format!("two claims set `{field}`"));
            }
            seen.push(field.to_ascii_lowercase());
        }
        Ok(ClaimFields(fields.into_iter().collect()))
    }
}

impl JsonSchema for ClaimFields {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ClaimFields".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "object", "minProperties": 1, "additionalProperties": {"type": "string"}})
    }
}

impl ClaimFields {
    /// Removes the client's own fields of these names.
    pub(super) fn remove(&self, headers: &mut Headers) {
        self.0.iter().for_each(|(_, field)| headers.remove_name(field.as_bytes()));
    }

    /// Tells the node. A claim that is absent, or whose text no field can hold, leaves its field out.
    pub(super) fn set(&self, claims: &Map<String, Value>, headers: &mut Headers) {
        for (claim, field) in &self.0 {
            let value = match claims.get(claim) {
                None | Some(Value::Null) => continue,
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
            };
            if !value.bytes().any(|byte| byte.is_ascii_control()) {
                headers.append(field, value.as_bytes());
            }
        }
    }
}

/// The fields that the node gets by this configuration.
pub(super) fn owned_fields(conf: &Value) -> Vec<OwnedField> {
    let header = conf.get("header").and_then(Value::as_str).unwrap_or_default();
    let claims = conf.get("claims_to_headers").and_then(Value::as_object);
    let fields = claims.into_iter().flat_map(Map::values).filter_map(Value::as_str);
    // The token may come in the field of a claim.
    let owned = |name| match is_same_variable(header.as_bytes(), str::as_bytes(name)) {
        true => OwnedField::judged(name),
        false => OwnedField::sole(name),
    };
    fields.map(owned).collect()
}
