//! Costs of fields of a GraphQL schema: resources that exist below a service.

use std::sync::OnceLock;

use serde_json::{Value, json};
use sigma_schema::validation;

/// The schema, as APISIX has it.
pub(crate) fn schema() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let arguments = json!({"type": "array", "items": {"type": "string", "minLength": 1}});
        let time = json!({"type": "integer"});
        let id = json!({"anyOf": [
            {"type": "string", "minLength": 1, "maxLength": 64, "pattern": "^[a-zA-Z0-9-_.]+$"},
            {"type": "integer", "minimum": 1},
        ]});
        json!({
            "type": "object",
            "properties": {
                "id": id,
                "service_id": id,
                "name": {"type": "string", "minLength": 1, "maxLength": 256},
                "desc": {"type": "string", "maxLength": 256},
                "labels": {
                    "type": "object",
                    "patternProperties": {
                        ".*": {"type": "string", "pattern": r"^\S+$", "minLength": 1, "maxLength": 256},
                    },
                },
                "field_path": {
                    "type": "string",
                    "pattern": r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$",
                },
                "add_value": {"type": "number", "minimum": 0, "default": 1},
                "add_arguments": arguments,
                "mul_value": {"type": "number", "minimum": 0, "default": 1},
                "mul_arguments": arguments,
                "create_time": time,
                "update_time": time,
            },
            "required": ["field_path"],
            "additionalProperties": false,
        })
    })
}

/// Checks a decoration by itself.
pub(crate) fn check(value: &Value) -> Result<(), String> {
    static COMPILED: OnceLock<validation::Schema> = OnceLock::new();
    // The test below compiles it.
    let compiled =
        COMPILED.get_or_init(|| validation::Schema::compile(schema()).expect("the schema above is valid"));
    compiled.check(value).map_err(|text| format!("invalid configuration: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decorations_are_checked() {
        assert_eq!(check(&json!({"field_path": "query.a"})), Ok(()));
        let check = |value: Value, expected: &str| assert_eq!(check(&value).expect_err("refused"), expected);
        check(json!({}), "invalid configuration: property \"field_path\" is required");
        check(
            json!({"field_path": "a", "x": 1}),
            "invalid configuration: additional properties forbidden, found x",
        );
    }
}
