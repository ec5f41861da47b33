//! The schema of a whole file in its full form, generated from the types, for editors and the reference.

use std::sync::OnceLock;

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::bundled;
use crate::resources::{SECTIONS, Sections};
use crate::settings::Settings;
use sigma_schema::described::take_confidential;
use sigma_schema::document::Document;
use sigma_schema::problem::Problem;
use sigma_schema::validation;

/// Returns the JSON schema of a configuration in its full form.
pub(crate) fn schema() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let generate = |settings: SchemaSettings, resources: bool| {
            let generator = settings.into_generator();
            let schema = match resources {
                true => generator.into_root_schema_for::<Sections>(),
                false => generator.into_root_schema_for::<Settings>(),
            };
            schema.to_value()
        };
        let mut whole = generate(SchemaSettings::draft2020_12(), false);
        let resources = generate(SchemaSettings::draft2020_12(), true);
        for part in ["properties", "$defs"] {
            if let (Some(Value::Object(into)), Some(Value::Object(from))) =
                (whole.get_mut(part), resources.get(part))
            {
                into.extend(from.clone());
            }
        }
        whole["title"] = json!("Sigma configuration");
        whole["description"] = json!("Process settings and resources of one Sigma gateway.");
        bound_integers(&mut whole);
        let definitions = whole.get_mut("$defs").and_then(Value::as_object_mut);
        for definition in definitions.into_iter().flat_map(Map::values_mut) {
            take_confidential(definition);
            close(definition);
        }
        whole
    })
}

/// Refuses unknown fields, although APISIX's schemas do not say so.
fn close(definition: &mut Value) {
    if let Some(object) = definition.as_object_mut().filter(|object| object.contains_key("properties")) {
        object.entry("additionalProperties").or_insert(json!(false));
    }
}

/// Adds the bounds of an integer's Rust type, which the generator omits for wide types.
fn bound_integers(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(bound_integers),
        Value::Object(map) => {
            let bounds = match map.get("format").and_then(Value::as_str) {
                Some("uint32") => Some((json!(0), json!(u32::MAX))),
                Some("uint64") => Some((json!(0), json!(u64::MAX))),
                Some("int32") => Some((json!(i32::MIN), json!(i32::MAX))),
                Some("int64") => Some((json!(i64::MIN), json!(i64::MAX))),
                _ => None,
            };
            if let Some((low, high)) = bounds {
                map.entry("minimum").or_insert(low);
                map.entry("maximum").or_insert(high);
            }
            map.values_mut().for_each(bound_integers);
        }
        _ => {}
    }
}

/// Returns the schema problems of `document` outside the items of its sections.
pub(crate) fn problems(document: &Document) -> Vec<Problem> {
    static CHECKER: OnceLock<validation::Schema> = OnceLock::new();
    // The schema depends on nothing but the types; the tests compile it.
    let compiled = || {
        validation::Schema::of_program(bundled::of_settings()).expect("the schema of the settings is valid")
    };
    let outside = |(name, value): (&String, &Value)| match value {
        Value::Array(_) if SECTIONS.contains(&name.as_str()) => (name.clone(), json!([])),
        value => (name.clone(), value.clone()),
    };
    let root = document.value.as_object().into_iter().flatten().map(outside).collect();
    let found = CHECKER.get_or_init(compiled).mistakes(&Value::Object(root), &[]);
    found.into_iter().map(|problem| document.located(problem)).collect()
}

/// Returns definitions by name, for the reference.
pub(crate) fn definitions() -> Option<&'static Map<String, Value>> {
    schema().get("$defs")?.as_object()
}
