//! A value whose unknown fields are renamed to the intended names, so that a wrong name is only one mistake.

use serde_json::{Map, Value};

use super::strict::{Unread, Why};
use crate::problem::{Problem, json_pointer, member};
use crate::synonyms::{Nearest, nearest_field};

/// The corrected value, and its differences from the original.
pub(super) struct Corrected {
    pub(super) value: Value,
    /// The fields whose names were wrong.
    pub(super) fields: Vec<Unread>,
    places: Vec<String>,
}

impl Corrected {
    /// Corrects the names in a value. Returns None if no name is wrong or has a known correction.
    pub(super) fn new(value: &Value, unread: &[Unread]) -> Option<Corrected> {
        let mut corrected = Corrected { value: value.clone(), fields: Vec::new(), places: Vec::new() };
        for field in unread {
            let Why::Unknown(known) = &field.why else { continue };
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let Some(nearest) = nearest_field(&field.name, &known) else { continue };
            let object = json_pointer(&field.object).and_then(|place| corrected.value.pointer_mut(&place));
            let Some(object) = object.and_then(Value::as_object_mut) else { continue };
            let Some(written) = object.shift_remove(&field.name) else { continue };
            let (name, value) = match nearest {
                Nearest::Field(name) | Nearest::Meant(name) => (name, written),
                Nearest::Within(name, _) => (name, Value::Object(Map::new())),
                Nearest::Plugin(_) => {
                    object.insert(field.name.clone(), written);
                    continue;
                }
            };
            corrected.fields.push(field.clone());
            if !object.contains_key(name) {
                object.insert(name.to_owned(), value);
                corrected.places.push(member(&field.object, name));
            }
        }
        (corrected.value != *value).then_some(corrected)
    }

    /// Returns whether a problem is about a field that the operator wrote.
    pub(super) fn is_written(&self, problem: &Problem) -> bool {
        let is_in = |place: &String| {
            let rest = problem.pointer.strip_prefix(place.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        !self.places.iter().any(is_in)
    }
}
