//! What must hold of bodies, whatever a client sends.

use serde_json::Value;

use super::input::Format;

/// Most values of a body here.
const MOST_VALUES: usize = 200;

/// The form of a body by its first byte, and the body: none panics, and none becomes more values than it may.
pub fn body_formats(input: &[u8]) {
    let Some((form, body)) = input.split_first() else { return };
    let format = match form % 5 {
        0 => Format::Yaml,
        1 => Format::Xml,
        2 => Format::Json,
        3 => Format::Encoded,
        _ => Format::Multipart,
    };
    if let Ok(value) = format.read(body, "multipart/form-data; boundary=x", MOST_VALUES) {
        // The parts of a form and its arguments stand in an object of their own, and in lists.
        assert!(values(&value) <= 2 * MOST_VALUES + 1, "{value}");
    }
}

fn values(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(values).sum(),
        Value::Object(members) => members.values().map(values).sum(),
        _ => 0,
    }
}
