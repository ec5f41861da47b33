//! Invariants of bodies, for any input of a client.

use serde_json::Value;
use sigma_schema::expr::VarName;

use super::input::Format;
use sigma_plugin_kit::body_template::{Data, Template};

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
        // The parts of a form and its arguments stand in their own object, and in lists.
        assert!(values(&value) <= 2 * MOST_VALUES + 1, "{value}");
    }
}

/// The limits of steps and of output for a template here.
const MOST_STEPS: usize = 2_000;
const MOST_TEXT: usize = 2_000;

/// A form, a template, a zero byte and a body: none panics, a template ends, makes no more text than it may, and makes the
/// same of the same.
pub fn templates(input: &[u8]) {
    let Some((form, rest)) = input.split_first() else { return };
    let mut parts = rest.splitn(2, |b| *b == 0);
    let Ok(template) = str::from_utf8(parts.next().unwrap_or_default()) else { return };
    let body = parts.next().unwrap_or_default();
    let Ok(template) = Template::parse(template) else { return };
    let format = if form % 2 == 0 { Format::Json } else { Format::Xml };
    let root = format.read(body, "", MOST_VALUES).unwrap_or(Value::Null);
    let body = Value::String(String::from_utf8_lossy(body).into_owned());
    let variable = |name: &VarName| (form & 2 == 0).then(|| format!("{name:?}"));
    let data =
        Data { root: &root, body: &body, variable: &variable, most_steps: MOST_STEPS, most_text: MOST_TEXT };
    let rendered = template.rendered(&data);
    assert!(rendered.as_ref().is_ok_and(|text| text.len() <= MOST_TEXT) || rendered.is_err());
    assert_eq!(template.rendered(&data), rendered);
}

fn values(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(values).sum(),
        Value::Object(members) => members.values().map(values).sum(),
        _ => 0,
    }
}
