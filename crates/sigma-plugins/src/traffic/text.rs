//! Texts and fields that depend on the request.

use serde_json::Value;
use sigma_config::template::Template;
use sigma_plugin::Context;

/// A header field whose value may hold variables.
pub(super) struct Field {
    name: String,
    value: Template,
}

impl Field {
    pub(super) fn new(name: &str, value: &Value) -> Field {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        Field { name: name.to_owned(), value: Template::parse(&text) }
    }

    /// The fields of a checked object of strings and numbers.
    pub(super) fn all(fields: &serde_json::Map<String, Value>) -> Vec<Field> {
        fields.iter().map(|(name, value)| Field::new(name, value)).collect()
    }

    /// Name and value for this request.
    pub(super) fn of(&self, cx: &Context) -> (String, Vec<u8>) {
        (self.name.clone(), rendered(&self.value, cx))
    }
}

/// The text of a template; absent variables are empty.
pub(super) fn rendered(template: &Template, cx: &Context) -> Vec<u8> {
    let mut text = Vec::new();
    template.render(cx, &mut text);
    text
}
